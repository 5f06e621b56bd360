"""Value tokens: never sampled, outside every distribution, read before and after a response, and trained together with the policy."""

import numpy as np
import pytest
import torch

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.objective import Optimization, PolicyGradient, ValueTokens
from threespo_bench.errors import DataError, EngineError, UsageError
from threespo_plugins.embedded import value_tokens
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.engine import EmbeddedEngine
from threespo_plugins.models.household_tiny import path as household_tiny

NEEDS = frozenset({"value_tokens"})
NAMES = ["w0", "w1"]
HIGH, LOW = 6, 7  # their ids in the word-level vocabulary
STILL = Optimization(learning_rate=0.0, weight_decay=0.0, gradient_clip=1e9)
TEXTS = ["w4 w2 w3", "w4 w2 w3", "w9", "w4 w2 w3", "w4 w5 w6 w7 w8"]


def prepared(make_engine, architecture="qwen2", **options):
    engine = make_engine(architecture, **{"value_tokens": NAMES} | options)
    engine.prepare(NEEDS)
    return engine


def batch(engine, bench, texts=TEXTS):
    turns = bench.turns(bench.generate(engine, texts))
    turns.response_mask[2:3, 4:] = False  # responses of different lengths
    logits = engine.learner.value_logits(turns)
    turns.extras |= {"value_logit": logits[:, 0], "action_value_logit": logits[:, 1]}
    return turns


def credit_of(turns, bench, **columns):
    rng = np.random.default_rng(3)
    return bench.credit(turns, **{"returns": rng.normal(size=len(turns)) * 5, "action_returns": rng.normal(size=len(turns)) * 5} | columns)


def gradient(engine, turns, credit, objective, optimization=STILL):
    """The gradient of an update that moves nothing, as one vector, and the metrics."""
    metrics = engine.learner.update(turns, credit, objective, optimization)
    return torch.cat([parameter.grad.flatten().clone() for parameter in engine._policy.model.parameters()]), metrics


def plain_logits(engine, turns, row, model=None):
    """(P + T, V) logits of one row's sequence, from the model run plainly, and the length of its prompt."""
    count = int(turns.response_mask[row].sum())
    ids = torch.from_numpy(np.concatenate([turns.prompt_ids[row], turns.response_ids[row, :count]])).long()
    return (model or engine._policy.model)(input_ids=ids[None]).logits[0], len(turns.prompt_ids[row])


def without_reserved(logits):
    """Log-probabilities with the reserved tokens cut out of the vocabulary, put back as NaN."""
    kept = [i for i in range(logits.shape[-1]) if i not in (HIGH, LOW)]
    out = torch.full_like(logits, torch.nan)
    return out.index_copy(-1, torch.tensor(kept), torch.log_softmax(logits[..., kept], -1))


def test_a_byte_level_tokenizer_has_bytes_that_no_text_contains():
    engine = EmbeddedEngine(EmbeddedConfig(), str(household_tiny()), 0)
    engine.prepare(NEEDS)
    tokenizer, reserved = engine._policy.tokenizer, engine._policy.value_tokens.tolist()
    assert tokenizer.convert_ids_to_tokens(reserved) == ["\u00fe", "\u00ff"]
    assert not set(reserved) & set(tokenizer("þÿ look at the desk \U0001f600 \uffff")["input_ids"])


@pytest.mark.parametrize(
    ("named", "says"),
    [(None, "no tokens for bytes"), (["w0", "w9999"], "no token 'w9999'"), (["w0", "<eos>"], "ends responses")],
)
def test_tokens_that_cannot_be_reserved(make_engine, named, says):
    engine = make_engine(value_tokens=named)
    with pytest.raises(UsageError, match=says) as caught:
        engine.prepare(NEEDS)
    assert "engine.value_tokens" in str(caught.value)


@pytest.mark.parametrize("named", [["w0"], ["w0", "w0"], ["w0", "w1", "w2"]])
def test_two_different_tokens_are_needed(named):
    with pytest.raises(UsageError, match=r"engine\.value_tokens"):
        EmbeddedConfig(value_tokens=named).validate()


def test_a_letter_that_looks_like_the_byte_is_no_byte(tmp_path):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"\u00fe": 0, "\u00ff": 1, "?": 2}, unk_token="?")))
    assert not value_tokens._is_byte(tokenizer, "\u00fe")
    assert not value_tokens._is_byte(tokenizer, "\u00e0")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_reserved_tokens_are_never_sampled(make_engine, bench, temperature):
    """What the policy likes most is reserved, and it takes what it likes next."""
    favourite = bench.generate(make_engine(), ["w4"], temperature=0.0)[0].token_ids[0]
    free = make_engine()
    free._policy.value_tokens = torch.tensor([favourite, LOW])
    answers = bench.generate(free, ["w4"] * 40, temperature=temperature)
    assert not any(np.isin(answer.token_ids, [favourite, LOW]).any() for answer in answers)


def test_every_policy_is_renormalised_without_the_reserved_tokens(make_engine, bench):
    engine = prepared(make_engine)
    turns = batch(engine, bench)
    sampler, actor, reference = turns.old_log_probs, engine.learner.score(turns), engine.learner.score(turns, "reference")
    for row in range(len(turns)):
        logits, prompt = plain_logits(engine, turns, row)
        count = int(turns.response_mask[row].sum())
        tokens = torch.from_numpy(turns.response_ids[row, :count]).long()[:, None]
        expected = without_reserved(logits)[prompt - 1 : -1].gather(1, tokens)[:, 0].detach().numpy()
        for found in (sampler, actor, reference):
            np.testing.assert_allclose(found[row, :count], expected, atol=1e-5)
    assert np.abs(actor - make_engine().learner.score(turns))[turns.response_mask].max() > 1e-4  # it makes a difference


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gpt2"])
def test_values_are_read_at_the_end_of_the_prompt_and_of_the_response(make_engine, bench, architecture):
    engine = prepared(make_engine, architecture)
    turns = batch(engine, bench)
    found = engine.learner.value_logits(turns)
    assert found.shape == (5, 2)
    assert found.dtype == np.float64
    for row in range(5):
        logits, prompt = plain_logits(engine, turns, row)
        difference = (logits[:, HIGH] - logits[:, LOW]).detach().numpy()
        np.testing.assert_allclose(found[row], [difference[prompt - 1], difference[-1]], atol=1e-5)
    prompts = [*turns.prompt_ids[:2], np.zeros(0, np.int32), turns.prompt_ids[4]]
    np.testing.assert_allclose(engine.learner.prompt_value_logits(prompts), [*found[:2, 0], 0.0, found[4, 0]], atol=1e-5)
    turns.padding = np.arange(5) == 3
    assert (engine.learner.value_logits(turns)[3] == 0).all()


@pytest.mark.parametrize(("high", "low", "temperature", "value"), [(1.2, 0.4, 2.0, 4.0), (3.0, 0.5, 2.0, 10.0), (0.5, 3.0, 2.0, -10.0)])
def test_a_value_is_the_clipped_difference(high, low, temperature, value):
    objective = ValueTokens(value_temperature=temperature, reward_max=10.0)
    assert value_tokens._spoken(objective, torch.tensor(high - low, dtype=torch.float64)).item() == pytest.approx(value, abs=1e-6)


def test_the_gradient_is_that_of_the_plain_losses(make_engine, bench):
    engine = prepared(make_engine)
    turns = batch(engine, bench)
    turns.extras["value_logit"] = turns.extras["value_logit"] + np.array([0.0, 0.4, 0.0, 0.0, -0.4])  # some values have moved since the rollout
    objective = ValueTokens(value_temperature=2.0, value_clip=1.0, value_coef=0.7, action_value_coef=0.3, entropy_coef=0.05)
    credit = credit_of(turns, bench, selected=np.array([True, True, True, False, True]), scale=0.5)
    found, metrics = gradient(engine, turns, credit, objective)

    engine._policy.model.zero_grad()
    rows, spoken = np.flatnonzero(credit.selected), lambda logit: 10.0 * (logit / 2.0).clamp(-1, 1)
    policy, entropy, values = torch.zeros(()), torch.zeros(()), {0: [], 1: []}
    tokens = turns.response_mask[rows].sum()
    for row in rows:
        logits, prompt = plain_logits(engine, turns, row)
        count = int(turns.response_mask[row].sum())
        log_probs = without_reserved(logits)[prompt - 1 : -1]
        entropy = entropy - (log_probs.exp() * log_probs).nansum() / tokens
        chosen = log_probs.gather(1, torch.from_numpy(turns.response_ids[row, :count]).long()[:, None])[:, 0]
        old, advantage = (torch.from_numpy(column[row, :count]) for column in (turns.old_log_probs, credit.advantages))
        policy = policy - ((chosen - old).exp() * advantage).sum() / tokens
        for i, (place, name, target) in enumerate(((prompt - 1, "value_logit", credit.returns), (-1, "action_value_logit", credit.action_returns))):
            value, before = spoken(logits[place, HIGH] - logits[place, LOW]), spoken(torch.tensor(turns.extras[name][row]).float())
            bounded = torch.minimum(torch.maximum(value, before - 1.0), before + 1.0)
            values[i].append(0.5 * torch.maximum((value - target[row]).square(), (bounded - target[row]).square()))
    state, action = (torch.stack(values[i]).mean() for i in (0, 1))
    (0.5 * (policy - 0.05 * entropy + 0.7 * state + 0.3 * action)).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in engine._policy.model.parameters()])
    assert torch.isfinite(found).all()
    assert ((found - expected).norm() / expected.norm()).item() < 1e-5
    assert metrics["value_loss"] == pytest.approx(0.5 * state.item(), rel=1e-5)
    assert metrics["action_value_loss"] == pytest.approx(0.5 * action.item(), rel=1e-5)
    assert metrics["loss"] == pytest.approx(0.5 * (policy - 0.05 * entropy + 0.7 * state + 0.3 * action).item(), rel=1e-4)
    assert metrics["entropy"] == pytest.approx(entropy.item(), rel=1e-5)
    assert metrics["logprob_gap_max"] < 1e-5


def test_the_gradient_does_not_depend_on_the_division_into_micro_batches_or_on_packing(make_engine, bench):
    found = []
    for tokens, shares in ((100_000, True), (1, True), (100_000, False)):
        engine = prepared(make_engine, micro_batch_tokens=tokens)
        engine._policy.forward.takes_masks = shares
        turns = batch(engine, bench)
        found.append(gradient(engine, turns, credit_of(turns, bench), ValueTokens(kl_coef=0.1)))
    for other, metrics in found[1:]:
        assert ((other - found[0][0]).norm() / found[0][0].norm()).item() < 1e-5
        assert metrics["loss"] == pytest.approx(found[0][1]["loss"], rel=1e-5)
        assert metrics["value_loss"] == pytest.approx(found[0][1]["value_loss"], rel=1e-5)


def test_turns_of_zero_advantage_still_teach_values(make_engine, bench):
    engine = prepared(make_engine)
    turns = batch(engine, bench)
    credit = credit_of(turns, bench)
    credit.advantages[:] = 0.0
    found, metrics = gradient(engine, turns, credit, ValueTokens())
    assert metrics["optimizer_steps"] == 1
    assert found.norm() > 1e-3


def test_without_value_losses_it_is_the_policy_loss(make_engine, bench):
    engine = prepared(make_engine)
    turns = batch(engine, bench)
    credit = bench.credit(turns)  # no targets are needed
    found, metrics = gradient(engine, turns, credit, ValueTokens(value_coef=0.0, action_value_coef=0.0))
    expected, plain = gradient(engine, turns, credit, PolicyGradient())
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    assert set(metrics) == set(plain)


def test_values_move_to_their_targets(make_engine, bench):
    engine = prepared(make_engine)
    turns = batch(engine, bench, ["w4 w2 w3", "w9"])
    credit = Credit(np.zeros(turns.response_mask.shape), returns=np.array([4.0, -3.0]), action_returns=np.array([6.0, -6.0]))
    objective, optimization = ValueTokens(value_clip=100.0), Optimization(learning_rate=1e-3)
    for _ in range(25):
        metrics = engine.learner.update(turns, credit, objective, optimization)
    values = value_tokens._spoken(objective, torch.from_numpy(engine.learner.value_logits(turns))).numpy()
    np.testing.assert_allclose(values, [[4.0, 6.0], [-3.0, -6.0]], atol=1.0)
    assert metrics["value_loss"] < 0.5


def test_what_cannot_be_done_is_said(make_engine, bench):
    engine, bare = prepared(make_engine), make_engine()
    turns = batch(engine, bench)
    credit = credit_of(turns, bench)

    def update(credit, learner=engine.learner, turns=turns):
        learner.update(turns, credit, ValueTokens(), Optimization())

    turns.policy_version = None
    for ask in (bare.learner.value_logits, lambda turns: bare.learner.prompt_value_logits(turns.prompt_ids), lambda turns: update(credit, bare.learner)):
        with pytest.raises(UsageError, match="no value tokens were reserved"):
            ask(turns)
    with pytest.raises(UsageError, match="no returns"):
        update(credit_of(turns, bench, returns=None))
    with pytest.raises(UsageError, match="no action_returns"):
        update(credit_of(turns, bench, action_returns=None))
    with pytest.raises(UsageError, match="selected_tokens"):
        update(credit_of(turns, bench, selected_tokens=turns.response_mask))
    with pytest.raises(DataError, match=r"returns have shape \(5, 6\)"):
        update(credit_of(turns, bench, returns=np.zeros((5, 6))))
    credit.action_returns[3] = np.nan
    with pytest.raises(EngineError, match="action_returns is nan at row 3"):
        update(credit)
    del turns.extras["value_logit"]
    with pytest.raises(DataError, match="value_logit"):
        update(credit_of(turns, bench))

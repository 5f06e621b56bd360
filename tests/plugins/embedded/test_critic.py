"""The critic: where values are read, its loss and gradient, and its own optimiser and checkpoint."""

import numpy as np
import pytest
import torch

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.objective import Critic, Optimization, PolicyGradient
from threespo_bench.errors import DataError, EngineError, StorageError, UsageError
from threespo_plugins.embedded.critic import explained_variance

NEEDS = frozenset({"critic"})
STILL = Critic(learning_rate=0.0, weight_decay=0.0, value_clip=None, gradient_clip=1e9)
TEXTS = ["w1 w2 w3", "w1 w2 w3", "w9", "w1 w2 w3", "w4 w5 w6 w7 w8"]


def engine_with_critic(make_engine, architecture="qwen2", speaks=True, **options):
    """An engine whose critic, if it ``speaks``, has a random head: a fresh one says 0 everywhere."""
    engine = make_engine(architecture, **options)
    engine.prepare(NEEDS)
    if speaks:
        model = engine.learner.critic.model
        with torch.no_grad():
            model.head.weight.copy_(torch.randn(model.head.weight.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
            model.head.bias.fill_(0.25)
    return engine


def batch(engine, bench, texts=TEXTS):
    turns = bench.turns(bench.generate(engine, texts))
    turns.response_mask[2, 4:] = False  # responses of different lengths
    turns.values = engine.learner.values(turns)
    return turns


def with_returns(turns, returns):
    return Credit(np.zeros(turns.response_mask.shape), returns=returns)


def token_targets(turns):
    return np.random.default_rng(0).normal(size=turns.response_mask.shape)


def gradient(engine, turns, credit, settings=STILL):
    """The gradient of an update that moves nothing, as one vector, and the metrics."""
    metrics = engine.learner.update_critic(turns, credit, settings)
    return torch.cat([parameter.grad.flatten().clone() for parameter in engine.learner.critic.model.parameters()]), metrics


def plain_values(engine, turns, row):
    """(T,) values of one row, with gradient, from the body run plainly over its whole sequence."""
    model, prompt = engine.learner.critic.model, len(turns.prompt_ids[row])
    ids = torch.from_numpy(np.concatenate([turns.prompt_ids[row], turns.response_ids[row]])).long()
    return model.head(model.body(input_ids=ids[None]).last_hidden_state[0, prompt - 1 : -1])[:, 0]


def test_the_first_values_are_zero(make_engine, bench):
    engine = engine_with_critic(make_engine, speaks=False)
    turns = batch(engine, bench)
    assert turns.values.shape == turns.response_mask.shape
    assert turns.values.dtype == np.float64
    assert (turns.values == 0).all()


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gpt2"])
def test_values_are_read_where_the_token_is_predicted(make_engine, bench, architecture):
    engine = engine_with_critic(make_engine, architecture)
    turns = batch(engine, bench)
    for row in range(len(turns)):
        mask = turns.response_mask[row]
        np.testing.assert_allclose(turns.values[row, mask], plain_values(engine, turns, row).detach().numpy()[mask], atol=1e-5)
        assert (turns.values[row, ~mask] == 0).all()
    prompts = [*turns.prompt_ids[:2], np.zeros(0, np.int32), turns.prompt_ids[4]]
    np.testing.assert_allclose(engine.learner.prompt_values(prompts), [*turns.values[:2, 0], 0.0, turns.values[4, 0]], atol=1e-5)
    assert engine.learner.prompt_values([]).shape == (0,)


def test_the_gradient_is_that_of_the_plain_loss(make_engine, bench):
    engine = engine_with_critic(make_engine)
    turns = batch(engine, bench)
    turns.values += np.where(np.arange(6) % 2, 0.3, 0.0)  # values have moved since the rollout: some are outside the clip range
    targets = token_targets(turns)
    found, metrics = gradient(engine, turns, with_returns(turns, targets), Critic(0.0, 0.0, 1e9, value_clip=0.1))
    model = engine.learner.critic.model
    model.zero_grad()
    losses, clipped = [], []
    for row in range(len(turns)):
        value, (old, target) = plain_values(engine, turns, row), (torch.from_numpy(column[row]).float() for column in (turns.values, targets))
        plain, bounded = (value - target).square(), (value.clamp(old - 0.1, old + 0.1) - target).square()
        mask = torch.from_numpy(turns.response_mask[row])
        losses.append(0.5 * torch.maximum(plain, bounded)[mask])
        clipped.append((bounded > plain)[mask])
    loss = torch.cat(losses).mean()
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-3)
    assert metrics["value_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["value_clip_fraction"] == pytest.approx(torch.cat(clipped).double().mean().item())
    assert 0 < metrics["value_clip_fraction"] < 1
    assert metrics["critic_grad_norm"] == pytest.approx(expected.norm().item(), rel=1e-4)
    assert metrics["explained_variance"] == pytest.approx(explained_variance(turns.values[turns.response_mask], targets[turns.response_mask]))


@pytest.mark.parametrize("unit", ["token", "turn"])
def test_the_gradient_does_not_depend_on_the_division_into_micro_batches_or_on_packing(make_engine, bench, unit):
    gradients = []
    for tokens, shares in ((100_000, True), (1, True), (100_000, False)):
        engine = engine_with_critic(make_engine, micro_batch_tokens=tokens)
        engine._policy.forward.takes_masks = shares
        turns = batch(engine, bench)
        targets = token_targets(turns)
        gradients.append(gradient(engine, turns, with_returns(turns, targets if unit == "token" else targets[:, 0]))[0])
    for other in gradients[1:]:
        assert ((other - gradients[0]).norm() / gradients[0].norm()).item() < 1e-5


def test_the_target_of_a_turn_trains_the_value_before_its_first_token_only(make_engine, bench):
    engine = engine_with_critic(make_engine)
    turns = batch(engine, bench)
    targets = token_targets(turns)
    of_turns, metrics = gradient(engine, turns, with_returns(turns, targets[:, 0]))
    assert metrics["value_loss"] == pytest.approx(0.5 * np.mean((turns.values[:, 0] - targets[:, 0]) ** 2), rel=1e-4)
    turns.response_mask[:, 1:] = False
    of_first_tokens, _ = gradient(engine, turns, with_returns(turns, targets))
    torch.testing.assert_close(of_turns, of_first_tokens)
    turns.values = turns.values[:, 0]
    torch.testing.assert_close(gradient(engine, turns, with_returns(turns, targets[:, 0]))[0], of_turns)


def test_padding_and_unselected_rows_do_not_count(make_engine, bench):
    engine = engine_with_critic(make_engine)
    turns = batch(engine, bench)
    targets = token_targets(turns)
    rows = np.array([0, 2, 3])
    alone, some = gradient(engine, turns.take(rows), with_returns(turns.take(rows), targets[rows]))
    turns.padding = np.arange(5) == 1
    turns.values[1], targets[4] = np.nan, np.inf
    credit = with_returns(turns, targets)
    credit.selected = np.arange(5) != 4
    found, all_of_them = gradient(engine, turns, credit)
    torch.testing.assert_close(found, alone, atol=1e-7, rtol=1e-4)
    assert all_of_them == pytest.approx(some)
    before = [parameter.clone() for parameter in engine.learner.critic.model.parameters()]
    credit.selected = np.zeros(5, bool)
    assert engine.learner.update_critic(turns, credit, Critic(learning_rate=1.0)) == {}
    assert all(torch.equal(one, other) for one, other in zip(before, engine.learner.critic.model.parameters(), strict=True))


def test_it_learns_and_leaves_the_policy_alone(make_engine, bench):
    engine = engine_with_critic(make_engine, speaks=False)
    turns = batch(engine, bench)
    turns.response_mask[1] = turns.response_mask[3] = False  # equal prompts have one first value
    digest, targets = engine.digest(), np.array([1.0, 0.0, -1.0, 0.0, 2.0])
    settings = Critic(learning_rate=1e-3, value_clip=None)
    losses = [engine.learner.update_critic(turns, with_returns(turns, targets), settings)["value_loss"] for _ in range(25)]
    assert losses[0] == pytest.approx(1.0)  # 0.5 * mean(1, 1, 4) where the values are 0
    assert losses[-1] < 0.1
    np.testing.assert_allclose(engine.learner.values(turns)[[0, 2, 4], 0], targets[[0, 2, 4]], atol=0.5)
    assert engine.digest() == digest
    assert bench.generate(engine, ["w1"])[0].policy_version == 0  # nothing of the policy waits to be published


def test_mini_batches_go_in_the_order_of_the_seed(make_engine, bench):
    def weights(seed):
        engine = engine_with_critic(make_engine, seed=seed)
        turns = batch(engine, bench)
        metrics = engine.learner.update_critic(turns, with_returns(turns, token_targets(turns)), Critic(learning_rate=1e-3, epochs=2, mini_batch_turns=2))
        assert 0 < metrics["value_loss"] < np.inf
        return engine.learner.critic.model.head.weight.detach().clone()

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_a_step_that_fails_takes_the_whole_update_back(make_engine, bench, monkeypatch):
    engine = engine_with_critic(make_engine)
    turns = batch(engine, bench)
    settings, credit = Critic(learning_rate=1e-3, mini_batch_turns=2), with_returns(turns, token_targets(turns))
    engine.learner.update_critic(turns, credit, settings)
    critic = engine.learner.critic
    weights, moments = critic.model.head.weight.clone(), {name: tensor.clone() for name, tensor in critic._optimizer.state().items()}
    norms = iter([1.0, 1.0, float("nan")])
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(next(norms)))
    with pytest.raises(EngineError, match="gradient norm is nan"):
        engine.learner.update_critic(turns, credit, settings)
    assert torch.equal(critic.model.head.weight, weights)
    assert all(torch.equal(tensor, moments[name]) for name, tensor in critic._optimizer.state().items())


def test_its_state_is_part_of_the_checkpoint(make_engine, bench, tmp_path):
    settings = Critic(learning_rate=1e-3, mini_batch_turns=2)

    def learn(engine):
        turns = batch(engine, bench)
        credit = bench.credit(turns, returns=token_targets(turns))
        policy = engine.learner.update(turns, credit, PolicyGradient(), Optimization(learning_rate=1e-3))
        metrics = policy | engine.learner.update_critic(turns, credit, settings)
        engine.publish()
        return metrics, engine.learner.values(turns).tobytes()

    engine = engine_with_critic(make_engine, speaks=False)
    learn(engine)
    engine.learner.save(tmp_path / "state")
    resumed = engine_with_critic(make_engine)
    resumed.learner.load(tmp_path / "state")
    assert learn(resumed) == learn(engine)

    without = make_engine()
    without.learner.save(tmp_path / "bare")
    with pytest.raises(StorageError, match="critic"):
        resumed.learner.load(tmp_path / "bare")


def test_what_cannot_be_done_is_said(make_engine, bench):
    bare = make_engine()
    engine = engine_with_critic(make_engine)
    turns = batch(engine, bench)
    settings, targets = Critic(), token_targets(turns)
    for ask in (bare.learner.values, lambda turns: bare.learner.update_critic(turns, with_returns(turns, targets), settings)):
        with pytest.raises(UsageError, match="no critic"):
            ask(turns)
    with pytest.raises(UsageError, match="no returns"):
        engine.learner.update_critic(turns, with_returns(turns, None), settings)
    with pytest.raises(DataError, match=r"returns have shape \(5, 2\)"):
        engine.learner.update_critic(turns, with_returns(turns, targets[:, :2]), settings)
    with pytest.raises(DataError, match="selected"):
        engine.learner.update_critic(turns, Credit(targets, returns=targets, selected=np.ones(3, bool)), settings)
    targets[3, 1] = np.nan
    with pytest.raises(EngineError, match="returns is nan at row 3, token 1"):
        engine.learner.update_critic(turns, with_returns(turns, targets), settings)
    turns.values = turns.values[:, 0]
    with pytest.raises(DataError, match="values have one a turn"):
        engine.learner.update_critic(turns, with_returns(turns, token_targets(turns)), settings)
    turns.values = None
    with pytest.raises(DataError, match="values"):
        engine.learner.update_critic(turns, with_returns(turns, token_targets(turns)), settings)


def test_explained_variance():
    assert explained_variance(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0])) == 1.0
    assert explained_variance(np.zeros(3), np.array([1.0, 2.0, 3.0])) == 0.0
    assert explained_variance(np.array([0.0, 1.0]), np.array([0.0, 2.0])) == pytest.approx(0.75)
    assert explained_variance(np.array([0.0, 1.0]), np.array([2.0, 2.0])) == 0.0

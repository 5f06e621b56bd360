"""Fine-tuning on an oracle's episodes: what is taught, that it is learned, and that equal seeds give equal weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from threespo_bench.cli.app import run_cli
from threespo_bench.errors import DataError, UsageError
from threespo_plugins.embedded.forward import Forward
from threespo_plugins.models.fine_tuning import WarmStartOptions, _accumulate, fine_tune, make_environment, oracle_turns

GAMES = Path(__file__).resolve().parents[4] / "shared" / "data" / "alfworld_sample"
SMALL = {"template": "compact", "episodes": 2, "batch_turns": 4, "max_turns": 20, "learning_rate": 3e-3}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The architecture of household-tiny, smaller and with random weights."""
    from threespo_envs.alfred.vocabulary import vocabulary
    from threespo_plugins.models.word_level import make_model, make_tokenizer

    folder = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer(vocabulary())
    make_model(tokenizer, hidden=64, layers=2, heads=2, intermediate=64, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("env", ["household", "alfworld"])
@pytest.mark.parametrize("template", ["compact", "verl_agent"])
def test_the_answers_win(env: str, template: str) -> None:
    if env == "alfworld" and not GAMES.is_dir():
        pytest.skip(f"needs the shared data: {GAMES} is not there")
    environment = make_environment(WarmStartOptions(env=env, template=template, games=str(GAMES)))
    for task in environment.tasks("valid_seen")[:6]:
        live = environment.spawn()
        observation, won = live.reset(task, 0), False
        turns = list(oracle_turns(environment, task, 40))
        for messages, response in turns:
            assert observation.text.splitlines()[-1][:20] in messages[-1]["content"] or template == "compact"
            action = live.parse(response, observation)
            assert action.valid, (response, action.reason)
            step = live.step(action.command)
            observation, won = step.observation, step.success
        assert won and turns


def test_it_learns_and_is_repeatable(base: Path, tmp_path: Path) -> None:
    losses: list[float] = []
    options = WarmStartOptions(**SMALL, steps=25)
    one = fine_tune(base, tmp_path / "one", 3, options, lambda done, total, loss: losses.append(loss))
    assert len(losses) == 25 and np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])
    other = fine_tune(base, tmp_path / "other", 3, options)
    first, second, start = (load_file(folder / "model.safetensors") for folder in (one, other, base))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], start[name]) for name in first)
    assert AutoTokenizer.from_pretrained(one).chat_template == AutoTokenizer.from_pretrained(base).chat_template


@pytest.mark.parametrize("most", [1, 30, 1000])
def test_the_loss_is_the_mean_over_response_tokens(base: Path, most: int) -> None:
    """However the batch is divided, loss and gradient are those of each example by itself, weighted by its tokens."""
    model = AutoModelForCausalLM.from_pretrained(base).eval()
    rng = np.random.default_rng(0)
    batch = [(rng.integers(5, 200, size=p).astype(np.int32), rng.integers(5, 200, size=a).astype(np.int32)) for p, a in ((9, 3), (4, 1), (15, 5))]
    expected = 0.0
    for prompt, answer in batch:
        ids = torch.from_numpy(np.concatenate([prompt, answer])).long()[None]
        log_probs = model(input_ids=ids).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        expected = expected - log_probs.gather(1, torch.from_numpy(answer).long()[:, None]).sum() / 9
    expected.backward()
    gradient = model.model.embed_tokens.weight.grad.clone()
    model.zero_grad()
    assert _accumulate(model, Forward(model), batch, most) == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(model.model.embed_tokens.weight.grad, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("env", ["household", "webshop"])
def test_by_the_command_line(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], env: str) -> None:
    out = tmp_path / "tuned"
    command = ["warm-start", "--model", str(base), "--env", env, "--episodes", "1", "--steps", "2", "--out", str(out), "template=compact"]
    assert run_cli(command) == 0, capsys.readouterr().err
    assert "2/2 steps" in capsys.readouterr().err
    assert AutoModelForCausalLM.from_pretrained(out)
    assert run_cli(["warm-start", "--steps", "2", "--out", str(tmp_path / "x")]) == 2  # household_tiny is made from nothing and has no such option
    assert "unknown key 'steps'" in capsys.readouterr().err


def test_refused(base: Path, tmp_path: Path) -> None:
    for options, message in (({"env": "chess"}, "no oracle"), ({"steps": 0}, "steps=0"), ({"learning_rate": 0.0}, "learning_rate")):
        with pytest.raises(UsageError, match=message):
            fine_tune(base, tmp_path / "x", 0, WarmStartOptions(**options))
    with pytest.raises(DataError, match="does not exist"):
        fine_tune(base, tmp_path / "x", 0, WarmStartOptions(env="alfworld", games=str(tmp_path / "gone")))
    assert not (tmp_path / "x").exists()

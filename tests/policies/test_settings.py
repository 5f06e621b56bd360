"""The configuration in which a recorded policy is played."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from threespo_bench.config.compose import compose
from threespo_bench.config.plain import to_plain
from threespo_bench.errors import UsageError
from threespo_bench.host import PluginHost
from threespo_bench.policies.settings import configure
from threespo_bench.policies.source import ADAPTER, MODEL, RUN, Source


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.discover()


@pytest.fixture
def run(host: PluginHost, tmp_path: Path) -> Source:
    """A run with options of its own."""
    texts = ["env.template=verl_agent", "env.history_length=1", "env.house_seed=5", "evaluation.temperature=0.7", "rollout.max_turns=12", "tracker=none"]
    config = compose("grpo", "household", texts, host)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_plain(config)))
    return Source(str(tmp_path), RUN, tmp_path)


def test_a_run_keeps_its_options(host: PluginHost, run: Source) -> None:
    config = configure(run, host)
    assert (config.env.options.template, config.env.options.house_seed, config.evaluation.temperature) == ("verl_agent", 5, 0.7)
    changed = configure(run, host, "household", ["env.house_seed=6", "evaluation.episodes=3"])
    assert (changed.env.options.house_seed, changed.evaluation.episodes, changed.env.options.template) == (6, 3, "verl_agent")


def test_another_environment_of_the_domain_is_prompted_alike(host: PluginHost, run: Source) -> None:
    config = configure(run, host, "alfworld", ["env.max_games=4"])
    assert config.env.name == "alfworld" and config.env.options.max_games == 4
    assert (config.env.options.template, config.env.options.history_length) == ("verl_agent", 1)
    assert config.evaluation.temperature == 0.7 and config.rollout.options.max_turns == 12
    with pytest.raises(UsageError, match="house_seed"):  # an option of the other one
        configure(run, host, "alfworld", ["env.house_seed=6"])


def test_a_model_has_the_defaults(host: PluginHost) -> None:
    model = Source("household_tiny", MODEL, None)
    assert configure(model, host).env.name == "household"
    shopper = Source("webshop_tiny", MODEL, None)
    assert configure(shopper, host).env.name == configure(Source("webshop-tiny", MODEL, None), host).env.name == "webshop"
    assert configure(Source("adapter", ADAPTER, Path("adapter"), base="webshop-tiny"), host).env.name == "webshop"
    assert configure(Source("smollm2", MODEL, None), host).env.name == "household"
    assert configure(shopper, host, "household").env.name == "household"
    assert configure(model, host, "alfworld", ["rollout.max_turns=50"]).rollout.options.max_turns == 50
    with pytest.raises(UsageError, match="nothing is trained"):
        configure(model, host, "", ["budget.env_steps=5"])

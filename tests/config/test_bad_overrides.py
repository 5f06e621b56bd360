"""Every mistake gets one line that names it and one that mends it (R32). Columns: overrides, the line, a part of the advice."""

from __future__ import annotations

import pytest

from tests.toys import toy_host
from threespo_bench.config.compose import compose
from threespo_bench.errors import BenchError, UsageError

BAD: list[tuple[str, str, str]] = [
    # slips in a key
    ("algorithm.group_siz=4", "unknown key 'algorithm.group_siz': the algorithm toy has no such option", "did you mean algorithm.group_size?"),
    ("algorthm.group_size=4", "unknown key 'algorthm.group_size'", "did you mean algorithm.group_size?"),
    ("algorthm.eps=1", "unknown key 'algorthm.eps'", "did you mean algorithm."),
    ("group_size=4", "unknown key 'group_size'", "did you mean algorithm.group_size?"),
    ("algorithm.learning_rat=1", "unknown key 'algorithm.learning_rat': the algorithm toy has no such option", "algorithm.optimization.learning_rate"),
    ("rollout.max_turn=3", "unknown key 'rollout.max_turn': the rollout hf has no such option", "did you mean rollout.max_turns?"),
    ("env.romms=3", "unknown key 'env.romms': the env household has no such option", "did you mean env.rooms?"),
    ("frobnicate=1", "unknown key 'frobnicate'", "known are algorithm, budget,"),
    ("hydra.run.dir=x", "unknown key 'hydra.run.dir'", "known are"),
    ("algorithm/group_size=3", "unknown key 'algorithm/group_size'", "did you mean algorithm.group_size?"),
    ("algorithm.frobnicate=1", "unknown key 'algorithm.frobnicate': the algorithm toy has no such option", "threespo-bench info toy"),
    # other names for a key
    ("3toy.group_size=4", "unknown key '3toy.group_size': options are addressed by what they belong to, not by name", "did you mean algorithm.group_size?"),
    ("household.rooms=4", "unknown key 'household.rooms': options are addressed by what they belong to, not by name", "did you mean env.rooms?"),
    ("lr=1e-4", "lr is called algorithm.optimization.learning_rate", "write algorithm.optimization.learning_rate=1e-4"),
    ("algorithm.group=4", "algorithm.group is called algorithm.group_size", "write algorithm.group_size=4"),
    ("algorithm.magic=4", "algorithm.magic was removed", "leave it out"),
    ("algorithm=bare", "algorithm=bare: the algorithm is not chosen by an override", "use --algo bare"),
    ("env=rooms", "env=rooms: the env is not chosen by an override", "use --env rooms"),
    ("budget=3", "budget=3: budget is a group of keys", "set one of them: budget.env_steps,"),
    # the form
    ("algorithm.group_size", "'algorithm.group_size' is no override: it has no '='", "write key=value"),
    ("=3", "'=3' is no override: it has no key", "write key=value"),
    ("seed = 3", "'seed = 3': no space may stand before '='", "write seed=3"),
    ("+seed=3", "'+seed=3': keys cannot be added or deleted, only set", "write seed=3"),
    ("~seed=3", "'~seed=3': keys cannot be added or deleted, only set", "write seed=3"),
    ("experiment=a=b", "'experiment=a=b': a value with '=' in it must be quoted", "write 'experiment=\"a=b\"'"),
    ("experiment=a#b", "'experiment=a#b': a value with '#' in it must be quoted", "write 'experiment=\"a#b\"'"),
    ("experiment=#", "'experiment=#': a value with '#' in it must be quoted", "write 'experiment=\"#\"'"),
    ("env.games=~x/games", "'env.games=~x/games': a value with '~' in it must be quoted", "write 'env.games=\"~x/games\"'"),
    ("experiment='a", '"experiment=\'a": the quotes of the value do not match', "write 'experiment=\"a\"'"),
    # several values
    ("algorithm.group_size=2,4", "'algorithm.group_size=2,4' gives several values, but a run has one", "threespo-bench compare"),
    ("seed=range(0,4)", "'seed=range(0,4)' gives several values, but a run has one", "threespo-bench compare"),
    ("engine=embedded,verl", "'engine=embedded,verl' gives several values, but a run has one", "threespo-bench compare"),
    # the value
    ("algorithm.group_size=four", "algorithm.group_size=four: must be of type int", "the default is algorithm.group_size=6"),
    ("algorithm.group_size=", "algorithm.group_size=: must be of type int", "the default is algorithm.group_size=6"),
    ("algorithm.group_size=null", "algorithm.group_size=null: must be of type int", "the default is algorithm.group_size=6"),
    ("algorithm.limit=x", "algorithm.limit=x: must be of type int or null", "the default is algorithm.limit=null"),
    ("seed=1.5", "seed=1.5: must be of type int", "the default is seed=0"),
    ("save_turns=maybe", "save_turns=maybe: must be of type bool", "the default is save_turns=false"),
    ("algorithm.words=x", "algorithm.words=x: must be of type list of str", "the default is algorithm.words=[a,b]"),
    ("algorithm.temperature=nan", "algorithm.temperature=nan is not a number", ""),
    ("algorithm.weights.a=nan", "algorithm.weights.a=nan is not a number", ""),
    ("experiment=${nope}", "the configuration cannot be resolved: Interpolation key 'nope' not found", ""),
    # the range
    ("algorithm.group_size=1", "algorithm.group_size=1 is out of range: must be >= 2", ""),
    ("algorithm.objective.clip_low=0", "algorithm.objective.clip_low=0.0 is out of range: must be in (0, 1]", ""),
    ("evaluation.episodes=0", "evaluation.episodes=0 is out of range: must be >= 1", ""),
    ("budget.env_steps=null", "the budget has no limit: the run would never end", "set budget.env_steps="),
    # the name of a plugin
    ("engine=embeded", "unknown engine 'embeded'", "did you mean embedded?"),
    ("tracker=mflow", "unknown tracker 'mflow'", "did you mean mlflow?"),
    ("model=household-tini", "unknown model 'household-tini'", "household-tiny"),
    ("model=/data/model", "model=/data/model is no registered name", "model.path=/data/model"),
    ("algorithm.preset=papr", "toy has no preset 'papr'", "did you mean paper?"),
]


@pytest.mark.parametrize(("override", "line", "advice"), BAD, ids=[row[0] for row in BAD])
def test_a_bad_override_is_explained(override: str, line: str, advice: str) -> None:
    with pytest.raises(UsageError) as refused:
        compose("toy", "household", [override], toy_host())
    assert str(refused.value) == line
    assert advice in refused.value.fix
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value) + refused.value.fix


@pytest.mark.parametrize(("algorithm", "env", "line"), [("ty", "household", "unknown algorithm 'ty'"), ("toy", "houshold", "unknown environment 'houshold'")])
def test_unknown_names(algorithm: str, env: str, line: str) -> None:
    with pytest.raises(BenchError, match=line):
        compose(algorithm, env, [], toy_host())


def test_a_later_mistake_is_found_behind_good_overrides() -> None:
    with pytest.raises(UsageError, match="seed=x: must be of type int"):
        compose("toy", "household", ["algorithm.group_size=4", "seed=x", "experiment=fine"], toy_host())

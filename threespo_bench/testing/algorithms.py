"""Does an algorithm keep its contract?"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from threespo_bench.contracts.algorithm import Algorithm, AlgorithmConfig, Credit
from threespo_bench.contracts.sampler import Sampler
from threespo_bench.errors import DataError
from threespo_bench.testing.batches import sample_turns
from threespo_bench.turns import TurnBatch, object_column

_TOKEN_FLOATS = ("old_log_probs", "rollout_log_probs", "ref_log_probs")
_COPIES = 4


def check_algorithm(
    algorithm: type[Algorithm],
    config: Any = None,
    turns: TurnBatch | None = None,
    *,
    relative: bool = False,
    scale: str | None = None,
    in_units_of_reward: Sequence[str] = (),
) -> None:
    """Check the declarations of an algorithm, and its credit and state on a batch.

    Args:
        algorithm: the class. config: an instance of its Config, by default the defaults.
        turns: the batch; by default :func:`sample_turns`, which has every column of a TurnBatch and no extras.
        relative: it compares the trajectories of a group with each other, so that equal ones must get exactly 0.
        scale: what becomes of the advantages if all rewards are multiplied by c: multiplied by c too (``scaled``), or the same (``unchanged``), up to
            the epsilon of a division; by default this is not checked. in_units_of_reward: columns that are multiplied with the rewards.

    Raises:
        AssertionError: says what is wrong.
        ValueError: the algorithm needs columns that the default batch does not have: give ``turns``; or ``scale`` is unknown.
    """
    if scale not in (None, "scaled", "unchanged"):
        raise ValueError(f"scale={scale!r} must be 'scaled', 'unchanged' or None")
    config = config if config is not None else algorithm.Config()
    turns = turns if turns is not None else sample_turns()
    _check_declarations(algorithm, config)
    lacking = [name for name in algorithm.requires if getattr(turns, name, None) is None and name not in turns.extras]
    if lacking:
        raise ValueError(f"{algorithm.__name__} needs the columns {', '.join(lacking)}: pass turns= with them")
    _check_credit(algorithm(config).credit(turns), turns)
    _check_pure(algorithm(config), turns)
    _check_masked_values(algorithm(config), turns)
    _check_masked_tokens(algorithm(config), turns)
    _check_row_order(algorithm(config), turns)
    _check_padding(algorithm(config), turns)
    _check_extreme_rewards(algorithm(config), turns)
    _check_missing_columns(algorithm, config, turns)
    _check_state(algorithm, config, turns)
    if relative:
        _check_equal_trajectories(algorithm(config), turns)
    if scale:
        _check_scale(algorithm(config), turns, scale, in_units_of_reward)


def _check_declarations(algorithm: type[Algorithm], config: Any) -> None:
    assert issubclass(algorithm, Algorithm), f"{algorithm.__name__} is no subclass of Algorithm"
    assert is_dataclass(algorithm.Config), f"{algorithm.__name__}.Config is no dataclass"
    assert issubclass(algorithm.Config, AlgorithmConfig), f"{algorithm.__name__}.Config is no subclass of AlgorithmConfig"
    assert isinstance(config, algorithm.Config), f"config is a {type(config).__name__}, not a {algorithm.Config.__name__}"
    for name in ("title", "source"):
        assert getattr(algorithm, name), f"{algorithm.__name__}.{name} is empty: `info` shows it"
    assert isinstance(algorithm.needs, frozenset), f"{algorithm.__name__}.needs is no frozenset"
    config.validate()
    assert isinstance(algorithm(config).sampler, Sampler), f"{algorithm.__name__} has no sampler"


def _check_credit(credit: Credit, turns: TurnBatch) -> None:
    advantages = credit.advantages
    assert isinstance(advantages, np.ndarray), "advantages are no array"
    assert advantages.dtype == np.float64, f"advantages are {advantages.dtype}, not float64"
    assert advantages.shape == turns.response_mask.shape, f"advantages have shape {advantages.shape}, expected {turns.response_mask.shape}"
    assert np.isfinite(advantages).all(), "an advantage is not finite"
    assert (advantages[~turns.response_mask] == 0).all(), "an advantage under a false response mask is not 0"
    if credit.selected is not None:
        assert credit.selected.dtype == bool, "selected is not boolean"
        assert credit.selected.shape == (len(turns),), f"selected has shape {credit.selected.shape}, expected {(len(turns),)}"
        assert not credit.selected[~turns.real].any(), "a padding row is selected"
    if credit.selected_tokens is not None:
        assert credit.selected_tokens.dtype == bool, "selected_tokens is not boolean"
        shape = turns.response_mask.shape
        assert credit.selected_tokens.shape == shape, f"selected_tokens has shape {credit.selected_tokens.shape}, expected {shape}"
        assert not credit.selected_tokens[~turns.response_mask].any(), "a token under a false response mask is selected"
        assert not credit.selected_tokens[~turns.real].any(), "a token of a padding row is selected"
    _check_targets(credit, turns)
    _check_preferences(credit, turns)
    for name, value in credit.diagnostics.items():
        assert np.isscalar(value), f"diagnostic {name} is no scalar"
        assert np.isfinite(value), f"diagnostic {name} is {value!r}"


def _check_targets(credit: Credit, turns: TurnBatch) -> None:
    number, shape = (len(turns),), turns.response_mask.shape
    for name, allowed in (("returns", (number, shape)), ("action_returns", (number,))):
        targets = getattr(credit, name)
        if targets is not None:
            assert targets.shape in allowed, f"{name} has shape {targets.shape}, expected {' or '.join(map(str, allowed))}"
            counted = turns.real if targets.ndim == 1 else turns.response_mask & turns.real[:, None]
            assert np.isfinite(targets[counted]).all(), f"a value of {name} is not finite"


def _check_preferences(credit: Credit, turns: TurnBatch) -> None:
    if credit.preferences is None:
        return
    chosen, rejected = credit.preferences.chosen, credit.preferences.rejected
    if credit.preferences.paired:
        assert len(chosen) == len(rejected), f"preferences have {len(chosen)} chosen and {len(rejected)} rejected items, but are paired"
    for item in (*chosen, *rejected):
        assert len(item.rows) == len(item.weights), f"an item of the preferences has {len(item.rows)} rows and {len(item.weights)} weights"
        assert np.isfinite(item.weights).all(), "a weight in the preferences is not finite"
        assert ((item.rows >= 0) & (item.rows < len(turns))).all(), f"an item of the preferences has a row that the batch of {len(turns)} does not have"
        assert turns.real[item.rows].all(), "a padding row is in the preferences"


def _check_pure(algorithm: Algorithm, turns: TurnBatch) -> None:
    before, state = pickle.dumps(turns), pickle.dumps(algorithm.state_dict())
    first = algorithm.credit(turns)
    assert pickle.dumps(turns) == before, "credit() changed the batch"
    assert np.array_equal(first.advantages, algorithm.credit(turns).advantages), "two calls of credit() differ"
    assert pickle.dumps(algorithm.state_dict()) == state, "credit() changed the algorithm's state"


def _check_masked_values(algorithm: Algorithm, turns: TurnBatch) -> None:
    spoilt = copy.deepcopy(turns)
    for name in _TOKEN_FLOATS:
        column = getattr(spoilt, name)
        if column is not None:
            column[~spoilt.response_mask] = np.nan
    assert _equal(algorithm.credit(turns), algorithm.credit(spoilt)), "a value under a false response mask changed an advantage"


def _check_masked_tokens(algorithm: Algorithm, turns: TurnBatch) -> None:
    known = {field.name: getattr(turns, field.name) for field in fields(TurnBatch) if field.name != "extras"}
    filling = {"response_mask": False, "response_ids": 0}
    columns: dict[str, Any] = {name: _with_gap(column, filling.get(name, np.nan)) for name, column in known.items() if column is not None and column.ndim == 2}
    wide, narrow = algorithm.credit(replace(turns, **columns)).advantages, algorithm.credit(turns).advantages
    kept = np.delete(wide, [1, 2], axis=1)
    assert np.allclose(kept, narrow, rtol=0, atol=1e-12), "tokens under a false response mask, inserted between those of the policy, changed an advantage"
    assert (wide[:, 1:3] == 0).all(), "an inserted token under a false response mask has an advantage"


def _with_gap(column: np.ndarray, value: Any) -> np.ndarray:
    """The (N, T) column with two more places after the first."""
    return np.concatenate([column[:, :1], np.full((len(column), 2), value, column.dtype), column[:, 1:]], axis=1)


def _check_row_order(algorithm: Algorithm, turns: TurnBatch) -> None:
    order = np.random.default_rng(1).permutation(len(turns))
    straight, shuffled = algorithm.credit(turns).advantages, algorithm.credit(turns.take(order)).advantages
    assert np.allclose(straight[order], shuffled, rtol=0, atol=1e-12), "the order of the rows changed an advantage (time is step_id)"


def _check_padding(algorithm: Algorithm, turns: TurnBatch) -> None:
    number = len(turns)
    padded = turns.take(np.concatenate([np.arange(number), np.zeros(3, int)]))
    padded = replace(padded, padding=np.arange(number + 3) >= number, step_reward=np.where(np.arange(number + 3) >= number, 1e6, padded.step_reward))
    credit = algorithm.credit(padded)
    _check_credit(credit, padded)
    assert np.allclose(credit.advantages[:number], algorithm.credit(turns).advantages, rtol=0, atol=1e-12), "padding rows changed an advantage"
    assert (credit.advantages[number:] == 0).all(), "a padding row has an advantage"


def _check_extreme_rewards(algorithm: Algorithm, turns: TurnBatch) -> None:
    for size in (1e9, 1e-9):
        extreme = replace(turns, step_reward=turns.step_reward * size, extras=dict(turns.extras))
        try:
            advantages = algorithm.credit(extreme).advantages
        except DataError:
            continue  # to refuse them is as good
        assert np.isfinite(advantages).all(), f"an advantage is not finite if rewards are {size:g} times as large"


def _check_equal_trajectories(algorithm: Algorithm, turns: TurnBatch) -> None:
    equal = equal_trajectories(turns)
    credit = algorithm.credit(equal)
    assert (credit.advantages == 0).all(), "trajectories of a group that are all the same have advantages that are not exactly 0"
    assert credit.preferences is None or not credit.preferences.chosen, "of trajectories that are all the same one is preferred"


def equal_trajectories(turns: TurnBatch, copies: int = _COPIES) -> TurnBatch:
    """Of each group one trajectory, several times. It returns to no state, and its actions are valid: turns of one trajectory can be compared too."""
    owner = turns.codes("traj_id")
    of_group: dict[Any, int] = {}
    for row in np.flatnonzero(turns.real):
        of_group.setdefault(turns.group_id[row], owner[row])
    one = turns.take(np.flatnonzero(np.isin(owner, list(of_group.values())) & turns.real))
    columns: dict[str, Any] = {}
    if one.anchor_obs is not None:
        columns["anchor_obs"] = object_column([f"state {step}" for step in one.step_id])
    if one.action_valid is not None:
        columns["action_valid"] = np.ones(len(one), bool)
    whole = replace(one, **columns).take(np.tile(np.arange(len(one)), copies))
    branch = np.repeat(np.arange(copies), len(one))
    return replace(whole, traj_id=object_column([f"{group}/{number}" for group, number in zip(whole.group_id, branch, strict=True)]))


def _check_scale(algorithm: Algorithm, turns: TurnBatch, scale: str, in_units_of_reward: Sequence[str]) -> None:
    valid = turns if turns.action_valid is None else replace(turns, action_valid=np.ones(len(turns), bool))  # penalties do not scale
    expected = algorithm.credit(valid).advantages
    for factor in (0.5, 100.0):
        extras = {name: column * factor if name in in_units_of_reward else column for name, column in valid.extras.items()}
        columns = {name: getattr(valid, name) * factor for name in ("step_reward", *in_units_of_reward) if name not in extras}
        found = algorithm.credit(replace(valid, **columns, extras=extras)).advantages
        size = factor if scale == "scaled" else 1.0
        same = np.allclose(found, expected * size, rtol=1e-4, atol=1e-4 * size)  # not exactly: an epsilon may be added to a deviation
        assert same, f"the advantages are not {scale} if all rewards are multiplied by {factor:g}"


def _check_missing_columns(algorithm: type[Algorithm], config: Any, turns: TurnBatch) -> None:
    for name in algorithm.requires:
        lacking = copy.deepcopy(turns)
        if name in lacking.extras:
            del lacking.extras[name]
        elif name in {field.name for field in fields(TurnBatch)}:
            setattr(lacking, name, None)
        try:
            algorithm(config).credit(lacking)
        except DataError as error:
            assert name in str(error), f"without the column {name} the message is {str(error)!r}, which does not name it"
        else:
            raise AssertionError(f"credit() does without the column {name}, which `requires` lists; call turns.require(self.requires, name)")


def _check_state(algorithm: type[Algorithm], config: Any, turns: TurnBatch) -> None:
    first, second = algorithm(config), algorithm(config)
    first.observe(turns, lambda batch: np.where(batch.response_mask, -1.0, 0.0))
    state = first.state_dict()
    _check_plain(state, "state_dict()")
    second.load_state_dict(copy.deepcopy(state))
    assert _same(second.state_dict(), state), "state_dict() differs after load_state_dict()"
    assert _equal(first.credit(turns), second.credit(turns)), "credit() differs after load_state_dict()"
    for name, value in first.diagnostics().items():
        assert np.isscalar(value), f"diagnostic {name} is no scalar"


def _check_plain(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            assert isinstance(key, str), f"{where} has the key {key!r}, which is no string"
            _check_plain(item, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_plain(item, where)
    else:
        good = value is None or isinstance(value, (str, int, float, bool, np.ndarray, np.generic))
        assert good, f"{where} holds a {type(value).__name__}: only JSON types and NumPy arrays can be saved"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


def _equal(one: Credit, other: Credit) -> bool:
    return np.array_equal(one.advantages, other.advantages)

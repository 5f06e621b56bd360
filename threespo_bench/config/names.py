"""The override keys of a run: which there are, what somebody meant who wrote another, and what old keys are called now."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from threespo_bench.config.options import Option
from threespo_bench.errors import UsageError

# Keys that were renamed (or are called so elsewhere) and what they are called here. An empty value means that nothing replaces the key.
# A plugin's Config class can have such a mapping of its own options as the class variable ``renamed``.
RENAMED: dict[str, str] = {
    "lr": "algorithm.optimization.learning_rate",
    "algorithm.lr": "algorithm.optimization.learning_rate",
    "algorithm.learning_rate": "algorithm.optimization.learning_rate",
    "steps": "budget.env_steps",
    "total_steps": "budget.env_steps",
    "output_dir": "out",
    "model_path": "model.path",
}

CHOSEN_BY_OPTION = {"algorithm": "--algo", "algo": "--algo", "env": "--env", "environment": "--env"}
CHOSEN_BY_OVERRIDE = ("engine", "rollout", "tracker", "model")


class Keys:
    """The keys of one run.

    Args:
        options: all options by key.
        owners: by section (``algorithm``, ``env`` ...), the name of the plugin whose options it holds.
        contributions: every name and alias of a plugin, with the section that holds its options when it is chosen.
        renamed: old keys and their present names, beside :data:`RENAMED`.
    """

    def __init__(
        self, options: Mapping[str, Option], owners: Mapping[str, str], contributions: Mapping[str, str], renamed: Mapping[str, str] | None = None
    ) -> None:
        self.options = options
        self._owners, self._contributions = owners, contributions
        self._renamed = {**RENAMED, **(renamed or {})}
        self.sections = {key.rsplit(".", depth)[0] for key in options for depth in range(1, key.count(".") + 1)}

    def find(self, key: str, text: str) -> Option:
        """The option that ``key`` names, or the mapping it is an entry of. ``text`` is the whole override.

        Raises:
            UsageError: there is none; says what was probably meant.
        """
        option = self.options.get(key)
        if option is not None:
            return option
        parent = self.options.get(key.rpartition(".")[0])
        if parent is not None and parent.open:
            return parent
        raise self._unknown(key, text)

    def _unknown(self, key: str, text: str) -> UsageError:
        value = text.partition("=")[2]
        head, _, rest = key.partition(".")
        if head == "launcher" and head not in self._owners:
            return UsageError(f"{text}: a launcher carries out the runs of a comparison, it is no setting of a run", fix="set it for threespo-bench compare")
        if key in CHOSEN_BY_OPTION:
            return UsageError(f"{text}: the {key} is not chosen by an override", fix=f"use {CHOSEN_BY_OPTION[key]} {value}")
        if key in self._renamed:
            new = self._renamed[key]
            return UsageError(f"{key} is called {new}" if new else f"{key} was removed", fix=f"write {new}={value}" if new else "leave it out")
        if key in self.sections:
            inside = [known for known in self.options if known.startswith(f"{key}.")]
            return UsageError(f"{text}: {key} is a group of keys", fix=f"set one of them: {_some(inside)}")
        if rest and head in self._contributions and head not in self._owners:
            section = self._contributions[head]
            return UsageError(f"unknown key {key!r}: options are addressed by what they belong to, not by name", fix=f"did you mean {section}.{rest}?")
        return self._unknown_option(key, head)

    def _unknown_option(self, key: str, head: str) -> UsageError:
        owner = self._owners.get(head)
        if owner:
            message = f"unknown key {key!r}: the {head} {owner} has no such option"
            return UsageError(message, fix=_did_you_mean(self._similar(key, head)) or f"threespo-bench info {owner} lists its options")
        heads = {known.partition(".")[0] for known in self.sections}
        meant = get_close_matches(head, heads, n=1, cutoff=0.75) if "." in key else []
        if meant:
            corrected = meant[0] + key[len(head) :]
            similar = [corrected] if corrected in self.options else self._similar(corrected, meant[0]) or [f"{meant[0]}.*"]
            return UsageError(f"unknown key {key!r}", fix=_did_you_mean(similar))
        top_level = sorted(heads | {known for known in self.options if "." not in known} | set(CHOSEN_BY_OVERRIDE))
        return UsageError(f"unknown key {key!r}", fix=_did_you_mean(_close(key, self.options)) or f"known are {', '.join(top_level)}")

    def _similar(self, key: str, head: str) -> list[str]:
        local = {known: option for known, option in self.options.items() if known.startswith(f"{head}.")}
        return _close(key, local) or _close(key, self.options)


def _close(key: str, known: Mapping[str, Option]) -> list[str]:
    """Keys whose last part is the same, else keys that look like it as a whole, else keys whose last part looks like it."""
    last = key.rpartition(".")[2]
    same = [name for name in known if name.rpartition(".")[2] == last]
    whole = get_close_matches(key, known, n=2, cutoff=0.75)
    if same or whole:
        return (same + [name for name in whole if name not in same])[:3]
    parts = get_close_matches(last, {name.rpartition(".")[2] for name in known}, n=2, cutoff=0.6)
    return [name for name in known if name.rpartition(".")[2] in parts][:3]


def _did_you_mean(close: list[str]) -> str:
    return f"did you mean {' or '.join(close)}?" if close else ""


def _some(names: list[str], limit: int = 6) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")

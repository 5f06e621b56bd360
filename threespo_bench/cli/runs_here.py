"""The part of ``doctor`` about choices: which engines and rollouts can run here, which extras are installed, and how to have the others."""

from __future__ import annotations

from pathlib import Path

from threespo_bench.cli.installation import DISTRIBUTION, extras, lack, lacks, requirements
from threespo_bench.cli.output import console, say, table
from threespo_bench.errors import BenchError
from threespo_bench.host import KINDS, Contribution, PluginHost, one_line

_DEVELOPERS = "dev"


def print_what_runs(host: PluginHost, *, damaged: bool) -> str:
    """Print both tables.

    Returns:
        how many engines and rollouts cannot run here, as a line; empty if all can.
    """
    answers = {_name(contribution): _answer(contribution, host) for kind in ("engines", "rollouts") for contribution in host.all(kind).values()}
    shown = table("engine or rollout", "can it run here, with its defaults")
    for name, (problem, fix) in answers.items():
        yes = "yes, once the problems below are mended" if damaged else "yes"
        shown.add_row(name, f"no: {problem}" + (f"\nto have it: {fix}" if fix else "") if problem else yes)
    console().print(shown)
    say()
    _print_extras(host, answers)
    without = sum(bool(problem) for problem, _ in answers.values())
    return f"{without} of {len(answers)} engines and rollouts cannot run here: the table above says why, and how to have them if wanted" if without else ""


def _answer(contribution: Contribution, host: PluginHost) -> tuple[str, str]:
    """What keeps an engine or rollout from running here and what to do about it, in the words of ``run``; two empty texts if nothing does."""
    from threespo_bench.contracts.rollout import OwnSampling, Rollout

    own = [Rollout("hf", OwnSampling.Config(), OwnSampling)] if contribution.kind == "engines" else []
    try:
        target = contribution.load()
        check = getattr(target, "check", None)
        if check is not None:
            check(target.Config(), _model_folder(host), *own)
    except BenchError as error:
        return str(error), error.fix
    except Exception as error:  # a plugin's check can fail in any way; the others are shown all the same
        return f"its check failed: {one_line(error)}", ""
    return "", ""


def _model_folder(host: PluginHost) -> Path:
    """A model that came with a plugin and needs no extra."""
    for model in host.all("models").values():
        if not model.entry.extra:
            return Path(model.load()())
    raise BenchError("no plugin has a model to try it with")


def _print_extras(host: PluginHost, answers: dict[str, tuple[str, str]]) -> None:
    shown = table("optional extra", "for", "installed")
    for owner, extra in _extras(host):
        users = [
            contribution
            for kind in KINDS
            for contribution in host.all(kind).values()
            if contribution.owner == owner and (contribution.entry.extra == extra or (not contribution.entry.extra and contribution.name == extra))
        ]
        unmet = [requirement for requirement in requirements(owner, extra) if lack(requirement)]
        command = f"pip install '{owner}[{extra}]'"
        state = f"no: {lacks(unmet)}\n{_advice(users, command, answers)}" if unmet else "yes"
        shown.add_row(extra, ", ".join(map(_name, users)), state)
    if shown.row_count:
        console().print(shown)
        say()


def _advice(users: list[Contribution], command: str, answers: dict[str, tuple[str, str]]) -> str:
    """The command that installs an extra, after what its users advise themselves, since ``run`` says the same."""
    for user in users:
        name = _name(user)
        problem, fix = answers.get(name, ("", ""))
        if name in answers and not problem:
            return f"not needed here, {name} can run; the extra: {command}"
        own = f"see {name} above" if fix else _advice_of_model(user)
        if own:
            return f"to have it: {own}\nthe extra alone: {command}"
    return f"to have it: {command}"


def _extras(host: PluginHost) -> list[tuple[str, str]]:
    """Owner and name of all our extras for users, and of those that other distributions' contributions name."""
    named = [(contribution.owner, contribution.entry.extra) for kind in KINDS for contribution in host.all(kind).values() if contribution.entry.extra]
    return list(dict.fromkeys([(DISTRIBUTION, extra) for extra in extras() if extra != _DEVELOPERS] + named))


def _advice_of_model(contribution: Contribution) -> str:
    """What a model that lacks its extra says when it is asked for: without it, there is nothing heavy that it could do."""
    if contribution.kind != "models":
        return ""
    try:
        contribution.load()()
    except BenchError as error:
        return error.fix
    except Exception:  # loading everything reports it
        return ""
    return ""


def _name(contribution: Contribution) -> str:
    return f"{KINDS[contribution.kind].singular} {contribution.name}"

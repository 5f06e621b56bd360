"""Who may import whom (the contracts are in pyproject.toml)."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.packaging.conftest import ROOT, run


def test_the_dependency_rule_holds() -> None:
    done = run([Path(sys.executable).parent / "lint-imports", "--no-cache"], cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_every_module_has_a_docstring_and_is_short() -> None:
    import ast

    folders = ["threespo_bench", "algorithms", "envs", "plugins", "reports"]
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert not text or ast.get_docstring(ast.parse(text)), f"{path} has no docstring"
        assert text.count("\n") <= 400, f"{path} has more than 400 lines"

"""Source code of plugins for tests that install distributions."""

from __future__ import annotations

HEADER = """
from threespo_bench.contracts.entries import AlgorithmEntry, EnvironmentEntry
from threespo_bench.hookspecs import hookimpl
"""


def algorithm(name: str, *, aliases: str = "()", target: str = "tests.toys:ToyAlgorithm") -> str:
    """A plugin that registers one algorithm."""
    return f"""{HEADER}
@hookimpl
def threespo_algorithms():
    return [AlgorithmEntry({name!r}, {target!r}, "a toy", {aliases})]
"""


BROKEN = {
    "missing-dependency": "import a_library_that_nobody_has\n",
    "raises-at-import": "raise RuntimeError('no licence file')\n",
    "exits-at-import": "import sys\nsys.exit('go away')\n",
    "raises-in-hook": HEADER + "@hookimpl\ndef threespo_algorithms():\n    raise KeyError('tables')\n",
    "wrong-entries": HEADER
    + "@hookimpl\ndef threespo_algorithms():\n    return ['just a name', AlgorithmEntry('3x', 'a:b', 's'), AlgorithmEntry('ok_one', 'a:b', 's')]\n",
    "syntax-error": "def broken(:\n",
    "wrong-signature": HEADER + "@hookimpl\ndef threespo_algorithms(registry):\n    return []\n",
}
"""Every way for a plugin to be broken, by the name of its distribution."""

"""What the tests of ``threespo-bench credit`` share: the worked example's numbers, and ways to write a file, run the command and read its answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

GOLDEN = {  # worked by hand from the formulas, for the example batch
    "gigpo@reference": [2.707589, 2.362242, 1.207589, -1.220697, -1.326374, -1.220697, -1.220697, -1.288955],
    "gigpo@reference_mean": [13.031250, 12.629167, 6.262500, -5.993750, -7.070833, -5.993750, -5.993750, -6.870833],
    "grpo@reference": [1.207589, 1.207589, 1.207589, -0.720697, -0.739980, -0.720697, -0.720697, -0.720697],
    "grpo": [1.154700, 1.154700, 1.154700, -0.577350, -0.677350, -0.577350, -0.577350, -0.577350],
}
Run = Callable[..., tuple[int, str, str]]


def bench(*arguments: Any, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "threespo_bench", "credit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1", **variables})


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)

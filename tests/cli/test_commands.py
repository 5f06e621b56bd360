"""The commands as a user meets them: real processes, their output and their exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from threespo_bench import __version__, errors
from threespo_bench.cli.app import EXIT_CODES

ROOT = Path(__file__).parents[2]


def bench(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    command = [sys.executable, "-m", "threespo_bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, env={**os.environ, **variables})


def test_help_names_every_command_and_exit_code() -> None:
    done = bench("--help")
    assert done.returncode == 0
    for command in ("run", "compare", "report", "list", "info", "warm-start", "doctor"):
        assert command in done.stdout
    for code in EXIT_CODES:
        assert str(code) in done.stdout


@pytest.mark.parametrize("command", ["run", "compare", "report", "list", "info", "warm-start", "doctor"])
def test_every_command_explains_itself(command: str) -> None:
    done = bench(command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_the_exit_codes_are_those_of_the_errors() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.BenchError)]
    assert {kind.exit_code for kind in kinds} | {0} == set(EXIT_CODES)


def test_version() -> None:
    assert bench("--version").stdout == f"threespo-bench {__version__}\n"


def test_list() -> None:
    done = bench("list")
    assert done.returncode == 0
    assert not done.stderr
    for word in (
        "threespo, 3spo",
        "gigpo",
        "grpo",
        "household",
        "alfworld",
        "embedded",
        "webshop",
        "household_tiny, household-tiny",
        "webshop_tiny, webshop-tiny",
        "mlflow",
        f"threespo-bench {__version__}",
    ):
        assert word in done.stdout


def test_list_as_data() -> None:
    listed = json.loads(bench("list", "--json").stdout)
    assert listed["algorithms"][0].keys() >= {"name", "aliases", "summary", "distribution", "version", "missing"}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["list"], ["list", "--json"], ["run", "--help"], ["run", "--algo", "gropo"], ["compare", "--help"]]
)
def test_light_commands_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom threespo_bench.cli.app import run_cli\nrun_cli(sys.argv[1:])\n"
        "print('HEAVY', sorted({'torch', 'transformers', 'mlflow', 'pandas', 'pyarrow', 'matplotlib', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "HEAVY []", done.stderr


def test_listing_takes_little_longer_than_python_itself() -> None:
    def fastest(command: list[str]) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run(command, capture_output=True, timeout=120, check=True)
            times.append(time.perf_counter() - start)
        return min(times)

    yardstick = fastest([sys.executable, "-c", "import rich_click, rich.table, pluggy, importlib.metadata"])
    assert fastest([sys.executable, "-m", "threespo_bench", "list"]) < 4 * yardstick


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grpo", ["arXiv:2402.03300", "algorithm.group_size", "algorithm.optimization.learning_rate", "rollouts per task", "presets", "dr_grpo"]),
        ("3spo", ["arXiv:2606.09961", "needs", "restore", "paper", "threespo (used unless another is named)", "algorithm.max_samples"]),
        ("alfworld", ["env.games", "env.template", "by snapshots"]),
        ("embedded", ["engine.device", "offers", "reference"]),
        ("webshop", ["env.products", "env.reward", "by snapshots"]),
        ("household-tiny", ["model=household_tiny", "made for", "env=household"]),
        ("mlflow", ["tracker."]),
        ("run", ["budget.env_steps", "evaluation.episodes", "seed"]),
    ],
)
def test_info(name: str, words: list[str]) -> None:
    done = bench("info", name)
    assert done.returncode == 0, done.stderr
    for word in words:
        assert word in done.stdout


def test_info_of_a_preset() -> None:
    assert "-1" not in bench("info", "grpo").stderr
    done = bench("info", "3spo", "--preset", "paper")
    line = next(line for line in done.stdout.splitlines() if line.startswith("algorithm.alpha "))
    assert "50.0" in line
    assert bench("info", "3spo", "--preset", "papre").returncode == 2


BAD = [
    (["run", "--algo", "3sop"], 2, "unknown algorithm '3sop'", "3spo"),
    (["run", "--algo", "grpo", "--env", "alfwrld"], 2, "unknown environment 'alfwrld'", "did you mean alfworld?"),
    (["run"], 2, "no algorithm was named", "--algo"),
    (["run", "--algo", "grpo", "algorithm.group_siz=4"], 2, "unknown key 'algorithm.group_siz'", "did you mean algorithm.group_size?"),
    (["run", "--algo", "grpo", "--set", "algorithm.group_size=1"], 2, "algorithm.group_size=1 is out of range", "algorithm.group_size=8"),
    (["run", "--algo", "grpo", "algorithm.group_size=2,4"], 2, "gives several values", "compare"),
    (["run", "--algo", "3spo", "3spo.alpha=1"], 2, "unknown key '3spo.alpha'", "did you mean algorithm.alpha?"),
    (["run", "--algo", "grpo", "group_size"], 2, "has no '='", "key=value"),
    (["run", "--algo", "3spo", "algorithm.search_key=sate"], 2, "algorithm.search_key=sate, but environment household has", "algorithm.search_key=state"),
    (["run", "--resume", "nowhere"], 6, "nowhere is not a run folder", ""),
    (["run", "--resume", "x", "--algo", "grpo"], 2, "--algo cannot be combined with --resume", "budget."),
    (["run", "--resume", "x", "seed=3"], 2, "only budget.* can be changed", ""),
    (["run", "--resume", "x", "budget.env_steps=1.5"], 2, "must be a whole number", ""),
    (["info", "3sp"], 2, "nothing is called '3sp'", "3spo"),
    (["report", "nowhere"], 4, "", ""),
]


@pytest.mark.parametrize(("arguments", "code", "line", "fix"), BAD, ids=[" ".join(row[0]) for row in BAD])
def test_bad_input_gets_a_line_and_an_exit_code(arguments: list[str], code: int, line: str, fix: str, tmp_path: Path) -> None:
    done = bench(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert line in done.stderr
    assert fix in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) <= 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["runn"], "Did you mean 'run'?"), (["run", "--agol", "x"], "--algo"), (["run", "--seed", "-1"], "--seed"), (["run", "--seed", "x"], "--seed")],
)
def test_click_refuses_with_2(arguments: list[str], words: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_dry_run_prints_the_configuration_and_starts_nothing(tmp_path: Path, base: Path) -> None:
    model = tmp_path / "model"
    model.symlink_to(base)
    done = bench("run", "--algo", "3spo", "--dry-run", "--seed", "4", f"model.path={model}", "budget.tokens=1e4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load(done.stdout)
    assert (config["algorithm"]["name"], config["seed"], config["budget"]["tokens"], config["budget"]["env_steps"]) == ("threespo", 4, 10_000, None)
    assert "nothing was started" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_dry_run_without_the_model_folder(tmp_path: Path) -> None:
    done = bench("run", "--algo", "grpo", "--dry-run", "model.path=gone", cwd=tmp_path)
    assert done.returncode == 4
    assert "cannot run here: " in done.stderr and "model folder gone" in done.stderr


@pytest.mark.skipif(find_spec("verl") is not None, reason="verl is installed here")
def test_a_dry_run_shows_the_plan_where_it_cannot_be_carried_out(tmp_path: Path) -> None:
    done = bench("run", "--algo", "grpo", "--dry-run", "engine=verl", "engine.ranks=4", cwd=tmp_path)
    assert done.returncode == 5
    assert yaml.safe_load(done.stdout)["engine"]["options"]["ranks"] == 4
    assert "training tasks" in done.stderr and "would run in runs/default/grpo-household-seed0" in done.stderr
    assert "error: cannot run here: engine=verl needs verl" in done.stderr and "fix: make an environment" in done.stderr
    recipe = ROOT / "recipes" / "alfworld_qwen2.5_1.5b.yaml"
    done = bench("compare", str(recipe), "--dry-run", cwd=tmp_path, ALFWORLD_DATA="")
    assert done.returncode == 5 and "gigpo-alfworld-seed2" in done.stdout and "18 to run" in done.stdout
    assert "warning: also lacking here: no ALFWorld games" in done.stderr and "error: cannot run here: engine=verl needs verl" in done.stderr
    done = bench("compare", "--algo", "grpo", "engine=verl", "--launcher", "slurm", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0 and "3 to run" in done.stdout
    assert "warning: not here, but perhaps where the runs go: engine=verl needs verl" in done.stderr
    assert bench("run", "--algo", "grpo", "--dry-run", "engine=verl", "engine.ranks=0", cwd=tmp_path).returncode == 2
    assert not list(tmp_path.iterdir())


def test_a_comparison_s_dry_run_without_the_model_folder(tmp_path: Path) -> None:
    done = bench("compare", "--algo", "grpo", "--dry-run", "model.path=gone", cwd=tmp_path)
    assert done.returncode == 4 and "3 to run" in done.stdout
    assert "cannot run here: " in done.stderr and "model folder gone" in done.stderr


def test_the_environment_of_a_named_model(tmp_path: Path) -> None:
    def environment(*arguments: str) -> str:
        done = bench("run", "--algo", "grpo", "--dry-run", *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return yaml.safe_load(done.stdout)["env"]["name"] + (" with a warning" if "unknown to it" in done.stderr else "")

    assert environment("model=webshop-tiny") == "webshop"
    assert environment("model=webshop-tiny", "--env", "household") == "household with a warning"
    assert environment() == "household"
    done = bench("compare", "--algo", "grpo", "--algo", "rloo", "model=webshop-tiny", "--dry-run", cwd=tmp_path)
    assert "rloo-webshop-seed2" in done.stdout and "runs/grpo-rloo-webshop" in done.stderr


def test_an_unexpected_failure_writes_its_traceback_to_a_file(tmp_path: Path) -> None:
    code = "import sys\nfrom threespo_bench.cli import app, listing\nlisting.load_host = lambda context: 1 / 0\nsys.exit(app.run_cli(['list']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "Traceback" not in done.stderr
    written = next(tmp_path.glob("threespo-bench-*.log"))
    assert str(written) in done.stderr
    assert "ZeroDivisionError: division by zero" in written.read_text()
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ, "THREESPO_BENCH_DEBUG": "1"})
    assert shown.returncode == 1
    assert "Traceback" in shown.stderr


@pytest.mark.parametrize(
    ("raised", "code", "words"), [("KeyboardInterrupt()", 130, "interrupted"), ("OSError(28, 'No space left on device', 'x')", 6, "the disk is full")]
)
def test_interrupts_and_full_disks_have_their_codes(raised: str, code: int, words: str) -> None:
    program = (
        f"import sys\nfrom threespo_bench.cli import app, listing\ndef stop(context): raise {raised}\nlisting.load_host = stop\nsys.exit(app.run_cli(['list']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(f"{sys.executable} -m threespo_bench info grpo | head -1", shell=True, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr

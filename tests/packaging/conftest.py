"""Built wheels and a fresh virtual environment to install them into, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MIRROR = ROOT / "plugins" / "examples" / "threespo-bench-mirror"
OWN = ("threespo", "_threespo", "__editable__")


def run(command: list[str | Path], **more: object) -> subprocess.CompletedProcess[str]:
    """Run a command and return what it printed; PYTHONPATH and the like do not reach it."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, env=environment, **more)  # type: ignore[call-overload]


def build_wheel(project: Path, out: Path) -> Path:
    """Build with the hatchling that is installed here."""
    done = run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, project])
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this project."""
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def mirror_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the example plugin."""
    return build_wheel(MIRROR, tmp_path_factory.mktemp("mirror"))


class FreshEnvironment:
    """A virtual environment with the dependencies of this one (as links) and nothing of this project."""

    def __init__(self, folder: Path) -> None:
        done = run([sys.executable, "-m", "venv", "--without-pip", folder])
        assert done.returncode == 0, done.stderr
        self.python = folder / "bin" / "python"
        self.site = Path(run([self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).stdout.strip())
        for item in Path(sysconfig.get_path("purelib")).iterdir():
            if not item.name.startswith(OWN) and not item.name.endswith(".pth"):
                (self.site / item.name).symlink_to(item)
        self._before = {item.name for item in self.site.iterdir()}

    def install(self, *what: Path, editable: bool = False) -> None:
        """pip install, without dependencies and without a network."""
        options = ["--no-build-isolation", "-e"] if editable else []
        done = run([sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-deps", "--no-index", *options, *what])
        assert done.returncode == 0, done.stdout + done.stderr

    def added(self) -> set[str]:
        """What installations have put into site-packages."""
        return {item.name for item in self.site.iterdir()} - self._before

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the installed console script in a folder outside the source tree."""
        return run([self.python.parent / "threespo-bench", *arguments], cwd=self.python.parent)


@pytest.fixture
def fresh_environment(tmp_path: Path) -> Callable[[], FreshEnvironment]:
    """Make a fresh environment."""
    numbers = iter(range(100))
    return lambda: FreshEnvironment(tmp_path / f"venv{next(numbers)}")

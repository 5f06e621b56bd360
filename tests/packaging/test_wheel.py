"""What is in the wheel, and that it works where nothing else of this project is."""

from __future__ import annotations

import configparser
import json
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

from tests.packaging.conftest import ROOT, FreshEnvironment
from threespo_bench import __version__

PACKAGES = {
    "threespo_bench": ROOT / "threespo_bench",
    "threespo_algorithms": ROOT / "algorithms" / "threespo_algorithms",
    "threespo_envs": ROOT / "envs" / "threespo_envs",
    "threespo_plugins": ROOT / "plugins" / "threespo_plugins",
    "threespo_reports": ROOT / "reports" / "threespo_reports",
}


def test_the_top_level_names_are_exactly_ours(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {*PACKAGES, f"threespo_bench-{__version__}.dist-info"}


def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and not any(part == "__pycache__" or part.startswith(".") for part in path.relative_to(folder).parts)
    }
    assert expected <= names
    assert "threespo_bench/conf/config.yaml" in names
    assert "threespo_bench/cli/templates/slurm_job.sh.j2" in names
    assert "threespo_algorithms/threespo.yaml" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = f"threespo_bench-{__version__}.dist-info"
    points = configparser.ConfigParser()
    points.read_string(archive.read(f"{info}/entry_points.txt").decode())
    assert dict(points["threespo_bench"]) == {
        "algorithms": "threespo_algorithms",
        "envs": "threespo_envs",
        "plugins": "threespo_plugins",
        "reports": "threespo_reports",
    }
    assert dict(points["console_scripts"]) == {"threespo-bench": "threespo_bench.cli:main"}
    metadata = archive.read(f"{info}/METADATA").decode()
    assert "Requires-Python: >=3.11" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert f"{info}/licenses/LICENSE" in archive.namelist()


def test_the_base_installation_is_light() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = " ".join(project["dependencies"])
    for heavy in ("textworld", "alfworld", "jericho", "verl", "vllm", "sglang", "ray"):
        assert heavy not in base


def test_constraints_cover_the_direct_dependencies() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tested = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    wanted = [Requirement(text) for text in project["dependencies"] + project["optional-dependencies"]["dev"]]
    assert not [requirement.name for requirement in wanted if requirement.name not in tested]
    assert not [str(requirement) for requirement in wanted if tested[requirement.name] not in requirement.specifier]


def test_the_wheel_works_in_a_fresh_environment(wheel: Path, fresh_environment: Callable[[], FreshEnvironment]) -> None:
    fresh = fresh_environment()
    fresh.install(wheel)
    assert fresh.added() - {"__pycache__"} == {*PACKAGES, f"threespo_bench-{__version__}.dist-info"}
    assert fresh.command("--version").stdout.strip() == f"threespo-bench {__version__}"
    listed = fresh.command("list", "--json")
    assert listed.returncode == 0, listed.stderr
    assert {"threespo", "gigpo", "grpo"} <= {entry["name"] for entry in json.loads(listed.stdout)["algorithms"]}
    assert not listed.stderr
    explained = fresh.command("info", "3spo")
    assert explained.returncode == 0, explained.stderr
    assert "algorithm.max_samples" in explained.stdout

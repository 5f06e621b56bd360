"""The engine verl, where verl is installed. Elsewhere these tests are skipped; ``test_other_environment.py`` runs them in an environment that has it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.plugins.verl import recorded


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("verl") is None:
        for item in items:
            if "plugins/verl/" in item.path.as_posix() and item.get_closest_marker("without_verl") is None:
                item.add_marker(pytest.mark.skip(reason="verl is not installed: scripts/verl_env.sh DIR"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory):
    """Folder of a tiny model."""
    return recorded.write_model(tmp_path_factory.mktemp("models") / "qwen2")


@pytest.fixture(scope="session")
def untied_model(tmp_path_factory: pytest.TempPathFactory):
    """Folder of a tiny model whose output layer has weights of its own."""
    return recorded.write_model(tmp_path_factory.mktemp("models") / "llama", "llama")


@pytest.fixture(scope="session")
def rank():
    """This process is the only rank."""
    from tests.plugins.verl import local_workers

    local_workers.prepare()

"""What verl loads by itself in each of its processes, by the entry point ``verl.plugins``: the platform ``cpu`` and our estimators.

It must cost next to nothing: every process of verl imports it, most of them for nothing. The platform is registered only where it was asked for
(``VERL_PLATFORM=cpu``), and the estimators once verl's own are imported, by an import hook that takes itself away again.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

ESTIMATORS = "verl.trainer.ppo.core_algos"
"""The module of verl that has the registry of estimators."""


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads :data:`ESTIMATORS` as it would be loaded anyway, and then registers ours."""

    def __init__(self) -> None:
        self._spec: ModuleSpec | None = None

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != ESTIMATORS:
            return None
        sys.meta_path.remove(self)
        self._spec = find_spec(fullname)
        if self._spec is None or self._spec.loader is None:
            return None
        spec = ModuleSpec(fullname, self, origin=self._spec.origin)
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        assert self._spec is not None and self._spec.loader is not None
        return self._spec.loader.create_module(self._spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._spec is not None and self._spec.loader is not None
        module.__spec__, module.__loader__ = self._spec, self._spec.loader
        self._spec.loader.exec_module(module)
        _register_estimators(module)


def _register_estimators(core_algos: ModuleType) -> None:
    from threespo_plugins.verl_engine.estimators import register

    register(core_algos)


def _install() -> None:
    if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
        import threespo_plugins.verl_engine.platform_cpu  # noqa: F401
    if ESTIMATORS in sys.modules:
        _register_estimators(sys.modules[ESTIMATORS])
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


_install()

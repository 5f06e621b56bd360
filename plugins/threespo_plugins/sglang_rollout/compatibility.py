"""What can be known before SGLang is started: whether it is there, and in which version."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from threespo_bench.errors import EngineError
from threespo_plugins.serving import environments

OLDEST = Version("0.5.12")
"""The first version whose routes were read: /model_info has the label of the weights, and /flush_cache waits until it may."""
PLACEHOLDER = "threespo-sglang-placeholder"
"""The distribution by which scripts/sglang_env.sh marks its environment, the only one in which SGLang repeats a response on the CPU."""
MAKE_ENVIRONMENT = "scripts/sglang_env.sh FOLDER, and rollout.python=FOLDER/bin/python"
INSTALL = "on a GPU: pip install 'threespo-bench[sglang]', or in an environment of its own and rollout.python=ITS/bin/python"
_DISTRIBUTION = "sglang"
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Of NVIDIA, of AMD, and of either under Windows."""


@dataclass(frozen=True)
class Installation:
    """SGLang in some environment: its version, and whether that environment is the one for tests on the CPU."""

    version: Version
    placeholder: bool = False


def find(python: str | None = None) -> Installation | None:
    """What ``python``, by default this interpreter, has; nothing of it is imported. Raises UsageError if there is no such interpreter."""
    fix = f"give the interpreter of an environment that has SGLang; to make one: {INSTALL}"
    versions = environments.versions(python, (_DISTRIBUTION, PLACEHOLDER), fix)
    try:
        return None if versions[_DISTRIBUTION] is None else Installation(Version(versions[_DISTRIBUTION]), versions[PLACEHOLDER] is not None)
    except InvalidVersion:
        return None


def check_installation(python: str | None) -> Installation:
    """Raises EngineError in one line unless ``python``, by default this interpreter, has an SGLang that can be used."""
    where = "in this environment" if python is None else f"in that of rollout.python={python}"
    found = find(python)
    if found is None:
        raise EngineError(f"there is no SGLang {where}", fix=INSTALL)
    check_version(str(found.version), where)
    return found


def check_version(version: object, where: str) -> None:
    """Raises EngineError unless the version that a server or an environment names is new enough."""
    try:
        old = Version(str(version)) < OLDEST
    except InvalidVersion as error:
        raise EngineError(f"SGLang {where} says that its version is {version!r}, which is none", fix=INSTALL) from error
    if old:
        raise EngineError(f"SGLang {version} {where} is too old: {OLDEST} is needed", fix=INSTALL)


def has_gpu() -> bool:
    """A driver for GPUs is there. Whether torch can use it is found out once it is imported."""
    return any(map(os.path.exists, _DRIVERS)) or shutil.which("nvidia-smi") is not None


def check_device(device: str, python: str | None) -> None:
    """Raises EngineError for the CPU, where SGLang has no seed for each request, unless the environment is the one for tests."""
    if device != "cpu" or ((found := find(python)) is not None and found.placeholder):
        return
    raise EngineError(
        "SGLang cannot repeat a response on the CPU: its seeds need a GPU",
        fix=f"engine.device=cuda, or rollout=hf or vllm; for tests of this project: {MAKE_ENVIRONMENT}",
    )

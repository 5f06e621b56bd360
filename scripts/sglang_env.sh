#!/usr/bin/env bash
# Makes an environment FOR TESTS: SGLang 0.5.23 on the CPU, in a configuration that its authors do not support.
#
#     scripts/sglang_env.sh DIR            then THREESPO_SGLANG_PYTHON=DIR/bin/python pytest -m slow tests/plugins/sglang/test_real.py
#
# About 3 GB and 5 to 15 minutes. What is real: its server, routes, scheduler, prefix cache, sampler and model code. What is not: its kernels. SGLang's
# package sgl_kernel has no build for ordinary CPUs; the one written here can be imported, and every call of it raises, the hash of a seed apart, which is
# written out in NumPy. torchvision is replaced likewise.
# On a GPU none of this is needed: pip install 'threespo-bench[sglang]'.
set -euo pipefail

if [[ $# -ne 1 ]]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
folder="$1"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

"${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "SGLang needs Python 3.11 or newer, this is " + sys.version)'
"${PYTHON:-python3}" -m venv "$folder"
# SGLang asks for the build of torch 2.14.1 for CUDA. Where pip does not find the one for the CPU, set PIP_EXTRA_INDEX_URL to PyTorch's index for the CPU
# (see pytorch.org/get-started).
"$folder/bin/pip" install torch==2.13.0+cpu
"$folder/bin/pip" install --no-deps sglang==0.5.23 xgrammar==0.2.7
# Its dependencies, without those that need CUDA.
"$folder/bin/pip" install aiohttp 'anthropic>=0.20' apache-tvm-ffi==0.1.11 blobfile==3.0.0 build compressed-tensors==0.18.0 datasets distro easydict einops \
    fastapi gguf interegular IPython 'kernels>=0.14.1,<0.15' 'llguidance>=1.7.6,<2' 'mistral_common>=1.11.5' modelscope msgspec ninja numba==0.65.1 numpy \
    nvidia-ml-py openai==2.8.0 openai-harmony==0.0.4 orjson outlines==0.1.11 packaging partial_json_parser pillow 'prometheus-client>=0.20' psutil py-spy \
    pybase64 pydantic 'python-dateutil<3' python-multipart 'pyzmq>=25.1.2' regex requests scipy sentencepiece==0.2.1 setproctitle soundfile==0.13.1 tiktoken \
    tokenizers==0.23.2 tqdm transformers==5.19.0 triton==3.7.1 'uvicorn>=0.51' uvloop watchfiles xxhash zstandard

packages="$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
mkdir -p "$packages/threespo_sglang_placeholder-1.dist-info" "$packages/sgl_kernel" "$packages/torchvision"
cat >"$packages/threespo_sglang_placeholder.py" <<'PYTHON'
"""Placeholders for packages that SGLang imports and that have no build for this CPU. For tests of threespo-bench only."""

import importlib.abc
import importlib.machinery
import sys
import types


class Absent(types.ModuleType):
    """Has every name, as a module, class or function; calling one raises."""

    __path__: list = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")

    def __call__(self, *_, **__):
        raise NotImplementedError(f"{self.__name__} was called, which is a placeholder without contents")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds all modules below one name."""

    def __init__(self, name):
        self.below = name + "."

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith(self.below) else None

    def create_module(self, spec):
        return Absent(spec.name)

    def exec_module(self, module):
        pass


def install(name):
    """Make the module ``name``, which is being imported, and all below it absent."""
    sys.modules[name].__class__ = Absent
    sys.meta_path.insert(0, Finder(name))


def murmur_hash32(seed, positions, columns):
    """MurmurHash3 of the two halves of a seed (N,), a position (N,) and a column (V,): (N, V), as SGLang's kernel for a GPU."""
    import numpy as np
    import torch

    mask = np.uint64(0xFFFFFFFF)

    def turned(x, bits):
        return (x << np.uint64(bits) | x >> np.uint64(32 - bits)) & mask

    def mixed(h, block):
        block = turned(block * np.uint64(0xCC9E2D51) & mask, 15) * np.uint64(0x1B873593) & mask
        return (turned(h ^ block, 13) * np.uint64(5) + np.uint64(0xE6546B64)) & mask

    seed, positions = seed.numpy().astype(np.uint64)[:, None], positions.numpy().astype(np.uint64)[:, None]
    h = np.uint64(0)
    for block in (seed & mask, seed >> np.uint64(32), positions, columns.numpy().astype(np.uint64)[None]):
        h = mixed(h, block)
    h = h ^ np.uint64(16)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = (h ^ h >> np.uint64(shift)) * np.uint64(factor) & mask
    return torch.from_numpy(h.astype(np.uint32))


def register():
    """SGLang calls this in each of its processes. It adds what a seed for each request lacks here; responses are repeated up to rounding."""
    global library
    import torch
    from sglang.srt import batch_invariant_ops
    from sglang.srt.arg_groups import choices

    choices.add_deterministic_attention_backend_choices(["torch_native"])
    choices.add_radix_supported_deterministic_attention_backend_choices(["torch_native"])
    batch_invariant_ops.enable_batch_invariant_mode = lambda *_, **__: None  # kernels for a GPU
    library = torch.library.Library("sgl_kernel", "DEF")
    library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor columns) -> Tensor")
    library.impl("murmur_hash32_cpu", murmur_hash32, "CPU")
PYTHON
for name in sgl_kernel torchvision; do
    printf 'import threespo_sglang_placeholder\n\n__version__ = "0.0"\nthreespo_sglang_placeholder.install(__name__)\n' >"$packages/$name/__init__.py"
done
printf 'Metadata-Version: 2.1\nName: threespo-sglang-placeholder\nVersion: 1\nSummary: Placeholders of sgl_kernel and torchvision, for tests only\n' \
    >"$packages/threespo_sglang_placeholder-1.dist-info/METADATA"
printf '[sglang.srt.plugins]\nthreespo_placeholder = threespo_sglang_placeholder:register\n' >"$packages/threespo_sglang_placeholder-1.dist-info/entry_points.txt"

SGLANG_USE_CPU_ENGINE=1 "$folder/bin/python" - <<'PYTHON'
import importlib.metadata as m
import sys

import sglang.srt.entrypoints.http_server

print("sglang", m.version("sglang"), "with torch", m.version("torch"), "in", sys.prefix, "(placeholder of sgl_kernel: for tests only)")
PYTHON

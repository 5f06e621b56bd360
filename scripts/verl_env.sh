#!/usr/bin/env bash
# Makes the environment that the engine verl runs in, with the versions that it was tested with, and this project in it.
#
#     scripts/verl_env.sh DIR          torch for the CPU, as it is tested
#     scripts/verl_env.sh DIR cuda     verl with vLLM for GPUs, in the versions that verl 0.9.1 asks for; not tested
#
# It is an environment of its own, since verl needs an older transformers than constraints.txt has. About 2.5 GB on the CPU.
set -euo pipefail

if [[ $# -lt 1 || $# -gt 2 || "${2:-cpu}" != @(cpu|cuda) ]]; then
    sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
folder="$1" device="${2:-cpu}"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

pins="$(mktemp)"
trap 'rm -f "$pins"' EXIT
cat > "$pins" <<'PINS'
hydra-core==1.3.8
numpy==2.4.6
omegaconf==2.3.1
peft==0.21.2
ray==2.60.0
tensordict==0.10.0
verl==0.9.1
PINS

"${PYTHON:-python3}" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13) and "verl needs Python 3.11 or 3.12, this is " + sys.version)'
"${PYTHON:-python3}" -m venv "$folder"
if [[ "$device" == cpu ]]; then
    # without the last two pip tries some thirty versions of wandb first
    printf '%s\n' torch==2.13.0 transformers==5.10.4 packaging==25.0 wandb==0.31.0 >> "$pins"
    "$folder/bin/pip" install torch==2.13.0
    "$folder/bin/pip" install -c "$pins" -e "${here}[verl]" 'pytest>=8.2' 'pytest-timeout>=2.3'
else
    sed -i '/^numpy==/d' "$pins"
    "$folder/bin/pip" install -c "$pins" 'verl[vllm,cupy-cu130]==0.9.1'
    "$folder/bin/pip" install -c "$pins" -e "${here}[verl]"
fi
"$folder/bin/python" -c 'import importlib.metadata as m; print("verl", m.version("verl"), "with torch", m.version("torch"), "in", __import__("sys").prefix)'

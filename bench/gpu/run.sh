#!/usr/bin/env bash
# What can be measured of Ramet on one GPU, in ten minutes: bench/README.md. Needs torch with CUDA, transformers and the
# core's few dependencies; nothing of this repository must be installed.
#   bench/gpu/run.sh                   on a GPU
#   bench/gpu/run.sh --cpu-rehearsal   the same code with tiny shapes on a CPU, to try the script itself
# PYTHON=... chooses the interpreter; the default is the checkout's .venv, then python3.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
if [[ -z "${PYTHON:-}" ]]; then
    PYTHON=python3
    [[ -x "$root/.venv/bin/python" ]] && PYTHON="$root/.venv/bin/python"
fi
export PYTHONPATH="$root/core/src${PYTHONPATH:+:$PYTHONPATH}"
export PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}"
"$PYTHON" "$here/prerequisites.py" "$@"
exec "$PYTHON" "$here/run.py" "$@"

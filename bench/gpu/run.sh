#!/usr/bin/env bash
# What can be measured of Ramet on one GPU, in eight minutes: bench/README.md. Needs torch with CUDA and transformers;
# nothing of this repository must be installed. Other packages that a bare image lacks are taken from the wheels that
# bench/gpu/wheels.sh has put beside this script. With OUT=FOLDER each row is added to FOLDER/rows.jsonl as it comes.
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
if compgen -G "$here/wheels/*.whl" >/dev/null; then
    site="$(mktemp -d)"
    trap 'rm -rf "$site"' EXIT
    "$PYTHON" -m pip install --quiet --no-index --no-deps --target "$site" "$here"/wheels/*.whl
    export PYTHONPATH="$PYTHONPATH:$site" # after the image's own
fi
export PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}"
"$PYTHON" "$here/prerequisites.py" "$@"
"$PYTHON" "$here/run.py" "$@"

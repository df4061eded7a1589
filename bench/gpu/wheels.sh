#!/usr/bin/env bash
# Fetches what bench/gpu/run.sh needs beside torch and transformers into bench/gpu/wheels (under 2 MiB), for an image
# without internet: wheels of this Python version and platform.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
"${PYTHON:-python3}" -m pip wheel --no-deps --wheel-dir "$here/wheels" \
    'omegaconf>=2.3,<2.4' 'antlr4-python3-runtime==4.9.3' 'pluggy>=1.5' 'accelerate>=1.10,<2' 'psutil>=5.9'

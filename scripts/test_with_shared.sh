#!/usr/bin/env bash
# Runs the tests that read the published data in ../shared. Fails if one of them is skipped for want of it.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(grep -rlF --include='test_*.py' -e '/ "shared"' core/tests plugins tests)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --published "${files[@]}" | tee "$log"
if grep -q "skipped for want of ../shared" "$log"; then
    echo "published data is missing: these tests were skipped" >&2
    exit 1
fi

#!/usr/bin/env bash
# Runs the tests that look at ../shared as users run them: in a copy of this checkout with no ../shared next to it.
# They use the virtual environment and the packages of this checkout, so that it takes seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/ramet"
# Not `git clone`: a copy has what is not committed yet, and needs no repository.
tar -c --exclude=.git --exclude=./.venv --exclude=./runs --exclude=__pycache__ . | tar -x -C "$folder/ramet"
python=$PWD/.venv/bin/python
cd "$folder/ramet"
mapfile -t files < <(grep -rlF --include='test_*.py' -e '/ "shared"' core/tests plugins tests)
OMP_NUM_THREADS=1 "$python" -m pytest -p no:cacheprovider "${files[@]}"

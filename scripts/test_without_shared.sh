#!/usr/bin/env bash
# Runs all tests as users run them: `make test` in a copy of this checkout with no ../shared next to it. The copy uses
# the virtual environment and the packages of this checkout.
#   scripts/test_without_shared.sh [TARGET…]      targets and variables of make; default: test
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/ramet"
# Not `git clone`: a copy has what is not committed yet.
tar -c --exclude=./.venv --exclude=./runs --exclude=__pycache__ . | tar -x -C "$folder/ramet"
make -C "$folder/ramet" VENV="$PWD/.venv" "${@:-test}"

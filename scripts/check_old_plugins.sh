#!/usr/bin/env bash
# Checks the plugins of the last release against this core, as scripts/check_wheels.sh checks those of this checkout:
# what is installed must keep working when only the core is upgraded.
#   scripts/check_old_plugins.sh [REF]      REF: the tag or commit of the old plugins; default: the last tag before HEAD
set -euo pipefail
cd "$(dirname "$0")/.."
ref=${1:-$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null || true)}
if [ -z "$ref" ]; then
    echo "no earlier release: there are no old plugins to check"
    exit 0
fi
git rev-parse --verify --quiet "$ref^{commit}" >/dev/null || { echo "error: no commit $ref in this clone" >&2; exit 1; }
old=$(mktemp -d)
git worktree add --quiet --detach "$old" "$ref"
trap 'git worktree remove --force "$old"' EXIT
# ramet-release imports internals of its core, and is released together with it.
mapfile -t packages < <(cd "$old" && ls -d "$PWD"/plugins/*/src | sed 's|/src$||' | grep -v '/release$')
scripts/check_wheels.sh "${packages[@]}"

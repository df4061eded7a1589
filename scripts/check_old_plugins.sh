#!/usr/bin/env bash
# Checks the plugins of the last release against this core, as scripts/check_wheels.sh checks those of this checkout:
# what is installed must keep working when only the core is upgraded. Plugins whose own requirements exclude this core's
# version, as they do after a new minor version, cannot be installed with it: they are named and left out.
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
fitting=$("${PYTHON:-.venv/bin/python}" - "${packages[@]}" <<'EOF'
import sys
import tomllib
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

core = tomllib.loads(Path("core/pyproject.toml").read_text())["project"]["version"]
for folder in sys.argv[1:]:
    project = tomllib.loads((Path(folder) / "pyproject.toml").read_text())["project"]
    needs = [need for need in map(Requirement, project["dependencies"]) if need.name == "ramet"]
    if wrong := [need for need in needs if not need.specifier.contains(core, prereleases=True)]:
        print(f"skipped: {project['name']} {project['version']} needs {wrong[0]}, and this core is {core}", file=sys.stderr)
    else:
        print(folder)
EOF
)
if [ -z "$fitting" ]; then
    echo "no plugin of $ref may be installed with this core: there is nothing to check"
    exit 0
fi
mapfile -t packages <<<"$fitting"
scripts/check_wheels.sh "${packages[@]}"

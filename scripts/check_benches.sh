#!/usr/bin/env bash
# Types of the benches, so that a change of the code that they use is seen before one is run. A bench is a folder of
# scripts: some import their neighbours by name, others by folder (gae.loop).
set -euo pipefail
cd "$(dirname "$0")/.."
for folder in bench/*/; do
	folder=${folder%/} name=$(basename "$folder")
	case $name in results | gpu) continue ;; esac # gpu: its imports are those of a bare image
	own=:$folder
	grep -qE "^from $name[. ]" "$folder"/*.py && own=
	MYPYPATH=bench$own:scripts/quickstart "${MYPY:-mypy}" --explicit-package-bases --no-error-summary "$folder"/*.py
done

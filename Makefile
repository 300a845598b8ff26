# Colonnade. `make` alone explains itself.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# A test process for every core; the tests of one file stay together and share what they prepare.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadfile
SAMPLES := .pytest_cache/samples
SUPPLY := $(VENV)/supply/bin
# OpenMP threads that spin while they wait make a busy machine up to 100 times slower.
export OMP_WAIT_POLICY ?= PASSIVE
# The cores are taken by test processes already: more threads in each make them wait for each other.
check test test-long: export OPENBLAS_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo check test test-long lint bench sbom audit clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: $(VENV)/.core ## install the core into .venv and run the demo
	$(BIN)/colonnade demo

check: lint ## lint and the quick tests: what one runs all day
	$(PYTEST) -m "not slow and not long"

test: $(VENV)/.all ## install everything into .venv and test every method, runtime and guide
	$(PYTEST) -m "not long"

test-long: $(VENV)/.all ## chaos, NVFlare, papers; a sample of the kills and of the soak
	$(PYTEST) -m long
	$(BIN)/python benchmarks/chaos/kills.py --kills 12 --warm --out $(SAMPLES)/kills.json
	$(BIN)/python benchmarks/chaos/soak.py --steps 1500 --out $(SAMPLES)/soak.json

lint: $(VENV)/.all ## format check, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.core ## speed against hand-written loops, growth, accuracy (about 15 minutes)
	$(BIN)/python benchmarks/speed/bench.py

# The tools live in an environment of their own: they must not appear among the components.
sbom: $(VENV)/.all $(VENV)/.supply ## a list of all components (CycloneDX) and a lock file with hashes, in dist/
	@mkdir -p dist
	$(SUPPLY)/cyclonedx-py environment --pyproject pyproject.toml --output-format JSON --output-reproducible \
		--output-file dist/sbom.json $(BIN)/python
	$(SUPPLY)/pip-compile --quiet --generate-hashes --strip-extras --extra all --unsafe-package colonnade --constraint constraints.txt \
		--no-emit-index-url --no-emit-find-links --output-file dist/requirements.lock pyproject.toml

# --strict: a package that cannot be looked up is a failure, never a clean result.
audit: $(VENV)/.supply ## known vulnerabilities of the tested versions; fails where no advisory service answers
	$(SUPPLY)/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt \
		|| { echo "audit: not clean, or not every package could be looked up (see above)"; exit 1; }

clean: ## remove .venv and all caches; runs/ stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@echo "making a virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)

# torch first and alone, at its exact version: a later package must not choose another one.
$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing Colonnade (PyTorch is about 200 MB; this takes a minute the first time)"
	$(PIP) "$$(grep -i '^torch==' constraints.txt)"
	$(PIP) --editable .
	@touch $@

$(VENV)/.all: pyproject.toml constraints.txt | $(VENV)/.core
	@echo "installing all extras and the developers' tools"
	$(PIP) --editable '.[all,dev]'
	@touch $@ $(VENV)/.core

$(VENV)/.supply: | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/supply
	$(VENV)/supply/bin/python -m pip install --quiet --disable-pip-version-check \
		cyclonedx-bom==7.5.0 pip-audit==2.10.1 pip-tools==7.6.2
	@touch $@

# Pagoda. `make serve` and `make test` work on a fresh machine: python3 >= 3.11 with venv, make, and for speed a
# C++ compiler. `make help` lists the targets from the `##` comments.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# Twice quiet: errors only; a machine's own package sources may warn about every package.
PIP := $(PY) -m pip --disable-pip-version-check --no-input -qq
ARGS ?=

# Stamps: a target is done again only when what it depends on has changed.
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
PACKAGES := conf packages/kernels packages/parsers packages/engine packages/server
MANIFESTS := constraints.txt $(PACKAGES:%=%/pyproject.toml)

.PHONY: help install install-dev serve test check fmt lint types contracts test-gpu bench wheels \
	config-reference sizes clean unit-engine unit-others

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

serve: $(INSTALLED) ## install what is missing, then serve: make serve ARGS="+model=/data/x server.port=9000"
	@exec $(PY) -m server $(ARGS)

test: $(INSTALLED_DEV) ## install with dev tools, fetch the default model, run the whole suite on the CPU
	@$(PY) -m server.explain +model=smollm2 model.path  # fetches it where it is not in the cache
	@$(PY) -m pytest $(ARGS)

check: $(INSTALLED_DEV) ## format, lint, types, contracts, unit tests
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(MAKE) --jobs=2 --output-sync=target types unit-engine unit-others

# Two halves, so that two cores are busy; many tests wait for processes.
unit-engine: $(INSTALLED_DEV)
	@$(PY) -m pytest -q -m "not slow" packages/engine

unit-others: $(INSTALLED_DEV)
	@$(PY) -m pytest -q -m "not slow" packages/server packages/kernels packages/parsers tests/contracts

install: $(INSTALLED) ## .venv and the pinned packages

install-dev: $(INSTALLED_DEV) ## the same with the dev tools

fmt: $(INSTALLED_DEV) ## format and sort imports
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

lint: $(INSTALLED_DEV) ## ruff
	@$(PY) -m ruff check .

types: $(INSTALLED_DEV) ## mypy, strict
	@$(PY) -m mypy packages

contracts: $(INSTALLED_DEV) ## import directions, names, conf, docs, surface
	@$(PY) -m pytest -q tests/contracts

test-gpu: $(INSTALLED_DEV) ## the tests that need a CUDA device
	@$(PY) -m pytest -m gpu $(ARGS)

bench: $(INSTALLED_DEV) ## micro-benchmarks
	@$(PY) -m pytest -q --benchmark-only tests/bench $(ARGS)

wheels: $(INSTALLED_DEV) ## wheels/ for a machine without a network that has torch: ours and the pinned rest
	@mkdir -p wheels
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir wheels $(PACKAGES:%=./%)
	@grep -vE '^(torch|pip|#)' constraints.txt > wheels/requirements.txt
	@$(PIP) wheel --no-deps --wheel-dir wheels --requirement wheels/requirements.txt
	@echo "there: pip install --no-index --find-links wheels pagoda-server"

config-reference: $(INSTALLED_DEV) ## write conf/REFERENCE.yaml anew
	@$(PY) -m engine.config.reference > conf/REFERENCE.yaml

sizes: ## lines of code by part, as a conscience
	@for folder in packages/*/src/*/ packages/engine/src/engine/*/ tests conf; do \
		printf "%7d  %s\n" "$$(find $$folder -name '*.py' -o -name '*.cpp' -o -name '*.yaml' | xargs cat | wc -l)" "$$folder"; \
	done

clean: ## remove .venv and caches of tools
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache wheels

# pip, setuptools and wheel first, pinned, so that our own packages build without an isolated environment.
$(VENV)/.created: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "python3 >= 3.11 is needed; $(PYTHON) is $$($(PYTHON) -V). Use make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -c constraints.txt pip setuptools wheel
	@touch $@

$(INSTALLED): $(VENV)/.created $(MANIFESTS)
	@echo "installing into $(VENV); once, a minute or more, since torch is large"
	@$(PIP) install --no-build-isolation -c constraints.txt $(PACKAGES:%=-e ./%)
	@touch $@

$(INSTALLED_DEV): $(INSTALLED) pyproject.toml
	@$(PIP) install -c constraints.txt --group dev
	@touch $@

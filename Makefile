# Each target does its own set-up on a machine with python3 and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SEEDS  ?= 5000
ONLY   ?=

.DEFAULT_GOAL := help
.PHONY: help run tour test check bench sim format clean servers

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(VENV)/.run: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[server]'
	touch $@

$(VENV)/.dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,check]'
	touch $@ $(VENV)/.run

$(VENV)/.bench: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	touch $@

servers: $(VENV)/.dev ## install the real servers that the tests start (Redis, DynamoDB Local, Azurite)
	$(BIN)/python -m tests.servers.install

run: $(VENV)/.run ## the server on local files + SQLite, with a sample repository
	$(BIN)/python -m lsmfs run --quickstart

tour: $(VENV)/.run ## a guided tour: 100,000 entries put, compacted, committed, read back
	$(BIN)/python -m lsmfs tour

test: servers ## every test, against real servers
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: $(VENV)/.dev ## ruff and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev ## let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench ## every benchmark, or ONLY=put,get
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY))

sim: $(VENV)/.dev ## the simulation over SEEDS seeds
	$(BIN)/python -m tests.sim --seeds $(SEEDS)

clean: ## remove what these targets made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist

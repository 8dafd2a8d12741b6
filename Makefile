# `make serve` talks to a real model, `make test` proves the tree; both set up what they need (tools/setup_env.py).
PYTHON ?=
VENV ?= .venv
PORT ?=
ARGS ?=
BIN = $(VENV)/bin
SETUP = $(or $(PYTHON),python3) tools/setup_env.py --venv $(VENV) $(if $(PYTHON),--python $(PYTHON))
# One thread per test process: the tests share few cores, and torch's pool would only fight over them.
TEST_ENV = OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
RING = tests/unit/core tests/unit/cost tests/unit/sched tests/sim tests/property

.PHONY: help serve test pytest acceptance lint status clean setup setup-test
help:
	@echo "make serve [PORT=8123] [ARGS=\"--model DIR\"]   set up, fetch the default model, serve it"
	@echo "make test                                     lint, types, imports, all tests"
	@echo "make acceptance                               serve on a free port and run the black-box checks"
	@echo "make lint | status | clean"

serve: setup
	@exec $(BIN)/headway serve $(if $(PORT),--port $(PORT)) $(ARGS)

test: lint pytest

# The ring's tests run under two hash seeds: an order that comes from a set would show as a difference.
pytest: setup-test
	$(TEST_ENV) PYTHONHASHSEED=1 $(BIN)/python -m pytest -q -m "not slow and not device and not peer" $(wildcard $(RING))
	$(TEST_ENV) PYTHONHASHSEED=0 $(BIN)/python -m pytest -m "not slow and not device and not peer" --durations=10 $(ARGS)

acceptance: setup-test
	@$(BIN)/python tools/acceptance.py $(ARGS)

lint: setup-test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases tools
	$(BIN)/lint-imports

status: setup-test
	$(BIN)/python tools/status.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup:
	@$(SETUP) serve

setup-test:
	@$(SETUP) test

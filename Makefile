# `make serve` talks to a real model, `make test` proves the tree; both set up what they need (tools/setup_env.py).
PYTHON ?=
VENV ?= .venv
PORT ?=
ARGS ?=
BIN = $(VENV)/bin
SETUP = $(or $(PYTHON),python3) tools/setup_env.py --venv $(VENV) $(if $(PYTHON),--python $(PYTHON))

.PHONY: help serve test pytest acceptance lint status clean setup setup-test
help:
	@echo "make serve [PORT=8123] [ARGS=\"--model DIR\"]   set up, fetch the default model, serve it"
	@echo "make test                                     lint, types, imports, all tests"
	@echo "make acceptance                               serve on a free port and run the black-box checks"
	@echo "make lint | status | clean"

serve: setup
	@exec $(BIN)/headway serve $(if $(PORT),--port $(PORT)) $(ARGS)

# Lanes for two cores: those tests that start servers, mypy and the simulations, and what waits for idle time
# (tools/run_tests.py).
test: setup-test
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python tools/run_tests.py --types $(ARGS)

pytest: setup-test
	$(BIN)/python tools/run_tests.py $(ARGS)

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

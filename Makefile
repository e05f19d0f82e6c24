# Every door sets up what it needs. The stamps under .venv say what is installed already.

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
OTHER := name another interpreter, such as: make PYTHON=python3.12

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test coverage check format bench chaos histories pins clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.runtime ## see a trunk go red and green again on this machine
	@$(BIN)/lastgreen demo $(ARGS)

# Files beside each other: most of a test's time is waiting for a server or a child. A red is
# confirmed before it counts, as in the product; pytest answers 1 only where a test failed.
test: $(VENV)/.dev ## run the tests; ARGS="-k gate" passes options to pytest
	@$(BIN)/python -m pytest --numprocesses 3 --dist loadfile $(ARGS) || { \
		[ $$? -eq 1 ] || exit 1; \
		echo "Once more, alone, what failed; a test that passes now is a flake, named above as FAILED:"; \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(ARGS); }

coverage: $(VENV)/.dev ## run the tests and show what they miss
	@$(BIN)/coverage run -m pytest $(ARGS)
	@$(BIN)/coverage report
	@$(BIN)/coverage report --include='domain/*' --fail-under=100

check: $(VENV)/.dev ## everything that must hold before a change lands
	@echo "format"; $(BIN)/ruff format --check --quiet .
	@echo "lint"; $(BIN)/ruff check --quiet .
	@echo "spelling"; $(BIN)/codespell
	@echo "imports"; $(BIN)/lint-imports --no-logo >$(VENV)/imports.log 2>&1 || { cat $(VENV)/imports.log; exit 1; }
	@echo "dead code"; $(BIN)/vulture
	@echo "dependencies"; $(BIN)/deptry . 2>$(VENV)/deptry.log || { cat $(VENV)/deptry.log; exit 1; }
	@echo "compose"; $(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker-compose.yml
	@echo "shape"; $(BIN)/python tools/shape.py
	@echo "types (the first run takes a minute)"; $(BIN)/mypy --no-error-summary
	@echo "tests"; $(MAKE) test

format: $(VENV)/.dev ## lay out the code and repair what ruff can
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

bench: $(VENV)/.dev ## the short measurements
	@$(BIN)/python -m benchmarks.short $(ARGS)

chaos: $(VENV)/.dev ## queues that live through kills and outages; ARGS="--seeds 200"
	@$(BIN)/python -m tests.chaos.life $(ARGS)
	@CHAOS=whole $(BIN)/python -m pytest -q tests/chaos/test_sweep.py

histories: $(VENV)/.dev ## record histories of the workflows as they are now
	@$(BIN)/python -m tests.record_histories $(ARGS)

# Pins stay as they are unless asked: `make pins ARGS=--upgrade`.
COMPILE := compile --quiet --universal --python-version 3.11 --generate-hashes --no-header
pins: $(VENV)/.dev ## pin what the requirements*.in ask for
	@$(BIN)/uv pip $(COMPILE) $(ARGS) requirements.in -o requirements.txt
	@$(BIN)/uv pip $(COMPILE) $(ARGS) requirements-dev.in -o requirements-dev.txt
	@if grep -nE '://|^-' requirements.txt requirements-dev.txt; then \
		echo "pins hold names, versions and hashes only: remove the lines above"; exit 1; fi

clean: ## remove what the doors made
	@rm -rf $(VENV) build dist .coverage htmlcov .hypothesis .import_linter_cache
	@rm -rf .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:
	@command -v "$(PYTHON)" >/dev/null || { \
		echo "$(PYTHON) is not installed; $(OTHER)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is older than Python 3.11; $(OTHER)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) lacks its venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@"$(PYTHON)" -m venv --clear $(VENV)

$(VENV)/.runtime: requirements.txt pyproject.toml | $(BIN)/pip
	@echo "Installing what lastgreen runs on into $(VENV) (about 300 MB; a minute or two) ..."
	@$(PIP) install --require-hashes -r requirements.txt
	@$(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

# All of the runtime set and more, so it leaves both stamps.
$(VENV)/.dev: requirements.txt requirements-dev.txt pyproject.toml | $(BIN)/pip
	@echo "Installing what lastgreen runs on and is checked with into $(VENV) (about 480 MB; a minute or two) ..."
	@$(PIP) install --require-hashes -r requirements-dev.txt
	@$(PIP) install --no-build-isolation --no-deps -e .
	@touch $(VENV)/.runtime $@

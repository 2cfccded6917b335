# Everything runs in .venv, which is set up once per change of the dependency lists.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: help setup selfplay test check lint clean
help:  ## say what the targets do
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv with the exact versions of constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed; call: make PYTHON=python3.11 ..."; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (once; a few minutes) ..."
	@$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

selfplay: $(STAMP)  ## train the tiny model on Kuhn poker by self-play and report its NashConv
	@$(BIN)/marl-llm train experiment=kuhn_selfplay

test: $(STAMP)  ## run the tests
	@$(BIN)/pytest

lint: $(STAMP)  ## formatter, linter, type checker
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

check: lint test  ## what CI runs

clean:  ## remove .venv
	rm -rf $(VENV)

# Every target sets up what it needs by itself; the environment is .venv, made once and reused.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
QUICK := $(VENV)/.quickstart
READY := $(VENV)/.ready
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable

.PHONY: help quickstart setup test lint format bench docs demo clean

help:  ## show this help
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

quickstart: $(QUICK)  ## see in minutes what shifts do to networks
	$(BIN)/trueshift quickstart $(ARGS)

demo: $(QUICK)  ## drag an image in the browser, after the quickstart
	$(BIN)/trueshift demo $(ARGS)

setup: $(READY)  ## make the environment with everything in it

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(QUICK): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what the quickstart needs into $(VENV) ..."
	$(INSTALL) ".[quickstart]"
	touch $(QUICK)

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what development needs into $(VENV) ..."
	$(INSTALL) ".[dev]"
	touch $(QUICK) $(READY)

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 $(ARGS)

lint: $(READY)  ## check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(READY)  ## fix style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY)  ## measure the layers against plain formulas
	$(BIN)/python -m benchmarks.layers $(ARGS)

docs: $(READY)  ## build the documentation in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean:  ## remove the environment and caches
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .hypothesis

# Every target sets up what it needs by itself; the environment is .venv, made once and reused.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help quickstart setup test lint format bench docs demo clean

help:  ## show this help
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

quickstart: $(READY)  ## train six small networks on built-in data and compare them
	$(BIN)/trueshift quickstart $(ARGS)

setup: $(READY)  ## make the environment

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 $(ARGS)

lint: $(READY)  ## check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(READY)  ## mend style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY)  ## measure the layers against plain formulas
	$(BIN)/python -m benchmarks.layers $(ARGS)

docs: $(READY)  ## build the documentation in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

demo: $(READY)  ## drag an image in the browser, after the quickstart
	$(BIN)/trueshift demo $(ARGS)

clean:  ## remove the environment and caches
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .hypothesis

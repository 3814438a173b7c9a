# Everything here starts from a clean clone: each target sets up what it needs, and the second run finds it done.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?= data
PYTEST ?=

.PHONY: serve test lint types unit lock demo torture bench compat-librdkafka fuzz setup clean help

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

serve: $(VENV)/.run  ## a node with every front on its default port, data in ./data
	$(BIN)/anabranch serve --data $(DATA)

test: lint types unit  ## linter, formatter, types and all tests

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/pytest $(PYTEST)

setup: $(VENV)/.dev  ## the virtual environment with everything that tests need

demo: $(VENV)/.dev  ## the demonstration, start to end
	$(BIN)/python -m benchmarks.demo

torture: $(VENV)/.dev  ## kill -9 under load, over and over: no acknowledged record may be lost
	$(BIN)/python tests/torture/run.py

bench: $(VENV)/.dev  ## measure the node, and Apache Kafka on the same machine
	$(BIN)/python -m benchmarks

compat-librdkafka: $(VENV)/.dev  ## librdkafka's own test suite against a node
	$(BIN)/python tests/compat/librdkafka/run.py

fuzz: $(VENV)/.dev  ## only the codecs' property and fuzz tests, with many more examples
	ANABRANCH_FUZZ_EXAMPLES=20000 $(BIN)/pytest -k "fuzz or property" --timeout=3600 $(PYTEST)

lock: $(VENV)/.dev  ## write the lock files anew from pyproject.toml (UPGRADE=1 takes the newest versions)
	UV=$(BIN)/uv UPGRADE=$(UPGRADE) scripts/lock.sh

clean:  ## forget everything that was built (not the data)
	rm -rf $(VENV) .tools .mypy_cache .ruff_cache .pytest_cache *.egg-info

# The stamps stand for "this lock file is installed in this environment".
$(BIN)/python:
	PYTHON=$(PYTHON) scripts/make-venv.sh $(VENV)

$(VENV)/.run: requirements/run.lock pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.lock $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	@touch $@

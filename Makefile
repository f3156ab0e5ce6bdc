# make demo    install into .venv and show an audit that finds something, and a replay
# make test    lint and the whole test suite; what CI runs
# make test-fast   the same without the tests that drive SGLang, which need 2.7 GB of it
# PYTHON=...   the Python that makes .venv, 3.11 or newer

PYTHON ?= python3
VENV ?= .venv
# a file stays with one worker, so that few of them compile the same Numba code; more than four save little
WORKERS ?= -n auto --maxprocesses 4 --dist loadfile
BIN := $(VENV)/bin
RUN := $(VENV)/.made-run
DEV := $(VENV)/.made-dev
PEER_VENV ?= .venv-peer
PEER := $(PEER_VENV)/.made-peer
PACKAGING := pyproject.toml requirements-light.txt scripts/setup-venv

export PYTHON

.PHONY: demo test test-fast test-slow test-peer lint format bench clean
.DEFAULT_GOAL := demo

$(RUN): $(PACKAGING)
	@scripts/setup-venv run $(VENV)
	@touch $@

# the environment of the tests is enough for the demo as well
$(DEV): $(PACKAGING) constraints.txt
	@scripts/setup-venv dev $(VENV)
	@touch $(RUN) $@

$(PEER): pyproject.toml constraints-peer.txt scripts/setup-peer
	@scripts/setup-peer $(PEER_VENV)
	@touch $@

demo: $(RUN)
	@scripts/demo $(BIN)/kvcanary

test: test-fast test-peer

test-fast: lint
	$(BIN)/python -m pytest $(WORKERS) $(PYTEST_ARGS)

test-slow: $(DEV)
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

# one process, because importing SGLang takes longer than most of its tests
test-peer: $(PEER)
	$(PEER_VENV)/bin/python -m pytest -m peer tests/peer $(PYTEST_ARGS)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(RUN)
	$(BIN)/python scripts/bench_startup.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-output
	find kvcanary_cli tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Each target sets up what it needs; `make reproduce` and `make test` are the two to start with.

PYTHON ?= python3
BIN := .venv/bin
LOCK_OPTIONS := --quiet --upgrade --generate-hashes --python-version 3.11 --no-emit-index-url --extra dev

.PHONY: setup setup-gpu reproduce regress test test-slow test-faults paper notebooks bench lint lock

setup: .venv/ready

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

setup-gpu: setup # the same set with CUDA 13 builds of jax
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-gpu.lock

reproduce: setup # the quickstart and its report, some ten minutes on two cores
	$(BIN)/cleanba run experiments/quickstart.yaml
	$(BIN)/cleanba report quickstart

regress: setup # the small experiment of experiments/gate.yaml, anew, against its accepted reference
	$(BIN)/cleanba regress experiments/gate.yaml --fresh --jobs 2

test: setup
	$(BIN)/python -m pytest

test-slow: setup # learning on Atari, long comparisons with rliable, a log of 1 GiB
	$(BIN)/python -m pytest -m slow --timeout 3600

test-faults: setup # kills, signals, full disks, two launchers, a Slurm of its own where root may install one
	$(BIN)/python -m pytest -m faults --timeout 3600 -s

paper: setup # every table, figure and claim of the paper from published figures
	$(BIN)/cleanba paper

notebooks: setup # executed copies in results/notebooks/, of the records that there are
	$(BIN)/python -m analysis.notebooks

bench: setup # speed, side by side with references; JSON in results/bench/
	$(BIN)/python -m runners.bench
	$(BIN)/python -m analysis.bench

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

lock: setup # refresh the hash-locked sets from pyproject.toml
	$(BIN)/uv pip compile $(LOCK_OPTIONS) --output-file requirements.lock pyproject.toml
	$(BIN)/uv pip compile $(LOCK_OPTIONS) --extra gpu --output-file requirements-gpu.lock pyproject.toml

# Two commands do everything on a machine with Python 3.11: `make quickstart` and `make test`.
PYTHON ?= python3.11
VENV ?= .venv
CONFIG ?= jobs/configs/quickstart.yaml
BIN := $(VENV)/bin

# One thread per engine: two OpenMP threads on busy cores spin (8 tokens/s instead of 56). Nothing is fetched and nothing reports home.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_OFFLINE ?= 1
export HF_HUB_DISABLE_TELEMETRY ?= 1
export VLLM_NO_USAGE_STATS ?= 1
export DO_NOT_TRACK ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0
# Every process of a run and of the tests imports the same modules: where bytecode may not be kept, each one compiles them again.
unexport PYTHONDONTWRITEBYTECODE
# Ray 2.60 turns token auth on by default and leaves a token in the home folder; tests run on loopback and leave nothing behind.
test lint: export RAY_AUTH_MODE ?= disabled

.PHONY: quickstart install test lint format clean python

quickstart: install
	$(BIN)/coevo run $(CONFIG)

install: python
	@$(PYTHON) infra/install.py --venv $(VENV)

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || { \
	  echo "error: Python 3.11 is needed"; \
	  echo "  seen: PYTHON=$(PYTHON) ($$($(PYTHON) --version 2>&1 | tail -n 1))"; \
	  echo "  fix: make PYTHON=/path/to/python3.11 $(or $(MAKECMDGOALS),quickstart)"; exit 2; } >&2

test: install
	$(BIN)/python infra/tiers.py $(TIERS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find coevo cluster jobs infra tests -name __pycache__ -prune -exec rm -rf {} +

# make demo   sets up, runs the main job, shows its result
# make test   sets up, runs the tests
# make check  what continuous integration runs: format, lint, types, import rules, tests
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
# Small matrices: one BLAS thread per process beats many that wait for each other.
export OMP_NUM_THREADS ?= 1
export MPLBACKEND ?= Agg

.PHONY: demo test check lint bench clean

# The CPU build of torch goes in first: otherwise a bare "torch" may pull several GB of CUDA.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "torch==2.13.0"
	$(BIN)/python -m pip install --quiet -e ".[torch,sklearn,cli,files,dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/bracketflow demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -q

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

bench: $(STAMP)
	$(BIN)/python benchmarks/core.py

clean:
	rm -rf $(VENV) out build dist

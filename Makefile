# make demo   sets up, runs the main job, shows its result
# make test   sets up, runs the tests
# make soak   the long tests: a large file, kills, hostile input, a million steps of every method
# make check  what continuous integration runs: format, lint, types, import rules, tests
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
# Small matrices: one BLAS thread per process beats many that wait for each other.
export OMP_NUM_THREADS ?= 1
export MPLBACKEND ?= Agg

.PHONY: demo test check lint bench soak clean

# The CPU build of torch goes in first: otherwise a bare "torch" may pull several GB of CUDA. For the
# same reason curvlinops, which only tests use, comes without its dependencies.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "torch==2.13.0"
	$(BIN)/python -m pip install --quiet -e ".[torch,sklearn,cli,files,examples,dev]"
	$(BIN)/python -m pip install --quiet tqdm opt-einsum einops mpmath jaxtyping unfoldNd
	$(BIN)/python -m pip install --quiet --no-deps backpack-for-pytorch einconv linear_operator curvlinops-for-pytorch
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

soak: $(STAMP)
	$(BIN)/python benchmarks/soak_file.py
	$(BIN)/python benchmarks/endurance.py

clean:
	rm -rf $(VENV) out build dist

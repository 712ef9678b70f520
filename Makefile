# make demo   sets up, runs the main job, shows its result
# make test   sets up, runs the tests
# make soak   the long tests: a large file, kills, damage, ranks, hostile input, a million steps of every method
# make coverage  tests with coverage of src, fails below 95% of lines or of branches
# make mutation  small changes of core, geometry, flows and tracker: fails when tests miss over 15%
# make check  what continuous integration runs: format, lint, types, import rules, tests, and the
#             numerical ones once more as on another processor
# make kernels  the tests as on five processors: OpenBLAS rounds differently on each of them
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
# Small matrices: one BLAS thread per process beats many that wait for each other.
export OMP_NUM_THREADS ?= 1
export MPLBACKEND ?= Agg

# Kernels of OpenBLAS, by the processor they are made for (some builds give Zen those of Haswell). All
# of them run where the machine has AVX-512; without it: make kernels KERNELS="Haswell Nehalem".
KERNELS ?= SkylakeX Zen Haswell Sandybridge Nehalem
NUMERICAL := tests/test_krylov.py tests/test_contracts.py tests/test_certificates.py

.PHONY: demo test check lint bench soak coverage mutation kernels other-kernel clean

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

check: lint test other-kernel

# Haswell's kernels sum in another order than those of processors with AVX-512, and run on any since.
other-kernel: $(STAMP)
	OPENBLAS_CORETYPE=Haswell $(BIN)/python -m pytest -n 2 --dist loadfile -q $(NUMERICAL)

kernels: $(STAMP)
	for kernel in $(KERNELS); do echo "$$kernel:"; \
	  OPENBLAS_CORETYPE=$$kernel $(BIN)/python -m pytest -n 2 --dist loadfile -q || exit 1; done

# Left out: one test interrupts at any moment, also inside the measuring itself, which then waits for
# its own lock; the other lets no file grow, so that the measuring cannot write its own.
coverage: $(STAMP)
	mkdir -p out
	$(BIN)/python -m pytest -n 2 --dist loadfile -q --cov --cov-report=json:out/coverage.json \
	  --deselect tests/test_kills.py::test_an_interrupt_at_any_moment_leaves_a_state_and_its_own_probe \
	  --deselect tests/test_kills.py::test_a_full_disk_is_reported_and_what_was_there_stays
	$(BIN)/python -c 'import json; t = json.load(open("out/coverage.json"))["totals"]; \
	  lines, branches = t["percent_statements_covered"], t["percent_branches_covered"]; \
	  print(f"lines {lines:.2f}%  branches {branches:.2f}%"); raise SystemExit(min(lines, branches) < 95)'

mutation: $(STAMP)
	$(BIN)/python -m pip install --quiet "mutmut==3.8.0"
	$(BIN)/python benchmarks/mutation.py

bench: $(STAMP)
	$(BIN)/python benchmarks/core.py

soak: $(STAMP)
	$(BIN)/python benchmarks/soak_file.py
	$(BIN)/python benchmarks/endurance.py
	$(BIN)/python benchmarks/endurance_folder.py meetings 1000 0
	$(BIN)/python benchmarks/endurance_folder.py mutations 2000 0
	$(BIN)/python benchmarks/endurance_ranks.py 30 0

clean:
	rm -rf $(VENV) out build dist

# Every target sets up what it needs; a fresh machine with Python 3.11+ is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
export JAX_PLATFORMS ?= cpu

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick test-all check format lint types traffic bench-engine bench-gpu bench-padding bench-scaling bench-data bench-hypcluster bench-threshold bench-convex bench-fedclup bench-lgmix bench-advice bench-page bench-programs bench-defaults bench-regret pictures docs docs-serve clean reproduce measure layers

help:  ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: $(READY)  ## Make the virtual environment and install everything into it

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "plures needs Python 3.11 or newer; name one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,dev,docs]'
	@touch $@

demo: $(READY)  ## Compare methods on the embedded federation and write the run folder
	$(BIN)/plures compare --out runs/demo

PAPER ?=
SCALE ?= small
reproduce: $(READY)  ## Repeat a paper: make reproduce PAPER=fedclup SCALE=small (without PAPER: list them)
	$(BIN)/plures reproduce $(PAPER) --scale $(SCALE)

# Most of the time of the tests is compiling (see conftest.py): no worker compiles a program twice.
STORED := JAX_ENABLE_COMPILATION_CACHE=true JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.cache/tests-xla \
  JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1
PYTEST := OPENBLAS_NUM_THREADS=1 $(STORED) $(BIN)/python -m pytest

test: $(READY)  ## Run the test suite (what CI runs)
	$(PYTEST) -n $(WORKERS) --dist loadgroup -m "not slow"

# With METHOD=ditto: the contract of that method and its own tests.
CORE := errors types tree keys registry wording method local
QUICK_TESTS := $(if $(METHOD),\
  $(wildcard tests/methods/test_*$(METHOD)*.py tests/methods/*/test_*$(METHOD)*.py tests/personalize/test_*$(METHOD)*.py) \
  $(wildcard src/plures/methods/$(METHOD).py src/plures/methods/*/$(METHOD).py src/plures/personalize/$(METHOD).py),\
  tests/test_layers.py tests/test_structure.py tests/test_errors.py tests/test_registry.py $(CORE:%=src/plures/%.py) \
  tests/cli/test_cli.py::test_a_study_file_runs)

quick: $(READY)  ## A minute and a half for the loop of a day; with METHOD=ditto half a minute on one method
	CONTRACT_OF=$(or $(METHOD),fedavg) $(PYTEST) -n 0 -m "not slow" tests/contract/test_contract.py $(QUICK_TESTS)

test-all: $(READY)  ## Run the test suite with the slow tests
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

check: $(READY) format lint types test  ## Format, lint, types and tests

format: $(READY)  ## Format the code
	$(BIN)/ruff format src papers tests benchmarks examples docs

lint: $(READY)  ## Lint the code
	$(BIN)/ruff check src papers tests benchmarks examples docs

types: $(READY)  ## Check types (strict on src/)
	$(BIN)/mypy

traffic: $(READY)  ## Write the table of bytes per message that the contract suite compares with
	$(BIN)/python tests/contract/write_traffic.py

bench-engine: $(READY)  ## Time the engine against its peers and write benchmarks/engine.md
	$(BIN)/python benchmarks/engine/bench.py

bench-gpu: $(READY)  ## Time the engine on an accelerator (needs the cuda extra) and write benchmarks/engine-gpu.md
	JAX_PLATFORMS= PYTHONPATH=benchmarks/engine $(BIN)/python benchmarks/engine/gpu.py --out benchmarks

bench-padding: $(READY)  ## Measure how much local work is padding and write benchmarks/padding.md
	$(BIN)/python benchmarks/padding.py

bench-scaling: $(READY)  ## Measure time and memory against the number of clients and write benchmarks/scaling.md
	$(BIN)/python benchmarks/scaling.py

bench-data: $(READY)  ## Pooled, alone and FedAvg on every data set (needs PLURES_DATA); writes benchmarks/data.md
	$(BIN)/python benchmarks/data.py

bench-hypcluster: $(READY)  ## Time HypCluster's rounds against FedJAX's and write benchmarks/hypcluster.md
	PYTHONPATH=benchmarks/engine $(BIN)/python benchmarks/hypcluster.py

bench-threshold: $(READY)  ## Time Threshold-Clustering by one product against a loop and write benchmarks/threshold.md
	$(BIN)/python benchmarks/threshold.py

bench-convex: $(READY)  ## Time convex clustering against CVXPY, its paths, and 100,002 clients; writes benchmarks/convex.md
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/convex.py

bench-fedclup: $(READY)  ## Time a path of FedCLUP's strengths, exactly and iterated, and count rounds; writes benchmarks/fedclup.md
	OPENBLAS_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python benchmarks/fedclup.py

bench-lgmix: $(READY)  ## Time a round of LG-Mix against one of FedAvg, and its trace; writes benchmarks/lgmix.md
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/lgmix.py

bench-advice: $(READY)  ## Ask for advice on worlds whose answer is known, ten seeds each; writes benchmarks/advice.md
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/advice.py

bench-programs: $(READY)  ## Time step sizes that share a program and write benchmarks/shared_programs.md
	$(BIN)/python benchmarks/shared_programs.py

bench-defaults: $(READY)  ## Score every method with its defaults against the better of two ends; writes benchmarks/defaults.md (slow)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/defaults.py

bench-regret: $(READY)  ## Score recommendations on 74 federations and write benchmarks/regret.md (slow)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/regret.py

bench-page: $(READY)  ## Measure the size and the loading time of the report page (needs chromium); writes benchmarks/page.md
	$(BIN)/python benchmarks/page.py

layers: $(READY)  ## Draw the layers again in README.md, CONTRIBUTING.md and docs/design.md
	$(BIN)/python docs/site/layer_diagram.py

measure: $(READY)  ## Measure the house and write the table of docs/design.md (TEST_SECONDS=... with the time of make test)
	$(BIN)/python benchmarks/measure.py $(if $(TEST_SECONDS),--test-seconds $(TEST_SECONDS))

pictures: $(READY)  ## Draw the pictures of docs/heterogeneity
	$(BIN)/python docs/heterogeneity/draw.py

# The theme announces its future on every run; the variable is its own switch for that.
docs docs-serve: export NO_MKDOCS_2_WARNING = 1
docs: $(READY)  ## Build the documentation site into site/ (open site/index.html)
	$(BIN)/mkdocs build --strict

docs-serve: $(READY)  ## Serve the documentation site, built anew whenever a page changes
	$(BIN)/mkdocs serve

clean:  ## Remove what the targets made
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache runs site benchmarks/.envs

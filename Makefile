# make demo    plan and train a small GPT on four local processes
# make test    every test
# make bench   the benchmarks
# make check   ruff, mypy, import contracts
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test bench check setup

setup: $(STAMP)

# torch first and by number: a bare `torch` may bring a build for hardware that is not here.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install torch==2.13.0
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

bench: $(STAMP)
	for name in search_time pairs predict unequal paper synthesis schedules pipelines pipeline_runs; do OMP_NUM_THREADS=1 $(BIN)/python benchmarks/$$name.py || exit 1; done

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

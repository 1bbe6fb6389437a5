# Each target makes .venv and installs on its first run; nothing but Python, pip and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OLDEST := .venv-oldest
ARGS ?=
SECONDS ?= 540

.PHONY: bench reports quick test test-all list-test-all test-oldest lint tolerance acceptance acceptance-gpu soak-gpu sanitizer-gpu sweep-memory docs site clean

bench: $(STAMP)
	$(BIN)/pytest --ecornn-bench --ecornn-budget 2 $(ARGS)

# The stored reports of this machine's GPU, those that are missing or stale; what SECONDS do not suffice for, the next run.
reports: $(STAMP)
	$(BIN)/python -m pytest_ecornn.suites.published --seconds $(SECONDS) $(ARGS)

# The tests that a change touches: of uncommitted files, or those of the last commit.
quick: $(STAMP)
	$(BIN)/python -m tests.tools.quick $(ARGS)

# Everything that a commit must pass.
test: $(STAMP)
	$(BIN)/pytest --numprocesses 2 --dist worksteal $(ARGS)

# Every parameter, by another seed in each run; the whole self-check; the oldest versions. For a night.
test-all: $(STAMP) $(OLDEST)/.installed
	ECORNN_TEST_ALL=1 $(BIN)/pytest --numprocesses 2 --dist worksteal $(ARGS)
	$(BIN)/pytest --ecornn-selfcheck --numprocesses 2
	$(MAKE) test-oldest

# What test-all runs and test does not.
list-test-all: $(STAMP)
	ECORNN_TEST_ALL=1 $(BIN)/pytest --collect-only -q -m only_test_all $(ARGS)

# The core of the tests on the oldest versions that are declared, in a virtual environment of its own.
test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/pytest --numprocesses 2 --dist worksteal tests/contract/test_contract.py tests/run/test_discovery.py \
		tests/reporting/test_reporting.py tests/end_to_end/test_runs.py tests/project/test_imports.py $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.tools.as_installed mypy
	$(BIN)/python -m tests.tools.as_installed lint-imports

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --constraint constraints.txt setuptools wheel
	$(BIN)/python -m pip install -qq --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $(STAMP)

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install -qq --constraint constraints-oldest.txt setuptools wheel
	$(OLDEST)/bin/python -m pip install -qq --constraint constraints-oldest.txt --no-build-isolation --editable '.[test]'
	touch $@

tolerance: $(STAMP)
	$(BIN)/python -m pytest_ecornn.suites.tolerance --output docs/notes/tolerance.md $(ARGS)

acceptance: $(STAMP)
	$(BIN)/python -m pytest_ecornn.suites.acceptance --output docs/notes/acceptance.md $(ARGS)

acceptance-gpu: $(STAMP)
	$(BIN)/python -m pytest_ecornn.suites.acceptance_gpu --output docs/notes/acceptance_gpu.md $(ARGS)

soak-gpu: $(STAMP)
	$(BIN)/python -m pytest_ecornn.suites.soak_gpu $(ARGS)

sweep-memory: $(STAMP)
	$(BIN)/python -m tests.tools.memory_sweep $(ARGS)

sanitizer-gpu: $(STAMP)
	$(BIN)/python -m pytest_ecornn.suites.sanitizer_gpu $(ARGS)

docs: $(STAMP)
	$(BIN)/python -m pytest_ecornn.reporting $(dir $(wildcard reports/*/report.json))
	$(BIN)/python -m pytest_ecornn.suites.published --render
	$(BIN)/python -m pytest_ecornn.suites.published.front_chart
	$(BIN)/python -m pytest_ecornn.suites.figures
	$(BIN)/python -m tests.tools.readme

# The documentation as a site, in site/, and the stored reports in site/results/. A link or an anchor that leads nowhere fails it.
site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict $(ARGS)
	$(BIN)/python -m pytest_ecornn publish reports --output site/results

clean:
	rm -rf $(VENV) $(OLDEST) site reports/local .hypothesis build *.egg-info

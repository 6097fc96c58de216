# What a contributor needs. Every target works from a clean clone; the first builds the environment.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Many tests wait for what another process does: twice as many at once as there are processors end in half the time.
WORKERS ?= $(shell echo $$(( 2 * $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1) )))

.PHONY: test check lint docs site dist wheels format clean

# Where the native part was built, it is what the tests run over: those of what it replaces run over Python as well.
BY_PYTHON := tests/unit/supervisor/keeper tests/e2e/test_run.py tests/e2e/test_supervisor_runs.py \
  tests/crash/test_undo_crash.py tests/crash/test_undo_cut_short.py tests/crash/test_undo_disk_full.py

test: $(VENV)/ready  ## install into .venv and run the tests
	$(BIN)/pytest -n $(WORKERS) --dist worksteal
	HOLDFAST_NATIVE=0 $(BIN)/pytest -n $(WORKERS) --dist worksteal $(BY_PYTHON)

check: $(VENV)/ready  ## the same of what is quick, on the embedded store: what to wait for after each change
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -k "not postgres" tests/unit tests/contract

# Without Node.js on the machine pyright would fetch it by itself; the wheel is the same from where all else comes from.
lint: $(VENV)/ready  ## what CI checks besides the tests
	command -v node >/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check 'pyright[nodejs]'
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

docs: $(VENV)/ready  ## write the reference and the man page anew, and build the site
	$(BIN)/python docs/generate.py
	$(MAKE) site

site: $(VENV)/ready  ## build the site into site, from the pages as they are; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The wheel comes from the sdist, so that what is missing in that is noticed.
dist: $(VENV)/ready  ## build the sdist and the wheel for this machine into dist, and try the wheel in a bare environment
	$(BIN)/pip install --quiet --disable-pip-version-check build
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	rm -rf dist/native
	$(BIN)/python tests/bare_install.py dist/*.whl

# Each for one C library and machine; `pip install .` builds the one for this machine.
wheels: $(VENV)/ready  ## build wheels for glibc and musl, on x86-64 and aarch64, into dist
	$(BIN)/pip install --quiet --disable-pip-version-check ziglang
	zig=$$($(BIN)/python -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))')/zig; \
	for machine in x86_64 aarch64; do \
	  for target in manylinux_2_28:gnu.2.28 musllinux_1_2:musl; do \
	    HOLDFAST_WHEEL=$${target%%:*}_$$machine \
	    HOLDFAST_CC="$$zig cc -target $$machine-linux-$${target##*:}" \
	    $(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist . || exit 1; \
	  done; \
	done

format: $(VENV)/ready  ## put the source into its standard form
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# (The native part is built as part of the installation.)
$(VENV)/ready: pyproject.toml $(wildcard native/*.*)
	@echo 'making an environment in $(VENV), and installing into it'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

clean:  ## remove the environment and what tools left behind
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis .import_linter_cache

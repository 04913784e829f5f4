# Two commands from nothing: `make quickstart` runs the default sweep, `make test` what CI runs.
# Both make .venv once, from constraints.txt; the second time they start at once.
ROOT := $(patsubst %/,%,$(dir $(realpath $(lastword $(MAKEFILE_LIST)))))
VENV ?= $(ROOT)/.venv
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3,$(shell $(p) -c 'import sys; sys.version_info[:2] in ((3,11),(3,12)) and print("$(p)")' 2>/dev/null)))
BIN := $(VENV)/bin
STAMP := $(VENV)/made-from-$(shell cat $(ROOT)/constraints.txt $(ROOT)/pyproject.toml | cksum | cut -d' ' -f1)
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The CPU build of torch is not the one that the default index serves: README, "torch".
TORCH_INDEX ?=
PYTEST := $(BIN)/python -m pytest

.PHONY: help quickstart test env lint unit contract docs browser postgres smoke slurm nightly next bench clean

help:
	@echo "make quickstart   run the default sweep: real verl on this machine's CPU, a leaderboard and a report"
	@echo "make env          the environment alone: .venv, from constraints.txt"
	@echo "make test         everything that CI runs"
	@echo "make lint unit contract browser postgres smoke slurm   parts of it;   make bench   start-up times"
	@echo "make docs         the site of docs/, built strictly, in build/site"

quickstart: env
	$(BIN)/hysweep run -m sweep=quickstart

test: lint unit contract docs browser postgres smoke slurm bench

env: $(STAMP)

$(STAMP):
	@test -n "$(PYTHON)" || { echo "hysweep needs Python 3.11 or 3.12: install one, or give make PYTHON=/path/to/python3.11"; exit 2; }
	@echo "making $(VENV), once; it takes some minutes"
	@echo "- an environment of $(PYTHON)"
	@$(PYTHON) -m venv --clear $(VENV)
	@echo '*' >$(VENV)/.gitignore  # wherever it is made, nobody commits it
	@$(if $(TORCH_INDEX),echo "- torch from $(TORCH_INDEX)" && $(PIP) install --quiet --no-deps --index-url $(TORCH_INDEX) "$$(grep ^torch== $(ROOT)/constraints.txt)",true)
	@echo "- the $$(grep -c == $(ROOT)/constraints.txt) packages of constraints.txt; the longest step"
	@$(PIP) install --quiet --no-deps --requirement $(ROOT)/constraints.txt
	@echo "- hysweep itself"
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable $(ROOT)
	@echo "- the wheels of verl 0.9.0 and 0.9.1, to compare with"
	@for version in 0.9.0 0.9.1; do $(PIP) download --quiet --no-deps --dest $(VENV)/wheels verl==$$version || exit 1; done
	@echo "- whether all fits together"
	@$(PIP) check
	@touch $@

lint: env
	cd $(ROOT) && $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

unit: env
	cd $(ROOT) && $(PYTEST) -n 3 --dist worksteal -m "not verl and not contract and not browser and not slurm and not postgres"

contract: env
	cd $(ROOT) && $(PYTEST) -n 3 --dist worksteal -m contract tests/contract

docs: env
	cd $(ROOT) && NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Debian's chromium; brought here where it is missing and may be brought.
browser: env
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || (apt-get update -qq && apt-get install -y -qq chromium >/dev/null) || true
	cd $(ROOT) && $(PYTEST) -n 3 --dist worksteal -m browser tests/report

# A real PostgreSQL, started by the tests: brings its Debian package, needs root. Elsewhere it says so and is skipped.
postgres: env
	cd $(ROOT) && WITH_POSTGRES=1 $(PYTEST) -m postgres tests/study

smoke: env
	cd $(ROOT) && $(PYTEST) -m "verl and not slurm"

# Two real SLURM clusters on this machine, for half of the tests each: brings its Debian packages, needs root. Elsewhere it says so and is skipped.
slurm: env
	cd $(ROOT) && WITH_SLURM=1 $(PYTEST) -n 2 --dist loadfile -m slurm tests/slurm

# The newest release candidate of Hydra, allowed to fail: it tells early what will break.
next: env
	$(PYTHON) -m venv --clear $(VENV)-next
	echo '*' >$(VENV)-next/.gitignore
	$(VENV)-next/bin/python -m pip install --quiet --pre 'hydra-core>=1.4.0rc1' 'omegaconf' $(ROOT) hypothesis pytest pytest-timeout
	-cd $(ROOT) && $(VENV)-next/bin/python -m pytest -m "not verl and not contract and not slow" tests/schema tests/compose tests/compile tests/check

nightly: env next
	cd $(ROOT) && HYSWEEP_NIGHTLY=1 $(PYTEST) -m "slow and not verl and not slurm"
	cd $(ROOT) && HYSWEEP_NIGHTLY=1 WITH_SLURM=1 $(PYTEST) -m slurm tests/slurm -k "quickstart or campaign"

bench: env
	cd $(ROOT) && $(BIN)/python benchmarks/startup.py 3
	cd $(ROOT) && $(BIN)/python benchmarks/layouts.py 2
	cd $(ROOT) && $(BIN)/python benchmarks/controller.py 50 1000
	cd $(ROOT) && $(BIN)/python benchmarks/data.py 1000000

clean:
	rm -rf $(ROOT)/.venv $(ROOT)/build $(ROOT)/dist

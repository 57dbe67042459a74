# What a machine with Python 3.11 or newer, pip and make needs: nothing else is done by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
# Workers of the tests, which wait for processes much of the time: more than there are cores.
JOBS ?= 3
# Large packages that are imported for little, or by tools that come compiled.
RARE := apprise|diffusers|fontTools|genai_prices|matplotlib|mpl_toolkits|mypy|mypyc|narwhals|oauthlib|pip|pygments|pytorch_lightning|ruamel|setuptools|sklearn

.PHONY: install up test test-all check site release clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt examples/package-lock.json
	@echo "installing Oven Controller and its packages into $(VENV): about two minutes"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than 3.11; make PYTHON=python3.11 (or newer) $(MAKECMDGOALS)"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@! command -v npm >/dev/null || npm ci --silent --prefix examples || \
		echo "npm could not install what examples/agent.mjs needs; its test is skipped"
	@# The pip that comes with Python takes twice as long for the rest, and does where there is no other.
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.3'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[all,dev]"
	@# pip would compile on one core, and much that is never imported; what is left out is compiled when it is.
	@$(BIN)/python -m compileall -qq -j 0 -x '/(tests|models|pipelines|testing|$(RARE))/' $(VENV)/lib || true
	@touch $(STAMP)
	@echo "installed; next: make up"

# make up ARGS="--headless --steps 120 --seed 1"
up: $(STAMP)
	@$(BIN)/oven-controller up $(ARGS)

# What protects users, on every change: faults, fuzzing, hostile agents, kills, replay, examples, bit-equality.
test: $(STAMP)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=15 $(ARGS)

# Everything: also whole compatibility matrices, clusters, containers, the recorded gym episodes, and the benches' tests.
test-all: $(STAMP)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=15 -m "" tests bench/tests $(ARGS)
	$(BIN)/mypy bench

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config importlinter.toml
	$(BIN)/python docs/prose.py
	$(BIN)/python docs/names.py
	@$(MAKE) --no-print-directory site

# The docs as a site in site/; a wrong link is an error.
site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What would be uploaded, in dist/: the tag of a commit is v and the version in pyproject.toml.
release: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m pytest -q -m "" tests/unit/test_release.py

clean:
	rm -rf dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

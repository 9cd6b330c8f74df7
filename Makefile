# The commands of the project; `make help` lists them. Each command first runs scripts/set-up.

CARGO ?= cargo
BUILT := $(or $(CARGO_TARGET_DIR),target)
TOOLS := $(BUILT)/tools/current/bin
HOST = $(shell rustc --print host-tuple)
# Debian's CNI plugins, which `scripts/set-up image` installs.
PLUGINS ?= /usr/lib/cni
# A build that would change Cargo.lock fails.
LOCKED := --locked
# Always the whole workspace: a single set of features, so that no crate is compiled twice.
NEXTEST := $(TOOLS)/cargo-nextest nextest run $(LOCKED) --workspace

# Targets whose crates cargo-deny checks: Madako's platforms, so that cargo fetches no crates of other platforms.
PLATFORMS := --filter-platform x86_64-unknown-linux-gnu --filter-platform aarch64-unknown-linux-gnu
# An unused exception in deny.toml is an error.
OUTDATED := --deny unmatched-skip --deny unnecessary-skip --deny license-not-encountered

.PHONY: help run monitor lab image tools-image service-image program package test check test-long mutants bench fmt
.DEFAULT_GOAL := help

help: ## Lists the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## Builds the service and runs it on a simulated data center (ARGS="--for 60s --seed 7 -o json")
	@scripts/set-up build
	$(CARGO) build $(LOCKED) --workspace --bin madako
	@$(BUILT)/debug/madako demo $(ARGS)

monitor: ## Runs the demo with a Prometheus that evaluates the alert rules of grafana/ (PROMETHEUS=127.0.0.1:9090)
	@scripts/set-up build monitor
	$(CARGO) build $(LOCKED) --workspace --bin madako
	@scripts/monitor $(BUILT)/debug/madako $(ARGS)

image: tools-image service-image ## Writes the tools image for nodes, and the image of the service

tools-image: ## Writes the tools image for nodes as an archive for docker load (IMAGE=registry.example.com/madako-tools:1.0 PLUGINS=DIR)
	@scripts/set-up build image
	@# With a target, so that build scripts and macros are not static; in a directory of its own, so that others stay built.
	RUSTFLAGS="-C target-feature=+crt-static" CARGO_TARGET_DIR=$(BUILT)/image \
		$(CARGO) build $(LOCKED) --release --package madako-tools --target $(HOST)
	@scripts/image $(BUILT)/image/$(HOST)/release/madako-tools $(BUILT)/image/madako-tools.tar \
		--plugins $(PLUGINS) $(IMAGE)

# The program of packages and images: its size counts, and a stripped program still has its names in backtraces.
program:
	@scripts/set-up build
	$(CARGO) build $(LOCKED) --workspace --release --bin madako
	@mkdir -p $(BUILT)/package
	@cp $(BUILT)/release/madako $(BUILT)/package/madako
	@strip --strip-debug $(BUILT)/package/madako

package: service-image ## Writes the Debian package of the service, and its image as an archive for docker load
	@scripts/package $(BUILT)/package/madako $(BUILT)/package

service-image: program
	@scripts/service-image $(BUILT)/package/madako $(BUILT)/package/madako-image.tar

lab: tools-image ## Starts machines and the service on this host until Ctrl-C; as root (docs/lab.md; MACHINES=5)
	@scripts/set-up build lab
	$(CARGO) build $(LOCKED) --workspace --bin madako --bin madako-lab
	@$(BUILT)/debug/madako-lab $(or $(MACHINES),5) $(BUILT)/image/madako-tools.tar

test: tools-image ## Runs all tests, including those against a real etcd and those that find planted bugs (docs/canaries.md)
	@scripts/set-up build test
	$(CARGO) test $(LOCKED) --workspace --doc
	$(NEXTEST) --no-run
	@# Else the first tests wait in fsync until gigabytes of build output are on the disk.
	@sync
	$(NEXTEST)

check: ## Runs all checks that do not run the service, as CI does
	@scripts/set-up build check
	$(CARGO) fmt --all --check
	$(CARGO) metadata $(LOCKED) --format-version 1 $(PLATFORMS) >$(TOOLS)/metadata.json
	$(TOOLS)/cargo-deny $(LOCKED) --metadata-path $(TOOLS)/metadata.json --log-level error \
		check --hide-inclusion-graph $(OUTDATED) --show-stats bans licenses sources
	$(TOOLS)/python grafana/check.py
	$(CARGO) clippy $(LOCKED) --workspace --all-targets -- -D warnings
	$(NEXTEST) --test house

test-long: tools-image ## Runs longer tests: more cases, long simulations, chaos
	@scripts/set-up build test long
	MADAKO_TEST_LONG=1 MADAKO_CONTRACT_SEEDS=1000..2000 $(NEXTEST) --profile long --release --run-ignored all
	@# A seed gives the same trace with and without optimization.
	$(CARGO) build $(LOCKED) --workspace --bin madako-chaos
	$(BUILT)/debug/madako-chaos simulate --seed 3 --for 20m --trace $(BUILT)/tmp/trace-debug
	$(BUILT)/release/madako-chaos simulate --seed 3 --for 20m --trace $(BUILT)/tmp/trace-release
	cmp $(BUILT)/tmp/trace-debug $(BUILT)/tmp/trace-release

mutants: ## Changes the code in 300 places, one at a time, and counts the changes that tests and simulation find (docs/mutants.md)
	@scripts/set-up build test
	scripts/mutants $(ARGS)

bench: ## Runs the measurements of docs/BENCHMARKS.md
	@scripts/set-up build test
	$(CARGO) bench $(LOCKED) --workspace --bench '*'
	$(CARGO) run $(LOCKED) --release --package madako-embedded-etcd --example bench

fmt: ## Formats the code
	$(CARGO) fmt --all

# The commands of the project; `make help` lists them. Each does its own set-up (scripts/set-up).

CARGO ?= cargo
BUILT := $(or $(CARGO_TARGET_DIR),target)
TOOLS := $(BUILT)/tools/current/bin
# The lock file counts: a build that would change it fails.
LOCKED := --locked
# Always the whole workspace: one choice of features, so that nothing is compiled twice.
NEXTEST := $(TOOLS)/cargo-nextest nextest run $(LOCKED) --workspace

# What cargo-deny judges: the crates of the systems that Madako runs on, so that no others have to be fetched.
PLATFORMS := --filter-platform x86_64-unknown-linux-gnu --filter-platform aarch64-unknown-linux-gnu
# An exception in deny.toml that is not needed any more is an error.
OUTDATED := --deny unmatched-skip --deny unnecessary-skip --deny license-not-encountered

.PHONY: help run monitor test check test-long bench fmt
.DEFAULT_GOAL := help

help: ## Lists these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## Builds and shows the whole service on a simulated data center (ARGS="--for 60s --seed 7 -o json")
	@scripts/set-up build
	$(CARGO) build $(LOCKED) --workspace --bin madako
	@$(BUILT)/debug/madako demo $(ARGS)

monitor: ## The same with a Prometheus beside it, and the alert rules of grafana/ (PROMETHEUS=127.0.0.1:9090)
	@scripts/set-up build monitor
	$(CARGO) build $(LOCKED) --workspace --bin madako
	@scripts/monitor $(BUILT)/debug/madako $(ARGS)

test: ## Every test, those against a real etcd included, and that planted bugs are found (docs/canaries.md)
	@scripts/set-up build test
	$(CARGO) test $(LOCKED) --workspace --doc
	$(NEXTEST)

check: ## What a machine can judge without running the service; CI does the same
	@scripts/set-up build check
	$(CARGO) fmt --all --check
	$(CARGO) metadata $(LOCKED) --format-version 1 $(PLATFORMS) >$(TOOLS)/metadata.json
	$(TOOLS)/cargo-deny $(LOCKED) --metadata-path $(TOOLS)/metadata.json --log-level error \
		check --hide-inclusion-graph $(OUTDATED) --show-stats bans licenses sources
	$(TOOLS)/python grafana/check.py
	$(CARGO) clippy $(LOCKED) --workspace --all-targets -- -D warnings
	$(NEXTEST) --test house

test-long: ## Longer forms of the tests: many cases, long simulations, chaos
	@scripts/set-up build test
	MADAKO_TEST_LONG=1 MADAKO_CONTRACT_SEEDS=1000..2000 $(NEXTEST) --profile long --release --run-ignored all
	@# A seed is the same with and without optimization.
	$(CARGO) build $(LOCKED) --workspace --bin madako-chaos
	$(BUILT)/debug/madako-chaos simulate --seed 3 --for 20m --trace $(BUILT)/tmp/trace-debug
	$(BUILT)/release/madako-chaos simulate --seed 3 --for 20m --trace $(BUILT)/tmp/trace-release
	cmp $(BUILT)/tmp/trace-debug $(BUILT)/tmp/trace-release

bench: ## The measurements of docs/BENCHMARKS.md
	@scripts/set-up build test
	$(CARGO) bench $(LOCKED) --workspace --bench '*'
	$(CARGO) run $(LOCKED) --release --package madako-embedded-etcd --example bench

fmt: ## Formats the code
	$(CARGO) fmt --all

# The front door: `make` lists what there is.
#
# Building needs no root once everything is installed. Labs do: `demo` and `bench`
# ask for it by sudo, `test` wants to be run as root.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

TARGET := $(or $(CARGO_TARGET_DIR),target)
TRAPEZE := $(TARGET)/release/trapeze
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
CPUS := $(shell nproc)

# Labs are hosts and servers: on many cores too many at once only wait for each other.
TEST_THREADS ?= $(shell [ $(CPUS) -gt 4 ] && echo 4 || echo $(CPUS))
# Seconds for each target of `make fuzz`.
FUZZ_SECONDS ?= 60
# Options of `trapeze lab bench`.
BENCH ?=

# Where rustup puts cargo, for shells that do not know yet.
export PATH := $(PATH):$(HOME)/.cargo/bin

.DEFAULT_GOAL := help
.PHONY: help setup build demo test bench lint fuzz clean-labs

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install all that is missing, by apt
	@scripts/setup.sh

build: ## the binary, target/release/trapeze
	@scripts/setup.sh build
	cargo build --release --locked -p trapeze-cli

demo: ## see what it does: a cluster in namespaces, shown in a minute
	@scripts/setup.sh build lab
	cargo build --release --locked -p trapeze-cli
	@$(SUDO) $(TRAPEZE) lab demo

test: ## everything: unit, property, BPF and lab tests; as root
	@[ "$$(id -u)" = 0 ] || { \
	  echo 'make test: the lab and BPF tests need root: sudo -E env "PATH=$$PATH" make test' >&2; exit 1; }
	@scripts/setup.sh build lab test
	@# Lab tests start the binary that is built beside them.
	cargo build --locked -p trapeze-cli
	RUST_TEST_THREADS=$(TEST_THREADS) cargo test --locked --workspace --no-fail-fast

bench: ## measure it beside a proxy and a server alone; BENCH=--help tells how
	@scripts/setup.sh build lab bench
	cargo build --release --locked -p trapeze-cli
	@$(SUDO) $(TRAPEZE) lab bench $(BENCH)

lint: ## formatting, and clippy without a warning
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

fuzz: ## every parser, FUZZ_SECONDS=60 each; needs cargo-fuzz
	@cargo fuzz --version >/dev/null 2>&1 || { \
	  echo 'make fuzz: cargo-fuzz is missing: cargo install cargo-fuzz' >&2; exit 1; }
	fuzz/seeds.sh
	@cd fuzz && for target in $$(RUSTC_BOOTSTRAP=1 cargo fuzz list); do \
	  echo "== $$target"; \
	  RUSTC_BOOTSTRAP=1 cargo fuzz run "$$target" -- -max_total_time=$(FUZZ_SECONDS); \
	done

clean-labs: ## take down whatever labs there are
	@for lab in /run/trapeze/lab/*/; do \
	  [ -d "$$lab" ] || continue; \
	  name=$$(basename "$$lab"); echo "down: $$name"; \
	  $(SUDO) $(TRAPEZE) lab down --name "$$name"; \
	done

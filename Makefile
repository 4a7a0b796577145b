# Two commands matter: `make demo` and `make test`. The others are their parts, or take longer.
.DEFAULT_GOAL := help
SHELL := /bin/bash
# The real trace of the miss-ratio tests: named by the environment, or found beside the checkout, or skipped and counted.
export FOREBAY_TRACE ?= $(wildcard $(CURDIR)/../shared/traces/cloudPhysicsIO.csv)
export FOREBAY_BIN := $(CURDIR)/target/release/forebay
CARGO ?= cargo
SEEDS ?= 1000
FUZZ_SECONDS ?= 20

.PHONY: help build demo check test soak bench bench-cache bench-cache-open bench-cache-peers bench-cleaning bench-initiator bench-target bench-writelog bench-postmark bench-sharing bench-fairness bench-marks clean

help:
	@echo "make demo    the main job on this machine alone: a slow remote disk, then the same through a local cache (~30 s)"
	@echo "make check   formatting, lints, licences, arrows between crates"
	@echo "make test    everything (installs the Debian packages it needs when they are missing)"
	@echo "make soak    many seeds, mutations, long fuzzing"
	@echo "make bench-initiator  our initiator beside libiscsi's, on our target and tgt"
	@echo "make bench   measurements side by side, raw results printed"
	@echo "make bench-cache  what the cache costs beside the bare file it lies in (~4 min)"
	@echo "make bench-cache-open  how long a full cache of 64 GiB takes to open, and how much memory (~2 min)"
	@echo "make bench-cache-peers  bcache, dm-cache and our cache in virtual machines that are reset while they write (~15 min)"
	@echo "make bench-cleaning  what cleaning costs others, and others cost it (~3 min)"
	@echo "make bench-target  the target beside tgt and beside the bare TCP loopback (needs tgt; ~7 min)"
	@echo "make bench-writelog  the write log beside bare durable writes, and opening a full one (~3 min)"
	@echo "make bench-sharing  what sharing a LUN costs who is alone, and what a callback costs (~1 min)"
	@echo "make bench-fairness  what a client that asks for little keeps beside others that ask for all they can get (~3 min)"
	@echo "make bench-marks  what change marks cost a write, in one process and without a network (~15 s)"
	@echo "make bench-postmark  PostMark on ext2 mounted sync, plainly over iSCSI and with the write log (as root, ~40 min)"

build:
	$(CARGO) build --release --locked --package cli

demo: build
	$(FOREBAY_BIN) demo

check:
	# By name: `cargo fmt` does not see a file that only a macro or another workspace leads to.
	git ls-files -z '*.rs' | xargs -0 rustfmt --edition 2024 --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	# Another workspace: what the others have renamed is found here, not after all tests.
	RUSTC_BOOTSTRAP=1 $(CARGO) clippy --manifest-path fuzz/Cargo.toml --all-targets --locked -- -D warnings
	tests/tools/install-cargo-tool cargo-deny 0.20
	# Also what other systems would need, which the build has not fetched.
	$(CARGO) fetch --locked
	$(CARGO) fetch --locked --manifest-path fuzz/Cargo.toml
	$(CARGO) deny --offline check bans licenses sources

# What is built once needs no notes for the next build.
test: export CARGO_INCREMENTAL ?= 0
test:
	tests/tools/install-packages
	$(MAKE) build
	$(MAKE) check
	tests/tools/run-tests
	FUZZ_SEED=1 tests/tools/fuzz $(FUZZ_SECONDS)

soak: build
	FOREBAY_SEEDS=$(SEEDS) FOREBAY_KILL_ROUNDS=200 tests/tools/run-tests --release
	tests/tools/mutations
	tests/tools/fuzz 3600

bench: build
	bench/run

bench-target: build
	$(CARGO) build --release --locked --package bench
	target/release/bench --json target/bench-target.json

bench-cache:
	$(CARGO) build --release --locked --package bench --bin cache-speed
	mkdir -p target/cache-speed
	target/release/cache-speed --folder target/cache-speed

bench-cache-open:
	$(CARGO) build --release --locked --package bench --bin cache-open
	mkdir -p target/cache-open
	target/release/cache-open --folder target/cache-open --crash dirty
	target/release/cache-open --folder target/cache-open --crash warm

bench-cache-peers: build
	tests/tools/install-packages
	$(CARGO) build --release --locked --package bench --bin cache-peers
	bench/cache-peers

bench-writelog:
	$(CARGO) build --release --locked --package bench --bin log-speed
	mkdir -p target/log-speed
	target/release/log-speed --folder target/log-speed

bench-cleaning: build
	bench/cleaning

bench-postmark: build
	FOLDER=target/postmark crates/lab/src/postmark.sh

bench-sharing: build
	$(CARGO) build --release --locked --package bench --bin sharing-speed
	target/release/sharing-speed

bench-fairness: build
	$(CARGO) build --release --locked --package bench --bin fairness
	target/release/fairness
	target/release/fairness --attack write-same --attack unmap --attack compare-and-write --same-blocks

bench-marks:
	$(CARGO) build --release --locked --package bench --bin mark-cost
	target/release/mark-cost

bench-initiator: build
	bench/initiator

clean:
	$(CARGO) clean

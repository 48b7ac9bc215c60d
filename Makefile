# The front door. Each target's script says more; `make help` lists them.

.PHONY: help run test soak setup lint bench
.DEFAULT_GOAL := help
# Arguments of the targets reach their scripts by the environment, so no shell ever parses a film's path.
export MEDIA ARGS ONLY

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

run: ## Build and serve a folder: make run MEDIA=/path/to/films (ARGS="--listen …" for more)
	@scripts/run.sh

test: ## Every test that belongs to a change: at most 15 minutes on two cores
	@scripts/test.sh short

soak: ## The long tier of the same tests, with a summary line
	@scripts/test.sh soak

setup: ## Install what is missing for building, testing and measuring
	@scripts/setup.sh

lint: ## Format, clippy, documentation, licences and the rules of the house
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --locked --quiet
	@scripts/house-rules.sh

bench: ## Measure against plain tools: make bench ONLY=play for one group; report in target/bench
	@scripts/bench.sh

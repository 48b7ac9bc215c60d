#!/usr/bin/env bash
# Builds the release binary and measures it. ONLY names a group (play) or a part of a measurement's name.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
cargo build --release --package ether --package ether-bench
exec target/release/ether-bench --ether target/release/ether ${ONLY:+--only "$ONLY"}

#!/usr/bin/env bash
# Runs every test of one tier: the Rust suites, then the browser's.
#
#   scripts/test.sh [short|soak]
#
# In the long tier the tests find ETHER_SOAK set: it multiplies seeds, combinations and durations, and has a
# nextest profile of its own. Real films are looked for in ETHER_MEDIA, else beside the repository.
set -euo pipefail
cd "$(dirname "$0")/.."
tier=${1:-short}
case $tier in
  short) profile=default; unset ETHER_SOAK ;;
  soak) profile=soak; export ETHER_SOAK=1 ;;
  *) echo "there is no tier $tier: short or soak" >&2; exit 2 ;;
esac
# bash counts these seconds itself.
SECONDS=0

scripts/setup.sh

if [ -z "${ETHER_MEDIA:-}" ] && [ -d ../shared/media ]; then
  ETHER_MEDIA=$(cd ../shared/media && pwd)
  export ETHER_MEDIA
fi
if [ -n "${ETHER_MEDIA:-}" ]; then
  echo "real films: $ETHER_MEDIA"
else
  echo 'real films: none (ETHER_MEDIA is not set and ../shared/media is not there); the tests that play them skip'
fi

failed=()
# The binary first: browser tests, and those that start a server, drive the real one.
cargo build --package ether
cargo nextest run --workspace --profile "$profile" --no-fail-fast || failed+=(rust)
# The runner above knows no examples in documentation. All crates at once, since one alone would be built anew with the
# features that it needs by itself.
cargo test --workspace --doc --quiet || failed+=(examples)

if [ -f testing/browser/package.json ]; then
  # What set-up fetched where the machine's own Node.js is too old.
  PATH="$PWD/target/node/bin:$PATH" npm --prefix testing/browser test || failed+=(browser)
fi

minutes=$((SECONDS / 60)) seconds=$((SECONDS % 60))
if [ ${#failed[@]} -gt 0 ]; then
  printf '%s tier: FAILED (%s) after %d min %02d s\n' "$tier" "${failed[*]}" "$minutes" "$seconds"
  exit 1
fi
printf '%s tier: all suites passed in %d min %02d s\n' "$tier" "$minutes" "$seconds"

#!/usr/bin/env bash
# Builds ether and serves the folder named by MEDIA; without one, a two-minute clip made for the purpose.
# ARGS holds further arguments of `ether serve`, split at spaces.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh run
cargo build --release --package ether
if [ -z "${MEDIA:-}" ]; then
  MEDIA=target/demo
  echo 'No MEDIA was named, so here is a test clip of two minutes. Your own films: make run MEDIA=/path/to/films'
  scripts/make-clips.sh "$MEDIA" demo.mp4
fi
read -ra more <<< "${ARGS:-}"
exec target/release/ether serve --media "$MEDIA" "${more[@]}"

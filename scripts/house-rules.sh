#!/usr/bin/env bash
# The rules of the house that neither rustc nor clippy can see. Prints every breach and fails on the first kind
# found; the lengths of files are only reported.
set -euo pipefail
# The last part of a pipeline runs here, so that `rule` can count.
shopt -s lastpipe
cd "$(dirname "$0")/.."
breaches=0

# rule TITLE: reads the offending lines from standard input.
rule() {
  local found
  found=$(cat)
  [ -n "$found" ] || return 0
  breaches=1
  printf 'house rule: %s\n' "$1" >&2
  printf '%s\n' "$found" | sed 's/^/  /' >&2
}
# Everything that will be committed, whether or not git knows it yet.
files() { git ls-files --cached --others --exclude-standard -- "$@"; }
search() { # PATTERN PATHSPEC...
  local pattern=$1
  shift
  files "$@" | while IFS= read -r file; do [ -f "$file" ] && grep -HnIE "$pattern" "$file" || true; done
}

files '*.rs' | while IFS= read -r file; do
  [ -f "$file" ] || continue
  head -n 1 "$file" | grep -q '^//!' || echo "$file"
done | rule 'a source file opens with //! and says why it exists'

# The patterns are written so that they do not find themselves.
search '\b(TO''DO|FIX''ME|XX''X)\b|\b(to''do|unim''plemented)!\(|#\[ig''nore' '*.rs' '*.js' '*.sh' '*.py' Makefile |
  rule 'nothing unfinished is committed'
search '(^|[^[:alnum:]_./-])/(wo''rk|fa''rm|ro''ot|ho''me/[a-z]+)(/|\b)' ':!*.lock' ':!*lock.json' |
  rule 'no path of one machine'
search '[s]teering repo|[h]elper session|/tmp/[b]rief|\b[i]ssues? (show|#?[0-9])' ':!*.lock' ':!*lock.json' |
  rule 'the repository speaks of itself, not of how the work on it is organised'
search '[a]llow\(\s*unsafe_code|^\s*unsafe_code,|\bunsafe \{' '*.rs' |
  { grep -v '^crates/process/src/sys\.rs:' || true; } |
  rule 'unsafe code has one home: crates/process/src/sys.rs'
search 'sqlx::(sqlite|postgres|pool)|\b(Sqlite|Pg)(Pool|Connection|ConnectOptions)\b' '*.rs' |
  # What the ledger is measured against is the driver alone, without the store.
  { grep -Ev '^(crates/store/|testing/bench/src/ledger/bare\.rs:)' || true; } |
  rule 'database connections have one home: crates/store'
files '*.rs' | while IFS= read -r file; do
  [ -f "$file" ] || continue
  # Every #[allow] says why, on its line or the next few.
  awk -v file="$file" '/#!?\[allow\(/ { open = NR; text = "" }
    open { text = text $0; if (/\)\]/) { if (text !~ /reason/) print file ":" open; open = 0 } }' "$file"
done | rule 'an #[allow] gives its reason'
search $'\t| +$' '*.rs' '*.py' '*.sh' '*.js' '*.css' '*.html' | rule 'no tabs, no trailing spaces'

python3 scripts/dependencies.py || breaches=1

long=$(files '*.rs' | while IFS= read -r file; do [ -f "$file" ] && wc -l "$file"; done | awk '$1 > 600' | sort -rn)
[ -z "$long" ] || printf 'over 600 lines (does each still have one reason to exist?):\n%s\n' "$long"

[ $breaches = 0 ] && echo 'house rules: kept'
exit $breaches

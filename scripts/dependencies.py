"""Checks what the workspace depends on: licences, banned crates, sources, and the walls between its own crates.

usage: dependencies.py          (from the repository's root)

Reads `cargo metadata` and deny.toml, and needs no network beyond what cargo has fetched. Advisories are not
checked: their database is a git repository of its own, which cargo-deny fetches (`cargo deny check advisories`).
"""

import json
import re
import subprocess
import sys
import tomllib

# A crate names only crates of lower floors. A new crate is placed here before it compiles in CI.
FLOORS = {
    "ether-types": 0,
    "ether-media": 1,
    "ether-process": 1,
    "ether-store": 1,
    "ether-tls": 1,
    "ether-transfer": 1,
    "ether-encoder": 2,
    "ether-peer": 2,
    "ether-placement": 2,
    "ether-probe": 2,
    "ether-ffmpeg": 3,
    "ether-library": 3,
    "ether-playback": 3,
    "ether-source": 3,
    "ether-node": 4,
    "ether": 5,
}
# Testing may use whatever it tests.
TESTING = {"ether-testkit", "ether-bench"}
# Crates with one home, and that home.
HOMES = {"libc": {"ether-process"}, "rustls": {"ether-tls"}, "tokio-rustls": {"ether-tls"}, "rcgen": {"ether-tls"}, "x509-parser": {"ether-tls"}}
# TLS providers, of which one may be linked.
PROVIDERS = {"ring", "aws-lc-sys"}

TOKEN = re.compile(r"\(|\)|[^\s()]+")


def licensed(expression, allowed):
    """Whether an SPDX expression can be satisfied with allowed licences alone."""
    # Older manifests write a slash for OR.
    tokens = TOKEN.findall(expression.replace("/", " OR "))
    position = 0

    def peek():
        return tokens[position] if position < len(tokens) else None

    def take():
        nonlocal position
        position += 1
        return tokens[position - 1]

    def alternatives():
        result = conjunction()
        while peek() == "OR":
            take()
            result = conjunction() or result
        return result

    def conjunction():
        result = single()
        while peek() == "AND":
            take()
            result = single() and result
        return result

    def single():
        token = take()
        if token == "(":
            result = alternatives()
            if take() != ")":
                raise ValueError(expression)
            return result
        if peek() == "WITH":
            take()
            token = f"{token} WITH {take()}"
        return token in allowed

    result = alternatives()
    if peek() is not None:
        raise ValueError(expression)
    return result


def built():
    """Name and version of every package that is compiled. `cargo metadata` also lists what a weak feature of a
    dependency would bring in if something else asked for it; `cargo tree` does not."""
    command = ["cargo", "tree", "--workspace", "--locked", "--target=x86_64-unknown-linux-gnu"]
    command += ["--edges=normal,build,dev", "--prefix=none", "--format={p}"]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return {tuple(line.split()[:2]) for line in lines if line}


def findings(metadata, rules, built):
    allowed = set(rules["licenses"]["allow"])
    banned = {ban["crate"] for ban in rules["bans"]["deny"]}
    members = set(metadata["workspace_members"])
    packages = {package["id"]: package for package in metadata["packages"]}
    resolved = {
        node["id"]
        for node in metadata["resolve"]["nodes"]
        if (packages[node["id"]]["name"], f"v{packages[node['id']]['version']}") in built
    }

    for package in sorted(packages.values(), key=lambda p: (p["name"], p["version"])):
        if package["id"] not in resolved:
            continue
        name = f"{package['name']} {package['version']}"
        if package["name"] in banned:
            yield f"{name} is banned (deny.toml)"
        if package["id"] in members:
            yield from walls(package)
            continue
        source = package["source"] or "a path outside the workspace"
        if not source.startswith("registry+https://github.com/rust-lang/crates.io-index"):
            yield f"{name} comes from {source}, not from crates.io"
        expression = package["license"]
        try:
            fits = expression is not None and licensed(expression, allowed)
        except (ValueError, IndexError):
            fits = False
        if not fits:
            yield f"{name} is licensed as {expression!r}, which deny.toml does not allow"

    linked = sorted({packages[i]["name"] for i in resolved} & PROVIDERS)
    if len(linked) > 1:
        yield f"more than one TLS provider is linked: {', '.join(linked)}"


def walls(package):
    name = package["name"]
    ours = [d["name"] for d in package["dependencies"] if d["kind"] != "dev"]
    for crate, homes in HOMES.items():
        if crate in ours and name not in homes:
            yield f"{name} names {crate}, whose home is {', '.join(sorted(homes))}"
    if name in TESTING:
        return
    if name not in FLOORS:
        yield f"{name} has no floor in scripts/dependencies.py"
        return
    for other in (d for d in ours if d == "ether" or d.startswith("ether-")):
        if other in TESTING:
            yield f"{name} ships with {other}, which is for tests"
        elif FLOORS.get(other, name) is name or FLOORS[other] >= FLOORS[name]:
            yield f"{name} (floor {FLOORS[name]}) names {other} (floor {FLOORS.get(other)})"


def main():
    command = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform=x86_64-unknown-linux-gnu"]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    with open("deny.toml", "rb") as file:
        rules = tomllib.load(file)
    compiled = built()
    found = list(findings(metadata, rules, compiled))
    for finding in found:
        print(f"dependencies: {finding}", file=sys.stderr)
    others = len(compiled) - len(metadata["workspace_members"])
    print(f"dependencies: {others} crates, {len(found)} findings; advisories are not checked here")
    return 1 if found else 0


sys.exit(main())

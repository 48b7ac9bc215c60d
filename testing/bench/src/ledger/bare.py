"""A bare loop of the statements of one ledger cycle on SQLite: bare.py FILE CYCLES.

Prints milliseconds per cycle. WAL with synchronous FULL, as the ledger has it; each of the three steps is one
transaction that takes the write lock first. As many cycles again go before, untimed: a log that was just created
grows with every commit, which costs several times what writing into it again does, and the ledger's is older.
"""

import os
import sqlite3
import sys
import time

SESSION = (
    "session, generation, controller_node, controller_boot, target, target_node, target_boot, role, "
    "operation, request, claims, initial_deadline, deadline, retired"
)
FIELDS = [name.strip() for name in SESSION.split(",")]
UPSERT = (
    f"INSERT INTO sessions ({SESSION}) VALUES ({', '.join('?' * 14)}) ON CONFLICT (session) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in FIELDS[1:])
)

path, cycles = sys.argv[1], int(sys.argv[2])
fresh = not os.path.exists(path)
db = sqlite3.connect(path, isolation_level=None)
run = db.execute
run("PRAGMA journal_mode = WAL").fetchall()
run("PRAGMA synchronous = FULL")
if fresh:
    columns = ", ".join(
        f"{name} {'BIGINT' if name in ('generation', 'initial_deadline', 'deadline', 'retired') else 'TEXT'} NOT NULL"
        for name in FIELDS
    )
    db.executescript(
        f"""
        CREATE TABLE meta (id BIGINT NOT NULL PRIMARY KEY, cluster TEXT, revision BIGINT, total BIGINT,
            retired BIGINT, ceiling BIGINT, clock BIGINT, epoch BIGINT, known_schema BIGINT);
        INSERT INTO meta VALUES (1, 'bench', 0, 0, 0, NULL, 0, 0, 6);
        CREATE TABLE pools (scope TEXT, role TEXT, capacity BIGINT, used BIGINT, revision BIGINT,
            PRIMARY KEY (scope, role));
        INSERT INTO pools VALUES ('slots', 'transcode', 1000000, 0, 1), ('scratch', 'transcode', 1000000, 0, 1);
        CREATE TABLE targets (target TEXT NOT NULL PRIMARY KEY, boot TEXT, roles TEXT, revision BIGINT);
        INSERT INTO targets VALUES ('w/cpu', 'w1', 'transcode=scratch,slots', 1);
        CREATE TABLE sessions ({columns}, PRIMARY KEY (session));
        CREATE INDEX sessions_controller ON sessions (controller_node, session) WHERE retired = 0;
        CREATE INDEX sessions_target ON sessions (target_node, target_boot, session) WHERE retired = 0;
        CREATE TABLE claims (session TEXT, scope TEXT, role TEXT, units BIGINT, PRIMARY KEY (session, scope));
        CREATE TABLE evidence (session TEXT, generation BIGINT, part TEXT, author_node TEXT, author_boot TEXT,
            kind TEXT, body TEXT, recorded BIGINT,
            PRIMARY KEY (session, generation, part, author_node, author_boot));
        """
    )


META = "m.cluster, m.revision, m.total, m.retired, m.ceiling, m.clock, m.epoch, m.known_schema"
JOINED = ", ".join(f"s.{name}" for name in FIELDS)
EVIDENCE = "e.generation, e.part, e.author_node, e.author_boot, e.kind, e.body, e.recorded"
NOTHING = "CAST(0 AS BIGINT)"
EVIDENCED = (
    "CASE WHEN EXISTS (SELECT 1 FROM evidence e WHERE e.session = s.session) "
    "THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END"
)
TARGETS = "SELECT CAST(0 AS BIGINT), target, boot, roles, CAST(0 AS BIGINT), CAST(0 AS BIGINT), revision FROM targets"
POOLS = "SELECT CAST(1 AS BIGINT), scope, role, '', capacity, used, revision FROM pools"


def begin(evidenced=NOTHING):
    run("BEGIN IMMEDIATE")
    sql = (
        f"SELECT {META}, {JOINED}, {evidenced} FROM meta m "
        "LEFT JOIN sessions s ON s.session IN (?) WHERE m.id = 1"
    )
    row = run(sql, ("c/1",)).fetchone()
    return row[:8], row[8:]


def finish(meta, total, retired):
    run(
        "UPDATE meta SET cluster = ?, revision = ?, total = ?, retired = ?, ceiling = ?, clock = ?, epoch = ? "
        "WHERE id = 1 AND revision = ?",
        (meta[0], meta[1] + 1, total, retired, meta[4], time.time_ns() // 1000, meta[6], meta[1]),
    )


def pools(slots, scratch):
    run(
        "INSERT INTO pools (scope, role, capacity, used, revision) VALUES (?, ?, ?, ?, ?), (?, ?, ?, ?, ?) "
        "ON CONFLICT (scope, role) DO UPDATE SET capacity = excluded.capacity, used = excluded.used, "
        "revision = excluded.revision",
        ("scratch", "transcode", 1000000, scratch, 1, "slots", "transcode", 1000000, slots, 1),
    )


SCOPES = ("scratch", "slots", "slots", "slots")


def read_targets_and_pools():
    sql = f"{TARGETS} WHERE target IN (?) UNION ALL {POOLS} WHERE scope IN (?, ?, ?, ?)"
    run(sql, ("w/cpu", *SCOPES)).fetchall()


def read_pools():
    run(f"{POOLS} WHERE scope IN (?, ?, ?, ?)", SCOPES).fetchall()


def read_evidence():
    sql = (
        f"SELECT {META}, {JOINED}, {NOTHING}, {EVIDENCE} FROM meta m LEFT JOIN sessions s ON s.session = ? "
        "LEFT JOIN evidence e ON e.session = s.session AND e.generation = s.generation "
        "WHERE m.id = 1 ORDER BY e.part, e.author_node, e.author_boot"
    )
    run(sql, ("c/1",)).fetchall()


def cycle(number):
    now = time.time_ns() // 1000
    meta, session = begin()
    read_targets_and_pools()
    generation = session[1] + 1 if session[0] else 1
    row = ["c/1", generation, "c", "c1", "w/cpu", "w", "w1", "transcode", f"op-{number}", "0" * 64,
           "scratch=10,slots=1000", now + 600000000, now + 600000000, 0]
    finish(meta, 1, 0)
    run(UPSERT, row)
    run(
        "INSERT INTO claims (session, scope, role, units) VALUES (?, ?, ?, ?), (?, ?, ?, ?)",
        ("c/1", "scratch", "transcode", 10, "c/1", "slots", "transcode", 1000),
    )
    pools(1000, 10)
    run("COMMIT")

    meta, session = begin()
    finish(meta, 1, 0)
    run(
        "UPDATE sessions SET deadline = moved.column2 FROM (VALUES (?, ?)) AS moved WHERE session = moved.column1",
        ("c/1", now + 660000000),
    )
    run("COMMIT")

    read_evidence()
    meta, session = begin(EVIDENCED)
    read_pools()
    finish(meta, 1, 1)
    row[12:] = [now + 660000000, 1]
    run(UPSERT, row)
    run("DELETE FROM claims WHERE session IN (?)", ("c/1",))
    pools(0, 0)
    run("COMMIT")


for number in range(cycles):
    cycle(number)
start = time.perf_counter()
for number in range(cycles):
    cycle(number)
print((time.perf_counter() - start) * 1000 / cycles)

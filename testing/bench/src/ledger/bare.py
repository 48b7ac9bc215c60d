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
        CREATE TABLE meta (id BIGINT NOT NULL PRIMARY KEY, revision BIGINT, total BIGINT, retired BIGINT);
        INSERT INTO meta VALUES (1, 0, 0, 0);
        CREATE TABLE pools (scope TEXT, role TEXT, capacity BIGINT, used BIGINT, PRIMARY KEY (scope, role));
        INSERT INTO pools VALUES ('slots', 'transcode', 1000000, 0), ('scratch', 'transcode', 1000000, 0);
        CREATE TABLE targets (target TEXT NOT NULL PRIMARY KEY, boot TEXT, roles TEXT);
        INSERT INTO targets VALUES ('w/cpu', 'w1', 'transcode=scratch,slots');
        CREATE TABLE sessions ({columns}, PRIMARY KEY (session));
        CREATE INDEX sessions_controller ON sessions (controller_node, session) WHERE retired = 0;
        CREATE INDEX sessions_target ON sessions (target_node, target_boot, session) WHERE retired = 0;
        CREATE TABLE claims (session TEXT, scope TEXT, role TEXT, units BIGINT, PRIMARY KEY (session, scope));
        CREATE TABLE evidence (session TEXT, generation BIGINT, part TEXT, body TEXT,
            PRIMARY KEY (session, generation, part));
        """
    )


def begin():
    run("BEGIN IMMEDIATE")
    meta = run("SELECT revision, total, retired FROM meta WHERE id = 1").fetchone()
    session = run(f"SELECT {SESSION} FROM sessions WHERE session IN (?)", ("c/1",)).fetchone()
    return meta, session


def finish(meta, total, retired):
    run(
        "UPDATE meta SET revision = ?, total = ?, retired = ? WHERE id = 1 AND revision = ?",
        (meta[0] + 1, total, retired, meta[0]),
    )


def pools(slots, scratch):
    run(
        "INSERT INTO pools (scope, role, capacity, used) VALUES (?, ?, ?, ?), (?, ?, ?, ?) "
        "ON CONFLICT (scope, role) DO UPDATE SET capacity = excluded.capacity, used = excluded.used",
        ("scratch", "transcode", 1000000, scratch, "slots", "transcode", 1000000, slots),
    )


def read_pools():
    sql = "SELECT scope, role, capacity, used FROM pools WHERE scope IN (?, ?, ?, ?)"
    run(sql, ("scratch", "slots", "slots", "slots")).fetchall()


def cycle(number):
    now = time.time_ns() // 1000
    meta, session = begin()
    run("SELECT target, boot, roles FROM targets WHERE target IN (?)", ("w/cpu",)).fetchone()
    read_pools()
    generation = session[1] + 1 if session else 1
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

    run(f"SELECT {SESSION} FROM sessions WHERE session IN (?)", ("c/1",)).fetchone()
    run("SELECT * FROM evidence WHERE session = ? AND generation = ?", ("c/1", generation)).fetchall()
    meta, session = begin()
    read_pools()
    finish(meta, 1, 1)
    row[12:] = [now + 660000000, 1]
    run(UPSERT, row)
    run("DELETE FROM claims WHERE session IN (?)", ("c/1",))
    pools(0, 0)
    run("DELETE FROM evidence WHERE session IN (?)", ("c/1",))
    run("COMMIT")


for number in range(cycles):
    cycle(number)
start = time.perf_counter()
for number in range(cycles):
    cycle(number)
print((time.perf_counter() - start) * 1000 / cycles)

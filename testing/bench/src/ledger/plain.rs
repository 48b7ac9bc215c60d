//! What ours is compared with: the same rows changed by plain means.

/// The tables of the ledger without its checks, and one function for each step of the cycle. Each takes the
/// lock, as ours does, and changes the rows that ours changes.
pub(crate) const POSTGRES: &str = r"
CREATE TABLE meta (id BIGINT PRIMARY KEY, revision BIGINT NOT NULL, total BIGINT NOT NULL, retired BIGINT NOT NULL,
    clock BIGINT NOT NULL);
INSERT INTO meta VALUES (1, 0, 0, 0, 0);
CREATE TABLE pools (scope TEXT, role TEXT, capacity BIGINT NOT NULL, used BIGINT NOT NULL, PRIMARY KEY (scope, role));
INSERT INTO pools VALUES ('slots', 'transcode', 1000000, 0), ('scratch', 'transcode', 1000000, 0);
CREATE TABLE sessions (
    session TEXT PRIMARY KEY, generation BIGINT NOT NULL, controller_node TEXT NOT NULL,
    controller_boot TEXT NOT NULL, target TEXT NOT NULL, target_node TEXT NOT NULL, target_boot TEXT NOT NULL,
    role TEXT NOT NULL, operation TEXT NOT NULL, request TEXT NOT NULL, claims TEXT NOT NULL,
    initial_deadline BIGINT NOT NULL, deadline BIGINT NOT NULL, retired BIGINT NOT NULL);
CREATE INDEX sessions_controller ON sessions (controller_node, session) WHERE retired = 0;
CREATE INDEX sessions_target ON sessions (target_node, target_boot, session) WHERE retired = 0;
CREATE TABLE claims (session TEXT, scope TEXT, role TEXT NOT NULL, units BIGINT NOT NULL, PRIMARY KEY (session, scope));

CREATE FUNCTION micros() RETURNS BIGINT LANGUAGE sql VOLATILE AS
    'SELECT CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000) AS BIGINT)';

CREATE FUNCTION reserve(slot TEXT) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    following BIGINT;
BEGIN
    PERFORM pg_advisory_xact_lock(7);
    UPDATE meta SET revision = revision + 1, total = total + 1, clock = micros() WHERE id = 1;
    SELECT generation + 1 INTO following FROM sessions WHERE session = slot;
    following := COALESCE(following, 1);
    UPDATE pools SET used = used + 1000 WHERE scope = 'slots' AND role = 'transcode' AND used + 1000 <= capacity;
    UPDATE pools SET used = used + 10 WHERE scope = 'scratch' AND role = 'transcode' AND used + 10 <= capacity;
    INSERT INTO sessions VALUES (slot, following, 'c', 'c1', 'w/cpu', 'w', 'w1', 'transcode', 'op-' || following,
        repeat('0', 64), 'scratch=10,slots=1000', micros() + 600000000, micros() + 600000000, 0)
    ON CONFLICT (session) DO UPDATE SET generation = excluded.generation, operation = excluded.operation,
        request = excluded.request, claims = excluded.claims, initial_deadline = excluded.initial_deadline,
        deadline = excluded.deadline, retired = 0;
    INSERT INTO claims VALUES (slot, 'slots', 'transcode', 1000), (slot, 'scratch', 'transcode', 10);
    RETURN following;
END $$;

CREATE FUNCTION renew(slot TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(7);
    UPDATE meta SET revision = revision + 1, clock = micros() WHERE id = 1;
    UPDATE sessions SET deadline = micros() + 660000000 WHERE session = slot AND retired = 0;
END $$;

CREATE FUNCTION retire(slot TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(7);
    UPDATE meta SET revision = revision + 1, retired = retired + 1, clock = micros() WHERE id = 1;
    UPDATE sessions SET retired = 1 WHERE session = slot AND retired = 0;
    DELETE FROM claims WHERE session = slot;
    UPDATE pools SET used = used - 1000 WHERE scope = 'slots' AND role = 'transcode';
    UPDATE pools SET used = used - 10 WHERE scope = 'scratch' AND role = 'transcode';
END $$;
";

/// One cycle of one pgbench client, in three transactions.
pub(crate) const PGBENCH: &str = "SELECT reserve('c/' || :client_id);\n\
                                  SELECT renew('c/' || :client_id);\n\
                                  SELECT retire('c/' || :client_id);\n";

/// Fills the ledger of `schema` with retired sessions.
pub(crate) fn tombstones(schema: &str, count: u32) -> String {
    format!(
        "SET search_path = {schema};
         INSERT INTO placement_sessions (session, generation, controller_node, controller_boot, target,
             target_node, target_boot, role, operation, request, claims, initial_deadline, deadline, retired)
         SELECT 'c/' || i, 1, 'c', 'c1', 'w/cpu', 'w', 'w1', 'transcode', 'op', repeat('0', 64),
             'scratch=10,slots=1000', 1, 1, 1 FROM generate_series(1, {count}) AS g(i);
         UPDATE placement_meta SET total = {count}, retired = {count}"
    )
}

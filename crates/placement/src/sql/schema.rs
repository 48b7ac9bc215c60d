//! The ledger's tables. A migration that has shipped never changes; the next one follows it.

use ether_store::{Component, Migration};

/// The ledger's tables and their history.
pub const COMPONENT: Component = Component {
    name: "placement",
    migrations: &[
        Migration {
            version: 1,
            name: "ledger",
            sql: LEDGER,
        },
        Migration {
            version: 2,
            name: "fleet ceiling",
            sql: "ALTER TABLE placement_meta ADD COLUMN ceiling BIGINT",
        },
        Migration {
            version: 3,
            name: "terminal evidence",
            sql: EVIDENCE,
        },
        Migration {
            version: 4,
            name: "evidence by author",
            sql: EVIDENCE_BY_AUTHOR,
        },
        Migration {
            version: 5,
            name: "latest instant",
            sql: "ALTER TABLE placement_meta ADD COLUMN clock BIGINT NOT NULL DEFAULT 0",
        },
        Migration {
            version: 6,
            name: "clock epoch, policy revisions",
            sql: EPOCH,
        },
    ],
};

/// The newest schema that this binary knows, as coordinators publish it and the ledger's own row names it.
pub(crate) const SCHEMA: u64 = COMPONENT.migrations.len() as u64;

// A renewal changes no indexed column: with room left in its page, PostgreSQL writes the new row beside the old
// one and touches no index.
//
// The two partial indexes hold live assignments only, so that they stay as small as the fleet is busy.
const LEDGER: &str = "
CREATE TABLE placement_meta (
    id BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    cluster TEXT,
    revision BIGINT NOT NULL,
    total BIGINT NOT NULL,
    retired BIGINT NOT NULL
);
INSERT INTO placement_meta (id, cluster, revision, total, retired) VALUES (1, NULL, 0, 0, 0);
CREATE TABLE placement_pools (
    scope TEXT NOT NULL,
    role TEXT NOT NULL,
    capacity BIGINT NOT NULL CHECK (capacity >= 0),
    used BIGINT NOT NULL CHECK (used >= 0),
    PRIMARY KEY (scope, role)
);
CREATE TABLE placement_targets (
    target TEXT NOT NULL PRIMARY KEY,
    boot TEXT NOT NULL,
    roles TEXT NOT NULL
);
CREATE TABLE placement_sessions (
    session TEXT NOT NULL PRIMARY KEY,
    generation BIGINT NOT NULL CHECK (generation > 0),
    controller_node TEXT NOT NULL,
    controller_boot TEXT NOT NULL,
    target TEXT NOT NULL,
    target_node TEXT NOT NULL,
    target_boot TEXT NOT NULL,
    role TEXT NOT NULL,
    operation TEXT NOT NULL,
    request TEXT NOT NULL,
    claims TEXT NOT NULL,
    initial_deadline BIGINT NOT NULL,
    deadline BIGINT NOT NULL,
    retired BIGINT NOT NULL CHECK (retired IN (0, 1))
) /*postgres: WITH (fillfactor = 60) */;
CREATE INDEX placement_sessions_controller
    ON placement_sessions (controller_node, session) WHERE retired = 0;
CREATE INDEX placement_sessions_target
    ON placement_sessions (target_node, target_boot, session) WHERE retired = 0;
CREATE TABLE placement_claims (
    session TEXT NOT NULL,
    scope TEXT NOT NULL,
    role TEXT NOT NULL,
    units BIGINT NOT NULL CHECK (units > 0),
    PRIMARY KEY (session, scope)
);
CREATE TABLE placement_coordinators (
    node TEXT NOT NULL PRIMARY KEY,
    boot TEXT NOT NULL,
    known_schema BIGINT NOT NULL,
    quota BIGINT NOT NULL,
    maximum_lease BIGINT NOT NULL,
    transaction_timeout BIGINT NOT NULL,
    lock_timeout BIGINT NOT NULL
)";

const EVIDENCE: &str = "
CREATE TABLE placement_evidence (
    session TEXT NOT NULL,
    generation BIGINT NOT NULL,
    part TEXT NOT NULL CHECK (part IN ('target', 'source')),
    author_node TEXT,
    author_boot TEXT NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    recorded BIGINT NOT NULL,
    PRIMARY KEY (session, generation, part)
)";

// One place for each author instead of one for each part: whoever wrote first could keep the owner's piece out.
// What the rules no longer admit is left behind, and so is what is about no unretired assignment.
const EVIDENCE_BY_AUTHOR: &str = "
CREATE TABLE placement_evidence_by_author (
    session TEXT NOT NULL,
    generation BIGINT NOT NULL,
    part TEXT NOT NULL CHECK (part IN ('target', 'source')),
    author_node TEXT NOT NULL,
    author_boot TEXT NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    recorded BIGINT NOT NULL,
    PRIMARY KEY (session, generation, part, author_node, author_boot)
);
INSERT INTO placement_evidence_by_author (session, generation, part, author_node, author_boot, kind, body, recorded)
    SELECT e.session, e.generation, e.part, COALESCE(e.author_node, s.target_node), e.author_boot, e.kind, e.body,
        e.recorded
    FROM placement_evidence e
    JOIN placement_sessions s ON s.session = e.session AND s.generation = e.generation AND s.retired = 0
    WHERE e.kind <> 'attested'
        AND NOT (e.kind = 'succeeded' AND e.part = 'target' AND e.author_boot = s.target_boot);
DROP TABLE placement_evidence;
ALTER TABLE placement_evidence_by_author RENAME TO placement_evidence";

// A process that was started before a migration goes on with the rules it has, and those know nothing of what came
// later. From here on the ledger's own row says which schema its rules are, and whoever knows an older one stops at
// it: every later migration sets the number. What came before this did not look; it asks for a column that is no
// longer there under its name, and stops at that.
const EPOCH: &str = "
ALTER TABLE placement_meta RENAME COLUMN revision TO mutations;
ALTER TABLE placement_meta ADD COLUMN known_schema BIGINT NOT NULL DEFAULT 6;
ALTER TABLE placement_meta ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0;
ALTER TABLE placement_pools ADD COLUMN revision BIGINT NOT NULL DEFAULT 1;
ALTER TABLE placement_targets ADD COLUMN revision BIGINT NOT NULL DEFAULT 1;
ALTER TABLE placement_coordinators ADD COLUMN verify_timeout BIGINT NOT NULL DEFAULT 0;
ALTER TABLE placement_coordinators ADD COLUMN clock_skew BIGINT NOT NULL DEFAULT 0";

//! The library's tables. Times are microseconds since the Unix epoch; flags are 0 or 1; absent times are 0.
//!
//! An item is what a viewer chooses. A file is one owner's copy of it: node, folder, path and revision (D21),
//! so that one item may come to have several. Nothing here is compared by a database's collation: what is
//! ordered or searched is hexadecimal digits or whole numbers.

use ether_store::{Component, Migration};

/// The component that owns the tables.
pub const COMPONENT: Component = Component {
    name: "library",
    migrations: &[Migration {
        version: 1,
        name: "items, their files, problems, positions and pictures",
        sql: "
CREATE TABLE library_folders (
    id TEXT NOT NULL PRIMARY KEY,
    node TEXT NOT NULL,
    path_key TEXT NOT NULL,
    path TEXT NOT NULL,
    active BIGINT NOT NULL,
    known BIGINT NOT NULL,
    device BIGINT NOT NULL,
    inode BIGINT NOT NULL
);
CREATE UNIQUE INDEX library_folders_path ON library_folders (node, path_key);

CREATE TABLE library_items (
    id TEXT NOT NULL PRIMARY KEY,
    title TEXT NOT NULL,
    order_key TEXT NOT NULL,
    visible BIGINT NOT NULL,
    added BIGINT NOT NULL,
    file TEXT NOT NULL,
    kind TEXT NOT NULL,
    duration_ms BIGINT,
    width BIGINT,
    height BIGINT,
    video TEXT,
    audio TEXT,
    container TEXT NOT NULL,
    warnings TEXT NOT NULL,
    index_state BIGINT NOT NULL,
    picture_state BIGINT NOT NULL
);
CREATE INDEX library_items_shelf ON library_items (visible, order_key, id);
CREATE INDEX library_items_index ON library_items (index_state, id);
CREATE INDEX library_items_picture ON library_items (picture_state, id);

CREATE TABLE library_facts (
    item TEXT NOT NULL PRIMARY KEY,
    reader BIGINT NOT NULL,
    facts TEXT NOT NULL
);

CREATE TABLE library_files (
    id TEXT NOT NULL PRIMARY KEY,
    item TEXT NOT NULL,
    folder TEXT NOT NULL,
    path_key TEXT NOT NULL,
    dir_key TEXT NOT NULL,
    dir TEXT NOT NULL,
    name TEXT NOT NULL,
    mount TEXT NOT NULL,
    size BIGINT NOT NULL,
    mtime_ns BIGINT NOT NULL,
    inode BIGINT NOT NULL,
    device BIGINT NOT NULL,
    sample TEXT NOT NULL,
    stamp BIGINT NOT NULL,
    reader BIGINT NOT NULL,
    missing BIGINT NOT NULL
);
CREATE UNIQUE INDEX library_files_path ON library_files (folder, path_key);
CREATE INDEX library_files_dir ON library_files (folder, dir_key);
CREATE INDEX library_files_item ON library_files (item);
CREATE INDEX library_files_sample ON library_files (size, sample);
CREATE INDEX library_files_inode ON library_files (inode, size);
CREATE INDEX library_files_missing ON library_files (missing);

CREATE TABLE library_problems (
    folder TEXT NOT NULL,
    path_key TEXT NOT NULL,
    dir_key TEXT NOT NULL,
    dir TEXT NOT NULL,
    name TEXT NOT NULL,
    size BIGINT NOT NULL,
    mtime_ns BIGINT NOT NULL,
    inode BIGINT NOT NULL,
    device BIGINT NOT NULL,
    reader BIGINT NOT NULL,
    reason TEXT NOT NULL,
    attempts BIGINT NOT NULL,
    looked BIGINT NOT NULL,
    PRIMARY KEY (folder, path_key)
);
CREATE INDEX library_problems_dir ON library_problems (folder, dir_key);
CREATE INDEX library_problems_looked ON library_problems (looked, folder, path_key);

CREATE TABLE library_positions (
    viewer TEXT NOT NULL,
    item TEXT NOT NULL,
    position_ms BIGINT NOT NULL,
    finished BIGINT NOT NULL,
    updated BIGINT NOT NULL,
    PRIMARY KEY (viewer, item)
);
CREATE INDEX library_positions_age ON library_positions (viewer, updated);
CREATE INDEX library_positions_item ON library_positions (item);

CREATE TABLE library_pictures (
    item TEXT NOT NULL PRIMARY KEY,
    id TEXT NOT NULL,
    stamp BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    used BIGINT NOT NULL,
    reason TEXT
);
CREATE INDEX library_pictures_used ON library_pictures (used);
",
    }],
};

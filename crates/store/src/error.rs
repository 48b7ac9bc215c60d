//! What can go wrong at the database, sorted by what a caller can do about it.

use std::time::Duration;

/// Why a statement or a transaction did not succeed.
///
/// Every variant except [`StoreError::UnknownCommit`] means that the transaction changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The lock, or a connection, was not to be had within the bound. Try again, or shed load.
    #[error("the database lock was not free within {0:?}")]
    Busy(Duration),
    /// The transaction or statement did not end within its bound and was given up.
    #[error("the database did not answer within {0:?}")]
    Timeout(Duration),
    /// The answer to COMMIT never came: the transaction may have happened or not. Read before acting.
    #[error("whether the transaction was committed is unknown: {0}")]
    UnknownCommit(#[source] Cause),
    /// The server is not reachable, is starting, or went away in the middle.
    #[error("the database is not reachable: {0}")]
    Unreachable(#[source] sqlx::Error),
    /// The database, or its file, cannot be written.
    #[error("the database is read-only: {0}")]
    ReadOnly(#[source] sqlx::Error),
    /// No room is left for the database.
    #[error("the database's disk is full: {0}")]
    Full(#[source] sqlx::Error),
    /// A unique, check or not-null rule of the schema was broken by the statement.
    #[error("a constraint of the schema was broken: {0}")]
    Constraint(#[source] sqlx::Error),
    /// A row did not have the shape that was asked for.
    #[error("column {column} does not have the expected form: {source}")]
    Row {
        /// The column, by name or place.
        column: String,
        /// What the driver says.
        source: sqlx::Error,
    },
    /// A statement failed earlier and the transaction's body went on as if it had not.
    #[error("a statement of the transaction had failed, so nothing of it was committed")]
    Aborted,
    /// The store was closed, or an in-memory database was lost with its connection.
    #[error("the store is closed")]
    Closed,
    /// Anything else that the database says.
    #[error("the database refused the statement: {0}")]
    Database(#[source] sqlx::Error),
}

/// Why COMMIT has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The bound ran out first.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection, or the database, failed first.
    #[error("{0}")]
    Driver(#[source] sqlx::Error),
}

impl StoreError {
    /// Whether the database has no room for anything new, or takes nothing at all: what only reads may fare better.
    pub fn is_unwritable(&self) -> bool {
        match self {
            StoreError::ReadOnly(_) | StoreError::Full(_) => true,
            // SQLite finds out at the commit.
            StoreError::UnknownCommit(Cause::Driver(error)) => {
                matches!(sort(error), Kind::ReadOnly | Kind::Full)
            }
            _ => false,
        }
    }

    /// Whether it was more than the database does within the bound, be it in the COMMIT.
    pub fn is_timeout(&self) -> bool {
        match self {
            StoreError::Timeout(_) | StoreError::UnknownCommit(Cause::Timeout(_)) => true,
            // The server's own bound may be the first to pass.
            StoreError::UnknownCommit(Cause::Driver(error)) => matches!(sort(error), Kind::Timeout),
            _ => false,
        }
    }

    /// Sorts what a driver reported about a statement.
    pub(crate) fn from_driver(error: sqlx::Error, bound: Duration) -> Self {
        match sort(&error) {
            Kind::Busy => StoreError::Busy(bound),
            Kind::Timeout => StoreError::Timeout(bound),
            Kind::Unreachable => StoreError::Unreachable(error),
            Kind::ReadOnly => StoreError::ReadOnly(error),
            Kind::Full => StoreError::Full(error),
            Kind::Constraint => StoreError::Constraint(error),
            Kind::Other => StoreError::Database(error),
        }
    }
}

enum Kind {
    Busy,
    Timeout,
    Unreachable,
    ReadOnly,
    Full,
    Constraint,
    Other,
}

/// Whether the connection itself is gone, so that another one may fare better.
pub(crate) fn connection_lost(error: &sqlx::Error) -> bool {
    matches!(sort(error), Kind::Unreachable)
}

/// Whether it is SQLite's word, which speaks of a file and not of a server.
pub(crate) fn of_a_file(error: &sqlx::Error) -> bool {
    let by_sqlite = |database: &dyn sqlx::error::DatabaseError| {
        database.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some()
    };
    matches!(error, sqlx::Error::Database(database) if by_sqlite(&**database))
}

fn sort(error: &sqlx::Error) -> Kind {
    let database = match error {
        sqlx::Error::Database(database) => database,
        // A peer that vanishes inside a message is a broken protocol to the driver; either way the
        // connection is of no further use.
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
            return Kind::Unreachable;
        }
        _ => return Kind::Other,
    };
    if database.is_unique_violation() || database.is_check_violation() {
        return Kind::Constraint;
    }
    let code = database.code();
    let code = code.as_deref().unwrap_or("");
    // SQLite's codes are numbers of which the low byte is the primary code; SQLSTATE has five characters.
    if database.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
        return match code.parse::<i32>().unwrap_or(0) & 0xff {
            5 | 6 => Kind::Busy,
            8 => Kind::ReadOnly,
            10 | 14 => Kind::Unreachable,
            13 => Kind::Full,
            19 => Kind::Constraint,
            _ => Kind::Other,
        };
    }
    match code {
        "55P03" => Kind::Busy,
        "57014" => Kind::Timeout,
        "25006" => Kind::ReadOnly,
        "53100" => Kind::Full,
        "53300" | "25P03" => Kind::Unreachable,
        code if code.starts_with("57P") || code.starts_with("08") => Kind::Unreachable,
        code if code.starts_with("23") => Kind::Constraint,
        _ => Kind::Other,
    }
}

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The server runs a version this binary does not know.
    #[error("PostgreSQL {found} is older than 14, the oldest that is supported")]
    TooOld {
        /// The server's major version.
        found: i64,
    },
    /// The connection's search path names no schema that exists.
    #[error("the search path of this PostgreSQL user names no existing schema")]
    NoSchema,
    /// An option is outside its range.
    #[error("store option {option} must be {range}, not {value}")]
    Option {
        /// Which option.
        option: &'static str,
        /// The range, in words.
        range: &'static str,
        /// What was given.
        value: String,
    },
    /// The database did not answer, or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a component's tables could not be brought to the version this binary knows.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// A newer binary has already migrated this database; running this one could corrupt it.
    #[error("the {component} tables are at version {found}, newer than this program's {known}: upgrade it")]
    Newer {
        /// Whose tables.
        component: &'static str,
        /// The version that the database has.
        found: i64,
        /// The newest version known here.
        known: i64,
    },
    /// A migration that was applied earlier is not the one this binary has under that number.
    #[error("migration {version} ({name}) of {component} differs from the one that was applied")]
    Changed {
        /// Whose tables.
        component: &'static str,
        /// Which migration.
        version: i64,
        /// Its name here.
        name: &'static str,
    },
    /// The database lacks a migration below one that it has.
    #[error("migration {version} of {component} is missing below a later one")]
    Gap {
        /// Whose tables.
        component: &'static str,
        /// The missing version.
        version: i64,
    },
    /// The component itself is not well formed: a defect of this binary.
    #[error("component {component}: {rule}")]
    Component {
        /// Whose migrations.
        component: &'static str,
        /// The rule that is broken.
        rule: &'static str,
    },
    /// A migration's own statement failed; nothing of this run was kept.
    #[error("migration {version} ({name}) failed: {source}")]
    Statement {
        /// Which migration.
        version: i64,
        /// Its name.
        name: &'static str,
        /// Why.
        source: StoreError,
    },
    /// The database did not answer, or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

//! Where a database is, parsed once. A password in it never reaches a log or an error.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;

/// Which database to open.
#[derive(Clone)]
pub enum Location {
    /// A SQLite file; it is created where it does not exist, its directory is not.
    SqliteFile(PathBuf),
    /// A SQLite database that lives as long as the store and is seen by nobody else.
    SqliteMemory,
    /// A PostgreSQL server, 14 or newer.
    Postgres(Box<PostgresLocation>),
}

/// A parsed PostgreSQL URL.
#[derive(Clone)]
pub struct PostgresLocation(pub(crate) PgConnectOptions);

/// A text that names no database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLocation {
    /// Neither of the two kinds of URL.
    #[error("a database URL starts with postgres://, postgresql:// or sqlite:")]
    Scheme,
    /// The PostgreSQL URL does not parse. The text is not repeated: it may hold a password.
    #[error("the PostgreSQL URL is not well formed")]
    Postgres,
    /// A SQLite URL without a path.
    #[error("a SQLite URL is sqlite:<path> or sqlite::memory:")]
    SqlitePath,
}

impl FromStr for Location {
    type Err = InvalidLocation;

    /// Accepts `postgres://…`, `postgresql://…`, `sqlite:<path>`, `sqlite://<path>` and `sqlite::memory:`.
    fn from_str(text: &str) -> Result<Self, InvalidLocation> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            let options = text
                .parse::<PgConnectOptions>()
                .map_err(|_| InvalidLocation::Postgres)?;
            return Ok(Location::Postgres(Box::new(PostgresLocation(options))));
        }
        let path = text.strip_prefix("sqlite:").ok_or(InvalidLocation::Scheme)?;
        match path.strip_prefix("//").unwrap_or(path) {
            "" => Err(InvalidLocation::SqlitePath),
            ":memory:" => Ok(Location::SqliteMemory),
            path => Ok(Location::SqliteFile(PathBuf::from(path))),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::SqliteFile(path) => write!(f, "sqlite:{}", path.display()),
            Location::SqliteMemory => f.write_str("sqlite::memory:"),
            Location::Postgres(at) => write!(
                f,
                "postgres://{}:{}/{}",
                at.0.get_host(),
                at.0.get_port(),
                at.0.get_database().unwrap_or("")
            ),
        }
    }
}

//! What goes into a statement and what comes out of it, the same for both engines.

use std::borrow::Cow;

use sqlx::Row as _;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;

use crate::error::StoreError;

/// The text of one statement.
///
/// Only literals, and texts that a component puts together from literals (a repeated `($1, $2)` for a batch):
/// never anything that came from outside. Values travel as [`Value`] alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sql(pub(crate) Cow<'static, str>);

impl Sql {
    /// A text that was put together from literals.
    pub fn generated(text: String) -> Self {
        Self(Cow::Owned(text))
    }

    /// The statement's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&'static str> for Sql {
    fn from(text: &'static str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

/// One parameter of a statement. The absent value is typed, since PostgreSQL wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A `TEXT` value.
    Text(Option<String>),
    /// A `BIGINT` value.
    Integer(Option<i64>),
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Value::Text(Some(value.to_owned()))
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Value::Text(Some(value))
    }
}

impl From<Option<String>> for Value {
    fn from(value: Option<String>) -> Self {
        Value::Text(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Value::Integer(Some(value))
    }
}

impl From<Option<i64>> for Value {
    fn from(value: Option<i64>) -> Self {
        Value::Integer(value)
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for usize {}
    impl Sealed for &str {}
}

/// How a column is named: by its place (cheapest) or by its name.
pub trait Column:
    sealed::Sealed + sqlx::ColumnIndex<SqliteRow> + sqlx::ColumnIndex<PgRow> + std::fmt::Display + Copy
{
}

impl Column for usize {}
impl Column for &str {}

/// One row of an answer.
#[derive(Debug)]
pub struct Row(pub(crate) RowKind);

pub(crate) enum RowKind {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

impl std::fmt::Debug for RowKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RowKind::Sqlite(row) => write!(f, "{} SQLite columns", row.len()),
            RowKind::Postgres(row) => write!(f, "{} PostgreSQL columns", row.len()),
        }
    }
}

impl Row {
    /// A `TEXT` column.
    ///
    /// # Errors
    /// [`StoreError::Row`] where the column is absent, null or of another type.
    pub fn text(&self, column: impl Column) -> Result<String, StoreError> {
        self.get(column)
    }

    /// A `TEXT` column that may be null.
    ///
    /// # Errors
    /// As [`Row::text`], null aside.
    pub fn opt_text(&self, column: impl Column) -> Result<Option<String>, StoreError> {
        self.get(column)
    }

    /// A `BIGINT` column.
    ///
    /// # Errors
    /// As [`Row::text`].
    pub fn integer(&self, column: impl Column) -> Result<i64, StoreError> {
        self.get(column)
    }

    /// A `BIGINT` column that may be null.
    ///
    /// # Errors
    /// As [`Row::text`], null aside.
    pub fn opt_integer(&self, column: impl Column) -> Result<Option<i64>, StoreError> {
        self.get(column)
    }

    fn get<T>(&self, column: impl Column) -> Result<T, StoreError>
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        let got = match &self.0 {
            RowKind::Sqlite(row) => row.try_get(column),
            RowKind::Postgres(row) => row.try_get(column),
        };
        got.map_err(|source| StoreError::Row {
            column: column.to_string(),
            source,
        })
    }
}

//! A component's tables and how they came to be.
//!
//! Each component keeps its own list in `<component>_migrations`, under its own lock, so that none can be run
//! half-migrated, and on PostgreSQL none waits for another (a SQLite file has one writer whoever it is). What was
//! applied is remembered with the checksum of its text: a migration that is edited after it shipped is an error and
//! not a surprise.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::error::{MigrateError, StoreError};
use crate::tables::{Bound, Tables};
use crate::tx::{Tx, TxFuture};
use crate::value::Value;

/// The tables that one part of ether owns.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    /// Lower-case letters, 1 to 32; every table and index of the component begins with it and `_`.
    pub name: &'static str,
    /// In order of their versions, which count up from 1 without gaps.
    pub migrations: &'static [Migration],
}

/// One step of a schema. Once it has shipped it never changes.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// 1 for the first.
    pub version: i64,
    /// What it is about, for errors.
    pub name: &'static str,
    /// Statements that both engines take, separated by semicolons. A comment `/*postgres: … */` is a comment to
    /// SQLite and text to PostgreSQL: for storage parameters, which change no meaning.
    pub sql: &'static str,
}

impl Component {
    pub(crate) fn check(&self) -> Result<(), MigrateError> {
        let broken = |rule| {
            Err(MigrateError::Component {
                component: self.name,
                rule,
            })
        };
        let letters = self.name.bytes().all(|b| b.is_ascii_lowercase());
        if !letters || !(1..=32).contains(&self.name.len()) {
            return broken("a component's name is 1 to 32 lower-case letters");
        }
        for (migration, version) in self.migrations.iter().zip(1_i64..) {
            if migration.version != version {
                return broken("versions count up from 1 without gaps");
            }
            if !created(migration.sql).all(|name| self.owns(name)) {
                return broken("every table and index begins with the component's name and '_'");
            }
        }
        Ok(())
    }

    fn owns(&self, table: &str) -> bool {
        table
            .strip_prefix(self.name)
            .is_some_and(|rest| rest.starts_with('_'))
    }
}

/// The names that follow CREATE TABLE and CREATE INDEX.
fn created(sql: &str) -> impl Iterator<Item = &str> {
    let mut words = sql
        .split(|c: char| c.is_whitespace() || c == '(' || c == ';')
        .filter(|word| !word.is_empty());
    std::iter::from_fn(move || {
        loop {
            let word = words.next()?;
            if !(word.eq_ignore_ascii_case("TABLE") || word.eq_ignore_ascii_case("INDEX")) {
                continue;
            }
            let mut name = words.next()?;
            for skip in ["IF", "NOT", "EXISTS"] {
                if name.eq_ignore_ascii_case(skip) {
                    name = words.next()?;
                }
            }
            return Some(name);
        }
    })
}

/// Everything below runs in one transaction under the component's lock.
pub(crate) async fn migrate<E, F>(
    tables: &Tables,
    component: &Component,
    bound: Bound,
    check: F,
) -> Result<(), E>
where
    F: for<'t> FnOnce(&'t mut Tx, i64) -> TxFuture<'t, (), E> + Send + 'static,
    E: From<MigrateError> + From<StoreError> + Send + 'static,
{
    let component = *component;
    let postgres = tables.store().engine() != crate::Engine::Sqlite;
    tables
        .write(bound, move |tx| {
            Box::pin(async move {
                let list = format!("{}_migrations", component.name);
                tx.batch(format!(
                    "CREATE TABLE IF NOT EXISTS {list} (version BIGINT NOT NULL PRIMARY KEY, \
                     name TEXT NOT NULL, checksum TEXT NOT NULL, applied BIGINT NOT NULL)"
                ))
                .await?;
                let select = format!("SELECT version, checksum FROM {list} ORDER BY version");
                let rows = tx.query(crate::Sql::generated(select), &[]).await?;
                let mut applied = Vec::with_capacity(rows.len());
                for row in rows {
                    applied.push((row.integer(0)?, row.text(1)?));
                }
                let pending = compare(&component, &applied)?;
                check(tx, applied.last().map_or(0, |(version, _)| *version)).await?;
                for migration in pending {
                    let failed = |source| MigrateError::Statement {
                        version: migration.version,
                        name: migration.name,
                        source,
                    };
                    let text = for_engine(migration.sql, postgres);
                    tx.batch(text).await.map_err(failed)?;
                    let insert = format!(
                        "INSERT INTO {list} (version, name, checksum, applied) VALUES ($1, $2, $3, $4)"
                    );
                    let values = [
                        Value::from(migration.version),
                        Value::from(migration.name),
                        Value::from(checksum(migration.sql)),
                        Value::from(tx.began().as_micros()),
                    ];
                    tx.execute(crate::Sql::generated(insert), &values).await?;
                }
                Ok(())
            })
        })
        .await
}

/// A migration's text with what is meant for PostgreSQL alone taken out of its comments there.
fn for_engine(sql: &str, postgres: bool) -> String {
    if !postgres {
        return sql.to_owned();
    }
    let mut text = String::with_capacity(sql.len());
    let mut rest = sql;
    while let Some((before, after)) = rest.split_once("/*postgres:") {
        let (inside, behind) = after.split_once("*/").unwrap_or((after, ""));
        text.push_str(before);
        text.push_str(inside);
        rest = behind;
    }
    text + rest
}

/// What is still to be applied, after what was applied has been found to be what this binary knows.
fn compare(component: &Component, applied: &[(i64, String)]) -> Result<&'static [Migration], MigrateError> {
    let known = component.migrations;
    if let Some((found, _)) = applied.last()
        && usize::try_from(*found).map_or(true, |found| found > known.len())
    {
        return Err(MigrateError::Newer {
            component: component.name,
            found: *found,
            known: known.last().map_or(0, |last| last.version),
        });
    }
    for ((version, sum), migration) in applied.iter().zip(known) {
        if *version != migration.version {
            return Err(MigrateError::Gap {
                component: component.name,
                version: migration.version,
            });
        }
        if *sum != checksum(migration.sql) {
            return Err(MigrateError::Changed {
                component: component.name,
                version: migration.version,
                name: migration.name,
            });
        }
    }
    Ok(known.get(applied.len()..).unwrap_or(&[]))
}

fn checksum(sql: &str) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(sql.as_bytes()) {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::for_engine;

    #[test]
    fn what_is_meant_for_postgres_is_a_comment_to_sqlite() {
        let sql = "CREATE TABLE a_b (c TEXT) /*postgres: WITH (fillfactor = 60) */; SELECT 1 /* plain */";
        assert_eq!(for_engine(sql, false), sql);
        assert_eq!(
            for_engine(sql, true),
            "CREATE TABLE a_b (c TEXT)  WITH (fillfactor = 60) ; SELECT 1 /* plain */"
        );
    }
}

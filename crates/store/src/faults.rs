//! Cutting a connection at a chosen statement, and listening to what is asked, for tests (feature `faults`).
//!
//! PostgreSQL is cut on its wire by a proxy. SQLite has no wire: here a statement either never reaches the
//! database, or is done and its answer is lost, or the process dies at that point.

use std::io;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::value::{Sql, Value};

/// A statement that was asked, with its values.
pub type Heard = (Sql, Vec<Value>);

/// What happens at the chosen statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The statement never reaches the database.
    Before,
    /// The statement is done, and its answer lost.
    After,
    /// The process aborts before the statement.
    AbortBefore,
    /// The process aborts after the statement.
    AbortAfter,
}

/// The switch of one store's connections.
#[derive(Debug)]
pub struct Faults {
    /// Statements until the cut; negative while none is wanted.
    left: AtomicI64,
    cut: AtomicU8,
    hit: AtomicI64,
    /// The statements with parameters since listening began; `None` while nobody listens.
    heard: Mutex<Option<Vec<Heard>>>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            left: AtomicI64::new(-1),
            cut: AtomicU8::new(0),
            hit: AtomicI64::new(0),
            heard: Mutex::new(None),
        }
    }
}

impl Faults {
    /// Cuts at the `nth` statement from now, counted from zero.
    pub fn arm(&self, nth: u32, cut: Cut) {
        self.cut.store(cut as u8, Ordering::SeqCst);
        self.left.store(i64::from(nth), Ordering::SeqCst);
    }

    /// Takes the cut back; tells whether it had happened.
    pub fn disarm(&self) -> bool {
        self.left.store(-1, Ordering::SeqCst);
        self.hit.swap(0, Ordering::SeqCst) > 0
    }

    /// Whether a cut is still to come.
    pub(crate) fn is_armed(&self) -> bool {
        self.left.load(Ordering::SeqCst) >= 0
    }

    /// Writes down every statement that a parameter could be given to, until [`Faults::heard`].
    pub fn listen(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    }

    /// What was asked since [`Faults::listen`], in order; nothing more is written down.
    pub fn heard(&self) -> Vec<Heard> {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.take().unwrap_or_default()
    }

    pub(crate) fn note(&self, sql: &Sql, values: &[Value]) -> &Self {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(heard) = heard.as_mut() {
            heard.push((sql.clone(), values.to_vec()));
        }
        self
    }

    pub(crate) fn before(&self) -> Result<bool, sqlx::Error> {
        let due = self.left.load(Ordering::SeqCst) >= 0 && self.left.fetch_sub(1, Ordering::SeqCst) == 0;
        if !due {
            return Ok(false);
        }
        self.hit.fetch_add(1, Ordering::SeqCst);
        match self.cut.load(Ordering::SeqCst) {
            cut if cut == Cut::Before as u8 => Err(lost()),
            cut if cut == Cut::AbortBefore as u8 => std::process::abort(),
            _ => Ok(true),
        }
    }

    pub(crate) fn after(&self, due: bool) -> Result<(), sqlx::Error> {
        match self.cut.load(Ordering::SeqCst) {
            _ if !due => Ok(()),
            cut if cut == Cut::AbortAfter as u8 => std::process::abort(),
            _ => Err(lost()),
        }
    }
}

fn lost() -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::ConnectionReset, "cut by a test"))
}

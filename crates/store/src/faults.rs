//! Cutting a connection at a chosen statement, and listening to what is asked, for tests (feature `faults`).
//!
//! PostgreSQL is cut on its wire by a proxy. SQLite has no wire, only messages to the thread that a connection lives
//! on: here a message never reaches it, or a statement is done and its answer is lost, or the process dies at that
//! point. A message carries one statement, or the writes that are sent together; of those each has an answer of its
//! own, and what stands behind a lost one may have been done or not.

use std::io;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::value::{Sql, Value};

/// A statement that was asked, with its values.
pub type Heard = (Sql, Vec<Value>);

/// What happens at the chosen statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The message never reaches the database.
    Before,
    /// The statement is done, and its answer lost.
    After,
    /// The process aborts before the message.
    AbortBefore,
    /// The process aborts after the statement, whatever else its message carries.
    AbortAfter,
}

/// The switch of one store's connections.
#[derive(Debug)]
pub struct Faults {
    /// Messages or statements until the cut; negative while none is wanted.
    left: AtomicI64,
    cut: AtomicU8,
    hit: AtomicI64,
    /// Messages since the store was opened.
    messages: AtomicU64,
    /// The statements with parameters since listening began; `None` while nobody listens.
    heard: Mutex<Option<Vec<Heard>>>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            left: AtomicI64::new(-1),
            cut: AtomicU8::new(0),
            hit: AtomicI64::new(0),
            messages: AtomicU64::new(0),
            heard: Mutex::new(None),
        }
    }
}

impl Faults {
    /// Cuts before the `nth` message from now, or after the `nth` statement, counted from zero.
    pub fn arm(&self, nth: u32, cut: Cut) {
        self.cut.store(cut as u8, Ordering::SeqCst);
        self.left.store(i64::from(nth), Ordering::SeqCst);
    }

    /// Takes the cut back; tells whether it had happened.
    pub fn disarm(&self) -> bool {
        self.left.store(-1, Ordering::SeqCst);
        self.hit.swap(0, Ordering::SeqCst) > 0
    }

    /// How many messages were to be sent since the store was opened.
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::SeqCst)
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

    /// Counts a message with its first statement, before it is sent; whether that one's answer is to be lost.
    pub(crate) fn before(&self) -> Result<bool, sqlx::Error> {
        self.messages.fetch_add(1, Ordering::SeqCst);
        if !self.is_next() {
            return Ok(false);
        }
        match self.cut.load(Ordering::SeqCst) {
            cut if cut == Cut::Before as u8 => Err(lost()),
            cut if cut == Cut::AbortBefore as u8 => std::process::abort(),
            _ => Ok(true),
        }
    }

    /// Counts a further statement of a message that has been sent; whether its answer is to be lost.
    pub(crate) fn further(&self) -> bool {
        let cut = self.cut.load(Ordering::SeqCst);
        (cut == Cut::After as u8 || cut == Cut::AbortAfter as u8) && self.is_next()
    }

    fn is_next(&self) -> bool {
        let next = self.left.load(Ordering::SeqCst) >= 0 && self.left.fetch_sub(1, Ordering::SeqCst) == 0;
        if next {
            self.hit.fetch_add(1, Ordering::SeqCst);
        }
        next
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

//! The owner's book: every grant of this boot, and what may still be done with it. Pure.

use std::collections::{BTreeMap, HashMap};

use ether_tls::Member;
use ether_types::{FenceHash, Monotonic, OperationId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::grant::{
    BearerHash, Denied, ExtendError, Extended, Extension, Handle, Instant, Limits, PrepareError, ReaderProof,
    RetireAnswer, Terms,
};

/// Who ended a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SealedBy {
    /// The controller or the worker.
    Request,
    /// Its deadline.
    Deadline,
    /// The file could not be opened, or was not the promised revision.
    Opening,
    /// The owner stops.
    Owner,
}

/// The answer to a preparation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// New: the caller opens the file, and says what came of it with [`Book::opened`] or [`Book::not_opened`].
    Open(Opening),
    /// It was asked before, and this is what holds. While `opening` the answer is still to come.
    Replayed {
        /// The grant.
        handle: Handle,
        /// Whether its file is still being opened.
        opening: bool,
        /// Who has ended it.
        sealed: Option<SealedBy>,
        /// Until when it holds.
        extended: Extended,
    },
}

/// The duty to open the file of a grant.
#[derive(Debug, PartialEq, Eq)]
pub struct Opening {
    handle: Handle,
}

// A duty is taken once; a copy is what a test compares with.
impl Clone for Opening {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
        }
    }
}

impl Opening {
    /// The grant.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// The right to send one answer, and the duty to give it back with [`Book::joined`].
#[derive(Debug)]
#[must_use = "a reader that is not joined keeps the grant from ever being proved ended"]
pub struct Reading {
    handle: Handle,
}

#[derive(Debug)]
enum Record {
    /// The operation was retired before it came.
    Barred {
        fence: FenceHash,
        controller: Member,
    },
    Grant(Box<Grant>),
}

#[derive(Debug)]
struct Grant {
    terms: Terms,
    handle: Handle,
    file: File,
    held: Extended,
    /// The extension that made `held`, for its replay.
    last: Option<Extension>,
    /// The end by this process's clock, fixed when the deadline was accepted: no step of the wall clock moves it.
    cap: Monotonic,
    sealed: Option<SealedBy>,
    readers: u32,
    answers: u64,
    bearers: Vec<(BearerHash, Monotonic)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum File {
    Opening,
    Open,
    /// Never opened, or closed.
    Closed,
}

/// All grants of one boot of a source owner.
#[derive(Debug)]
pub struct Book {
    limits: Limits,
    by_operation: BTreeMap<OperationId, Record>,
    by_handle: HashMap<Handle, OperationId>,
    open: usize,
    stopped: bool,
}

impl Book {
    /// An empty book.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            by_operation: BTreeMap::new(),
            by_handle: HashMap::new(),
            open: 0,
            stopped: false,
        }
    }

    /// Records that are used, of the limit.
    pub fn used(&self) -> (usize, usize) {
        (self.by_operation.len(), self.limits.records)
    }

    /// Asks for a grant, which is to be known as `fresh` where there is none yet.
    ///
    /// # Errors
    /// [`PrepareError`]; nothing was recorded.
    pub fn prepare(&mut self, terms: Terms, fresh: Handle, now: Instant) -> Result<Prepared, PrepareError> {
        match self.by_operation.get_mut(&terms.operation) {
            Some(Record::Barred { .. }) => return Err(PrepareError::Barred),
            Some(Record::Grant(grant)) if grant.terms == terms => {
                grant.end_in_time(now);
                return Ok(Prepared::Replayed {
                    handle: grant.handle.clone(),
                    opening: grant.file == File::Opening,
                    sealed: grant.sealed,
                    extended: grant.held,
                });
            }
            Some(Record::Grant(_)) => return Err(PrepareError::Conflict),
            None => {}
        }
        let deadline = PrepareError::Deadline {
            most: self.limits.lease,
        };
        let cap = self.cap(terms.until, now).ok_or(deadline)?;
        if self.by_operation.len() >= self.limits.records || self.stopped {
            return Err(PrepareError::Records {
                limit: self.limits.records,
            });
        }
        if self.open >= self.limits.open {
            return Err(PrepareError::Open {
                limit: self.limits.open,
            });
        }
        let operation = terms.operation.clone();
        let grant = Grant {
            held: Extended {
                version: 0,
                until: terms.until,
            },
            handle: fresh.clone(),
            file: File::Opening,
            last: None,
            cap,
            sealed: None,
            readers: 0,
            answers: 0,
            bearers: Vec::new(),
            terms,
        };
        self.open += 1;
        self.by_handle.insert(fresh.clone(), operation.clone());
        self.by_operation
            .insert(operation, Record::Grant(Box::new(grant)));
        Ok(Prepared::Open(Opening { handle: fresh }))
    }

    /// The file was opened and is the promised revision. False where the grant was sealed meanwhile: the caller
    /// closes the file, and then says [`Book::closed`].
    pub fn opened(&mut self, opening: &Opening) -> bool {
        let Some(grant) = self.grant(&opening.handle) else {
            return false;
        };
        grant.file = File::Open;
        grant.sealed.is_none()
    }

    /// The file was not opened; it is known to be closed.
    pub fn not_opened(&mut self, opening: &Opening) {
        if let Some(grant) = self.grant(&opening.handle) {
            grant.sealed.get_or_insert(SealedBy::Opening);
        }
        self.closed(&opening.handle);
    }

    /// A sealed grant's file is closed. Does nothing while the grant is not sealed or has readers.
    pub fn closed(&mut self, handle: &Handle) {
        let Some(grant) = self.grant(handle) else { return };
        if grant.sealed.is_some() && grant.readers == 0 && grant.file != File::Closed {
            grant.file = File::Closed;
            self.open -= 1;
        }
    }

    /// Lets `peer` use a new bearer; of two the older stops counting.
    ///
    /// # Errors
    /// [`Denied`]; the bearer does not count.
    pub fn admit(
        &mut self,
        handle: &Handle,
        peer: &Member,
        fence: FenceHash,
        bearer: BearerHash,
        now: Instant,
    ) -> Result<(), Denied> {
        let until = now.monotonic.saturating_add(self.limits.bearer);
        let grant = self.live(handle, peer, now)?;
        if grant.terms.fence != fence {
            return Err(Denied::NoSuchGrant);
        }
        if grant.bearers.len() > 1 {
            grant.bearers.remove(0);
        }
        grant.bearers.push((bearer, until));
        Ok(())
    }

    /// Begins an answer to `peer`.
    ///
    /// # Errors
    /// [`Denied`]; not a byte may be sent.
    pub fn read(
        &mut self,
        handle: &Handle,
        peer: &Member,
        bearer: BearerHash,
        now: Instant,
    ) -> Result<Reading, Denied> {
        let limit = self.limits.readers;
        let grant = self.live(handle, peer, now)?;
        let counts = |(known, until): &(BearerHash, Monotonic)| known.is(&bearer) && now.monotonic < *until;
        if !grant.bearers.iter().any(counts) {
            return Err(Denied::Bearer);
        }
        if grant.readers >= limit {
            return Err(Denied::Readers { limit });
        }
        grant.readers += 1;
        grant.answers += 1;
        Ok(Reading {
            handle: handle.clone(),
        })
    }

    /// Whether an answer that has begun may go on; asked before each piece.
    pub fn may_go_on(&mut self, reading: &Reading, now: Instant) -> bool {
        self.grant(&reading.handle).is_some_and(|grant| {
            grant.end_in_time(now);
            grant.sealed.is_none()
        })
    }

    /// An answer has ended, whichever way: nothing of the file is used for it any more. True where the grant is
    /// sealed and this was its last reader: the caller closes the file, and then says [`Book::closed`].
    pub fn joined(&mut self, reading: Reading) -> bool {
        let Some(grant) = self.grant(&reading.handle) else {
            return false;
        };
        grant.readers -= 1;
        grant.readers == 0 && grant.sealed.is_some()
    }

    /// Moves the deadline (S4). Handle, scope, revision and address stay.
    ///
    /// # Errors
    /// [`ExtendError`]; the deadline stays.
    pub fn extend(
        &mut self,
        handle: &Handle,
        peer: &Member,
        fence: FenceHash,
        wish: Extension,
        now: Instant,
    ) -> Result<Extended, ExtendError> {
        let most = self.limits.lease;
        let cap = self.cap(wish.until, now);
        let grant = self.live(handle, peer, now)?;
        if grant.terms.fence != fence {
            return Err(Denied::NoSuchGrant.into());
        }
        if grant.last == Some(wish) {
            return Ok(grant.held);
        }
        let held = grant.held;
        if Some(wish.version) != held.version.checked_add(1) || wish.previous != held.until {
            return Err(ExtendError::Conflict(held));
        }
        let deadline = ExtendError::Deadline {
            previous: held.until,
            most,
        };
        match cap {
            Some(cap) if wish.until > held.until => {
                grant.cap = cap;
                grant.last = Some(wish);
                grant.held = Extended {
                    version: wish.version,
                    until: wish.until,
                };
                Ok(grant.held)
            }
            _ => Err(deadline),
        }
    }

    /// Ends what came or will come of `operation`, and says how far its end is. `peer` is the controller or the worker
    /// of the assignment; only the controller can bar an operation that has not come.
    ///
    /// # Errors
    /// [`Denied::NoSuchGrant`] to whoever has no part in it; and where the records are full and the operation never
    /// came, since then it cannot be barred.
    pub fn retire(
        &mut self,
        operation: &OperationId,
        fence: FenceHash,
        peer: &Member,
        now: Instant,
    ) -> Result<RetireAnswer, Denied> {
        let full = self.by_operation.len() >= self.limits.records || self.stopped;
        match self.by_operation.get_mut(operation) {
            Some(Record::Grant(grant)) => {
                let takes_part = *peer == grant.terms.controller || *peer == grant.terms.worker;
                if grant.terms.fence != fence || !takes_part {
                    return Err(Denied::NoSuchGrant);
                }
                grant.end_in_time(now);
                grant.sealed.get_or_insert(SealedBy::Request);
                Ok(grant.ending())
            }
            Some(Record::Barred {
                fence: known,
                controller,
            }) => {
                if *known != fence || controller != peer {
                    return Err(Denied::NoSuchGrant);
                }
                Ok(RetireAnswer::Proved(proof(operation, fence, 0)))
            }
            None if full => Err(Denied::NoSuchGrant),
            None => {
                let barred = Record::Barred {
                    fence,
                    controller: peer.clone(),
                };
                self.by_operation.insert(operation.clone(), barred);
                Ok(RetireAnswer::Proved(proof(operation, fence, 0)))
            }
        }
    }

    /// How far the end of `operation` is, without asking for it; `None` while it has not been asked for.
    pub fn ending(&self, operation: &OperationId) -> Option<RetireAnswer> {
        match self.by_operation.get(operation)? {
            Record::Barred { fence, .. } => Some(RetireAnswer::Proved(proof(operation, *fence, 0))),
            Record::Grant(grant) => grant.sealed.map(|_| grant.ending()),
        }
    }

    /// Who has ended the grant, if it has ended.
    pub fn sealed(&self, handle: &Handle) -> Option<SealedBy> {
        match self.by_operation.get(self.by_handle.get(handle)?)? {
            Record::Grant(grant) => grant.sealed,
            Record::Barred { .. } => None,
        }
    }

    /// What the grant was made for, to the worker that may read.
    pub fn terms(&self, handle: &Handle, worker: &Member) -> Option<&Terms> {
        match self.by_operation.get(self.by_handle.get(handle)?)? {
            Record::Grant(grant) => Some(&grant.terms).filter(|terms| terms.worker == *worker),
            Record::Barred { .. } => None,
        }
    }

    /// Grants whose files are not proved closed.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Seals what is over, and names the grants whose files are to be closed now.
    pub fn expire(&mut self, now: Instant) -> Vec<Handle> {
        let mut idle = Vec::new();
        for record in self.by_operation.values_mut() {
            let Record::Grant(grant) = record else { continue };
            grant.end_in_time(now);
            if grant.sealed.is_some() && grant.file == File::Open && grant.readers == 0 {
                idle.push(grant.handle.clone());
            }
        }
        idle
    }

    /// The earliest moment of this process's clock at which something will be over; `None` where nothing is open. The
    /// wall clock may bring it about earlier.
    pub fn next_end(&self) -> Option<Monotonic> {
        let open = self.by_operation.values().filter_map(|record| match record {
            Record::Grant(grant) if grant.sealed.is_none() => Some(grant.cap),
            _ => None,
        });
        open.min()
    }

    /// Seals everything and makes no grant any more. Names the grants whose files are to be closed now.
    pub fn stop(&mut self, now: Instant) -> Vec<Handle> {
        self.stopped = true;
        for record in self.by_operation.values_mut() {
            if let Record::Grant(grant) = record {
                grant.sealed.get_or_insert(SealedBy::Owner);
            }
        }
        self.expire(now)
    }

    fn grant(&mut self, handle: &Handle) -> Option<&mut Grant> {
        match self.by_operation.get_mut(self.by_handle.get(handle)?)? {
            Record::Grant(grant) => Some(grant),
            Record::Barred { .. } => None,
        }
    }

    /// The grant behind `handle` where it is open to `peer` now.
    fn live(&mut self, handle: &Handle, peer: &Member, now: Instant) -> Result<&mut Grant, Denied> {
        let grant = self.grant(handle).ok_or(Denied::NoSuchGrant)?;
        if grant.terms.worker != *peer {
            return Err(Denied::NoSuchGrant);
        }
        grant.end_in_time(now);
        match (grant.sealed, grant.file) {
            (Some(SealedBy::Deadline), _) => Err(Denied::Expired),
            (Some(_), _) | (None, File::Closed) => Err(Denied::Sealed),
            (None, File::Opening) => Err(Denied::Opening),
            (None, File::Open) => Ok(grant),
        }
    }

    /// When a deadline is over by this process's clock; `None` where it is over already or too far ahead.
    fn cap(&self, until: Timestamp, now: Instant) -> Option<Monotonic> {
        let left = until.saturating_since(now.wall);
        (!left.is_zero() && left <= self.limits.lease).then(|| now.monotonic.saturating_add(left))
    }
}

impl Grant {
    /// Seals the grant where its deadline is over by either clock.
    fn end_in_time(&mut self, now: Instant) {
        if now.wall >= self.held.until || now.monotonic >= self.cap {
            self.sealed.get_or_insert(SealedBy::Deadline);
        }
    }

    fn ending(&self) -> RetireAnswer {
        match self.file {
            File::Closed => {
                RetireAnswer::Proved(proof(&self.terms.operation, self.terms.fence, self.answers))
            }
            File::Opening | File::Open => RetireAnswer::Pending {
                readers: self.readers,
            },
        }
    }
}

fn proof(operation: &OperationId, fence: FenceHash, answers: u64) -> ReaderProof {
    ReaderProof {
        operation: operation.clone(),
        fence,
        answers,
    }
}

#[cfg(test)]
mod tests;

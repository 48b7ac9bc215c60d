//! Executions that several playbacks watch (D20).
//!
//! Viewers of the same representations of the same state of the same file share one execution, and with it one
//! encoder and one charge, for as long as they watch near each other. Whoever seeks out of its reach while
//! others watch gets another; whoever is alone takes it along. The last viewer to leave retires it.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ether_encoder::{Execution, Input, Protocol, Request, Resource};
use ether_types::{Clock, Monotonic};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::plan::Making;
use crate::ports::{Charge, Units};

/// Segments between two viewers who begin at the same time and may wait for one encoder.
const NEAR: u32 = 4;

/// What is made from what: equal for playbacks that may share an execution.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity([u8; 32]);

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}…", self.0[0], self.0[1])
    }
}

impl Identity {
    /// The identity of what `making` makes; `None` for what is made for one viewer alone.
    pub(crate) fn of(making: &Making) -> Option<Self> {
        let Request {
            facts: _, // the revision of the file stands for them
            protocol,
            timeline,
            video,
            audio,
            subtitle,
        } = &*making.request;
        if matches!(protocol, Protocol::Http { .. }) {
            return None;
        }
        let Input::File { path, revision } = &making.input else {
            return None;
        };
        let text = serde_json::to_vec(&(protocol, timeline, video, audio, subtitle, revision)).ok()?;
        let mut hash = Sha256::new();
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
        hash.update(path.as_os_str().as_encoded_bytes());
        Some(Self(hash.finalize().into()))
    }
}

/// An execution, what is charged for it, and how many playbacks watch it.
pub(crate) struct Work {
    pub(crate) execution: Arc<dyn Execution>,
    pub(crate) units: Units,
    charge: Mutex<Option<Charge>>,
    /// Changed only under the book's lock.
    viewers: AtomicUsize,
}

impl Work {
    /// An execution that one playback watches, on `charge`.
    pub(crate) fn new(execution: Arc<dyn Execution>, charge: Charge) -> Arc<Self> {
        Arc::new(Self {
            execution,
            units: charge.units,
            charge: Mutex::new(Some(charge)),
            viewers: AtomicUsize::new(1),
        })
    }

    /// How many playbacks watch it.
    pub(crate) fn viewers(&self) -> usize {
        self.viewers.load(Ordering::Acquire)
    }

    /// The charge, for whoever retires it: once.
    pub(crate) fn take_charge(&self) -> Option<Charge> {
        self.charge.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The works of a server.
#[derive(Default)]
pub(crate) struct Works {
    book: Mutex<Book>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct Book {
    next: u64,
    entries: Vec<Entry>,
}

struct Entry {
    id: u64,
    identity: Identity,
    /// The segment that it is begun for.
    at: u32,
    /// Absent while it is being begun.
    work: Option<Arc<Work>>,
}

/// Where a playback finds its execution.
pub(crate) enum Place {
    /// With others.
    Shared(Arc<Work>),
    /// It is to begin one, which others find through the ticket.
    Own(Ticket),
}

/// The right and the duty to begin an execution. Dropping it lets the next in line begin one.
pub(crate) struct Ticket {
    works: Arc<Works>,
    id: Option<u64>,
}

impl Ticket {
    /// Lets others find the execution that was begun.
    pub(crate) fn publish(mut self, work: &Arc<Work>) {
        let Some(id) = self.id.take() else { return };
        let works = Arc::clone(&self.works);
        if let Some(entry) = works.book().entries.iter_mut().find(|entry| entry.id == id) {
            entry.work = Some(Arc::clone(work));
        }
        works.changed.send_modify(|n| *n += 1);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.works.book().entries.retain(|entry| entry.id != id);
            self.works.changed.send_modify(|n| *n += 1);
        }
    }
}

impl Works {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds an execution of `identity` that has segment `at` of `representation` within reach, waiting until
    /// `until` for one that is just being begun there; else gives a ticket to begin one.
    ///
    /// Cancel-safe: a playback counts as a viewer only once the place was handed over.
    pub(crate) async fn place(
        self: &Arc<Self>,
        identity: Option<Identity>,
        (representation, at): (u32, u32),
        clock: &dyn Clock,
        until: Monotonic,
    ) -> Place {
        let alone = || {
            Place::Own(Ticket {
                works: Arc::clone(self),
                id: None,
            })
        };
        let Some(identity) = identity else { return alone() };
        let wanted = Resource::Segment {
            representation,
            number: at,
        };
        let mut changes = self.changed.subscribe();
        loop {
            changes.borrow_and_update();
            {
                let mut book = self.book();
                let same = |entry: &&Entry| entry.identity == identity;
                let reached = |entry: &Entry| {
                    let work = entry.work.as_ref()?;
                    work.execution.reaches(wanted).then(|| Arc::clone(work))
                };
                if let Some(work) = book.entries.iter().filter(same).find_map(reached) {
                    work.viewers.fetch_add(1, Ordering::AcqRel);
                    return Place::Shared(work);
                }
                let coming = |entry: &Entry| entry.work.is_none() && entry.at.abs_diff(at) <= NEAR;
                if !book.entries.iter().filter(same).any(coming) {
                    book.next += 1;
                    let id = book.next;
                    book.entries.push(Entry {
                        id,
                        identity,
                        at,
                        work: None,
                    });
                    return Place::Own(Ticket {
                        works: Arc::clone(self),
                        id: Some(id),
                    });
                }
            }
            let left = until.saturating_since(clock.monotonic());
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                () = clock.sleep(left) => return alone(),
            }
        }
    }

    /// A playback leaves `work`; true when it was the last, which then retires it.
    pub(crate) fn leave(&self, work: &Arc<Work>) -> bool {
        let mut book = self.book();
        let last = work.viewers.fetch_sub(1, Ordering::AcqRel) <= 1;
        if last {
            book.forget(work);
        }
        last
    }

    /// Nobody else is to find `work`: its execution has ended.
    pub(crate) fn spoil(&self, work: &Arc<Work>) {
        self.book().forget(work);
    }
}

impl Book {
    fn forget(&mut self, work: &Arc<Work>) {
        let other = |entry: &Entry| entry.work.as_ref().is_none_or(|own| !Arc::ptr_eq(own, work));
        self.entries.retain(other);
    }
}

#[cfg(test)]
mod tests;

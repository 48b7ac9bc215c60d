//! Capacity kept in this process, until the ledger keeps it: the same refusals and the same rules (D19).
//!
//! One lock guards the book. Waiters stand in the order in which their playbacks first asked; the head is
//! served first, and nobody behind it overtakes it, so that a heavy film is not starved by light ones. What
//! was taken comes back through [`Capacity::release`] with proof, and through nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ether_encoder::BoxFuture;
use ether_types::{Budget, BudgetView, Clock, Monotonic, Remembered};
use tokio::sync::oneshot;

use crate::ports::{Ask, Capacity, CapacityRefusal, CapacityUsage, Charge, Proof, ReleaseError, Units};

/// Most playbacks that wait at once; more are refused at once.
pub const MAX_WAITING: usize = 256;

/// The budgets of one process.
pub struct LocalCapacity {
    clock: Arc<dyn Clock>,
    book: Arc<Mutex<Book>>,
}

#[derive(Debug)]
struct Book {
    limit: Units,
    used: Units,
    open: bool,
    taken: BTreeMap<u64, Units>,
    /// Those of what is taken whose encoders are not proved gone.
    stranded: BTreeSet<u64>,
    budgets: Budgets,
    waiting: BTreeMap<Place, Waiter>,
    next: u64,
}

/// What of the book must be remembered (D15): scratch that is booked, in MiB, and milli-slots that came back from no
/// encoder.
#[derive(Debug)]
struct Budgets {
    scratch: Budget,
    stranded: Budget,
}

/// A place in the queue: when the playback first asked, then who came first.
type Place = (Monotonic, u64);

#[derive(Debug)]
struct Waiter {
    units: Units,
    answer: oneshot::Sender<Result<Charge, CapacityRefusal>>,
}

impl fmt::Debug for LocalCapacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCapacity")
            .field("book", &self.book)
            .finish_non_exhaustive()
    }
}

impl LocalCapacity {
    /// Budgets of `limit`, nothing taken, open.
    pub fn new(limit: Units, clock: Arc<dyn Clock>) -> Self {
        let now = clock.monotonic();
        let (slots, mib) = (u64::from(limit.milli_slots), u64::from(limit.scratch_mib));
        let book = Book {
            limit,
            used: Units::default(),
            open: true,
            taken: BTreeMap::new(),
            stranded: BTreeSet::new(),
            budgets: Budgets {
                scratch: Budget::new(Remembered::Scratch, 0, mib, now),
                stranded: Budget::new(Remembered::StrandedClaims, 0, slots, now),
            },
            waiting: BTreeMap::new(),
            next: 1,
        };
        Self {
            clock,
            book: Arc::new(Mutex::new(book)),
        }
    }

    /// Takes no new work from now on and refuses whoever waits. What was taken stays taken.
    pub fn close(&self) {
        let mut book = lock(&self.book);
        book.open = false;
        for (_, waiter) in std::mem::take(&mut book.waiting) {
            let _ = waiter.answer.send(Err(CapacityRefusal::Closed));
        }
    }

    /// Charges that were not given back, by their number.
    pub fn taken(&self) -> BTreeSet<u64> {
        lock(&self.book).taken.keys().copied().collect()
    }
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Book {
    /// What a playback is charged: never more than there is, so that a film too heavy for this machine is
    /// played alone instead of never.
    fn charged(&self, units: Units) -> Units {
        Units {
            milli_slots: units.milli_slots.min(self.limit.milli_slots),
            device_milli_slots: match self.limit.device_milli_slots {
                0 => units.device_milli_slots,
                limit => units.device_milli_slots.min(limit),
            },
            scratch_mib: units.scratch_mib.min(self.limit.scratch_mib),
        }
    }

    fn admits(&self, units: Units) -> Result<(), CapacityRefusal> {
        if !self.open {
            return Err(CapacityRefusal::Closed);
        }
        let none = |wanted: u32, limit: u32| wanted > 0 && limit == 0;
        if none(units.milli_slots, self.limit.milli_slots) || none(units.scratch_mib, self.limit.scratch_mib)
        {
            return Err(CapacityRefusal::None);
        }
        Ok(())
    }

    fn fits(&self, units: Units) -> Result<(), CapacityRefusal> {
        let (used, limit) = (self.used, self.limit);
        if units.milli_slots > limit.milli_slots.saturating_sub(used.milli_slots) {
            return Err(CapacityRefusal::Encoders {
                used: used.milli_slots,
                limit: limit.milli_slots,
            });
        }
        let devices = limit.device_milli_slots;
        if devices > 0 && units.device_milli_slots > devices.saturating_sub(used.device_milli_slots) {
            return Err(CapacityRefusal::Encoders {
                used: used.device_milli_slots,
                limit: devices,
            });
        }
        if units.scratch_mib > limit.scratch_mib.saturating_sub(used.scratch_mib) {
            return Err(CapacityRefusal::Scratch {
                used: used.scratch_mib,
                limit: limit.scratch_mib,
            });
        }
        Ok(())
    }

    fn take(&mut self, units: Units) -> Charge {
        self.used.milli_slots += units.milli_slots;
        // Without a limit nothing bounds the sum.
        self.used.device_milli_slots = self
            .used
            .device_milli_slots
            .saturating_add(units.device_milli_slots);
        self.used.scratch_mib += units.scratch_mib;
        let id = self.next;
        self.next += 1;
        self.taken.insert(id, units);
        Charge { id, units }
    }

    fn free(&mut self, units: Units) {
        self.used.milli_slots -= units.milli_slots;
        self.used.device_milli_slots = self
            .used
            .device_milli_slots
            .saturating_sub(units.device_milli_slots);
        self.used.scratch_mib -= units.scratch_mib;
    }

    fn give_back(&mut self, id: u64) {
        // A charge that is not in the book was given back before: a repeated success.
        if let Some(units) = self.taken.remove(&id) {
            self.stranded.remove(&id);
            self.free(units);
            self.serve();
        }
    }

    /// Lets the budgets know how things stand at `now`, and the log of a mark that was passed.
    fn account(&mut self, now: Monotonic) {
        let stranded = self.stranded.iter().filter_map(|id| self.taken.get(id));
        let stranded: u64 = stranded.map(|units| u64::from(units.milli_slots)).sum();
        let (used, limit) = (self.used, self.limit);
        let Budgets {
            scratch,
            stranded: claims,
        } = &mut self.budgets;
        for (budget, used, limit) in [
            (scratch, used.scratch_mib.into(), limit.scratch_mib.into()),
            (claims, stranded, u64::from(limit.milli_slots)),
        ] {
            if let Some(warning) = budget.note(used, limit, now) {
                let BudgetView { of, full_in_ms, .. } = budget.look(now);
                tracing::warn!(
                    budget = ?of,
                    used,
                    limit,
                    full_in_ms,
                    "a budget is {} % full: {}",
                    warning.mark(),
                    of.mend()
                );
            }
        }
    }

    /// Serves the queue from its head for as long as the head fits.
    fn serve(&mut self) {
        while let Some(entry) = self.waiting.first_entry() {
            if entry.get().answer.is_closed() {
                entry.remove();
                continue;
            }
            let units = entry.get().units;
            if self.fits(units).is_err() {
                return;
            }
            let Some((_, waiter)) = self.waiting.pop_first() else {
                return;
            };
            let charge = self.take(units);
            if let Err(Ok(unclaimed)) = waiter.answer.send(Ok(charge)) {
                // It left between the two lines above.
                self.taken.remove(&unclaimed.id);
                self.free(units);
            }
        }
    }
}

impl Capacity for LocalCapacity {
    fn usage(&self) -> CapacityUsage {
        let book = lock(&self.book);
        CapacityUsage {
            used: book.used,
            limit: book.limit,
            waiting: u32::try_from(book.waiting.len()).unwrap_or(u32::MAX),
            open: book.open,
        }
    }

    fn budgets(&self) -> Vec<BudgetView> {
        let now = self.clock.monotonic();
        let mut book = lock(&self.book);
        book.account(now);
        let Budgets { scratch, stranded } = &book.budgets;
        vec![scratch.look(now), stranded.look(now)]
    }

    fn strand(&self, charge: &Charge) {
        let now = self.clock.monotonic();
        let mut book = lock(&self.book);
        if book.taken.contains_key(&charge.id) {
            book.stranded.insert(charge.id);
            book.account(now);
        }
    }

    fn admits(&self, units: Units) -> Result<(), CapacityRefusal> {
        lock(&self.book).admits(units)
    }

    fn reserve(&self, ask: Ask) -> BoxFuture<'_, Result<Charge, CapacityRefusal>> {
        Box::pin(async move {
            let mut place = {
                let now = self.clock.monotonic();
                let mut book = lock(&self.book);
                book.admits(ask.units)?;
                let units = book.charged(ask.units);
                if book.waiting.is_empty() && book.fits(units).is_ok() {
                    let charge = book.take(units);
                    book.account(now);
                    return Ok(charge);
                }
                if book.waiting.len() >= MAX_WAITING {
                    let waiting = u32::try_from(book.waiting.len()).unwrap_or(u32::MAX);
                    return Err(CapacityRefusal::QueueFull { waiting });
                }
                let key = (ask.since, book.next);
                book.next += 1;
                let (answer, asked) = oneshot::channel();
                book.waiting.insert(key, Waiter { units, answer });
                // A playback that asks again goes before newcomers, and may fit where they do not.
                book.serve();
                Waiting {
                    book: Arc::clone(&self.book),
                    key,
                    asked,
                }
            };
            let wait = ask.until.saturating_since(self.clock.monotonic());
            tokio::select! {
                biased;
                answer = &mut place.asked => answer.unwrap_or(Err(CapacityRefusal::Closed)),
                () = self.clock.sleep(wait) => {
                    let units = ask.units;
                    let refusal = {
                        let book = lock(&self.book);
                        // Behind others, it may fit and still not be served: then those before it are why.
                        book.fits(book.charged(units)).err().unwrap_or(CapacityRefusal::Encoders {
                            used: book.used.milli_slots,
                            limit: book.limit.milli_slots,
                        })
                    };
                    Err(refusal)
                }
            }
        })
    }

    fn release<'a>(
        &'a self,
        charge: &'a Charge,
        _proof: &'a Proof,
    ) -> BoxFuture<'a, Result<(), ReleaseError>> {
        let now = self.clock.monotonic();
        let mut book = lock(&self.book);
        book.give_back(charge.id);
        book.account(now);
        Box::pin(async { Ok(()) })
    }
}

/// A place in the queue, left when this is dropped.
struct Waiting {
    book: Arc<Mutex<Book>>,
    key: Place,
    asked: oneshot::Receiver<Result<Charge, CapacityRefusal>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut book = lock(&self.book);
        book.waiting.remove(&self.key);
        self.asked.close();
        // Granted and never handed over: no encoder was started on it.
        if let Ok(Ok(unclaimed)) = self.asked.try_recv() {
            book.give_back(unclaimed.id);
        } else {
            book.serve();
        }
    }
}

#[cfg(test)]
mod tests;

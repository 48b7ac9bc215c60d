//! What no step may break: the invariants of the policy, over the modelled system.

use std::collections::BTreeMap;
use std::time::Duration;

use ether_types::Timestamp;

use crate::decide::{Decision, record};
use crate::outcome::{Authority, Outcome, Recorded, Renewed, Reserved};
use crate::state::{Change, State};
use crate::tests::model::also::{Also, liar};
use crate::tests::model::system::{Execution, System, key};

impl System {
    /// The latest deadline that may be given out: `seconds`, those of a lease or of the longest one, and the skew
    /// that goes by, from the database's own clock.
    fn furthest(&self, seconds: u64) -> Timestamp {
        let furthest = Duration::from_secs(seconds) + self.also.skew();
        self.now().checked_add(furthest).unwrap()
    }

    /// What no answer may say.
    pub(super) fn judge(&self, decision: &Decision) -> Result<(), String> {
        match &decision.outcome {
            Outcome::Reserve(Reserved::Granted(granted)) => {
                let double = self
                    .granted
                    .values()
                    .any(|(fence, _)| fence.operation == granted.fence.operation);
                if double {
                    return Err("one operation was granted twice".to_owned());
                }
                if granted.initial_deadline > self.furthest(1) {
                    return Err("a deadline was given out that lies too far ahead".to_owned());
                }
                if self.granted.contains_key(&key(&granted.fence)) {
                    return Err("one generation was granted twice".to_owned());
                }
            }
            Outcome::Reserve(Reserved::Replayed(replayed)) => {
                let first = self.granted.get(&key(&replayed.fence));
                if first != Some(&(replayed.fence.clone(), replayed.initial_deadline)) {
                    return Err("a replay is not the first answer".to_owned());
                }
                let still = |change: &Change| self.also.steps_back() || self.of_the_clock(change);
                if !decision.changes.iter().all(still) {
                    return Err("a replay changed something".to_owned());
                }
            }
            Outcome::Renew(Renewed::Renewed {
                deadline,
                moved: true,
            }) if *deadline > self.furthest(2) => {
                return Err("a deadline was given out that lies too far ahead".to_owned());
            }
            Outcome::Renew(Renewed::Renewed { deadline, .. }) if *deadline <= self.now() => {
                return Err("a renewal gave authority that is over".to_owned());
            }
            Outcome::Record(Recorded::Conflict { current }) if current.author != liar() => {
                return Err("an author was kept out by its own other word".to_owned());
            }
            Outcome::Record(Recorded::Conflict { .. } | Recorded::Full { .. }) => {
                return Err("a liar kept an author out".to_owned());
            }
            _ => {}
        }
        Ok(())
    }

    /// What no step may do to a session: take its generation or its deadline back.
    pub(super) fn compare(&self, next: &State) -> Result<(), String> {
        let (meta, before) = (&next.meta, &self.ledger.meta);
        let rebased = meta.epoch == before.epoch + 1;
        let same_epoch = meta.epoch == before.epoch && meta.clock >= before.clock;
        if meta.ceiling < before.ceiling || !(rebased || same_epoch) {
            return Err("the ceiling or the latest instant went back".to_owned());
        }
        for (key, pool) in next.pools.present() {
            let before = self.ledger.pools.get(key).ok().flatten();
            if pool.used > before.map_or(0, |pool| pool.used) && pool.used > pool.capacity.get() {
                return Err("a pool is over its capacity".to_owned());
            }
        }
        for (session, before) in self.ledger.sessions.present() {
            let Ok(Some(after)) = next.sessions.get(session) else {
                return Err("a session was forgotten".to_owned());
            };
            let (old, new) = (before.fence.generation, after.fence.generation);
            if new < old {
                return Err("a generation went back".to_owned());
            }
            if new == old && (after.deadline < before.deadline || after.fence != before.fence) {
                return Err("an assignment changed under its fence".to_owned());
            }
            if new == old && before.retired && !after.retired {
                return Err("a retirement was taken back".to_owned());
            }
        }
        Ok(())
    }

    /// What holds in every state.
    pub(super) fn check(&mut self) -> Result<(), String> {
        // Where the clock may go back, an end that nobody was told of may be put off.
        let now = match self.also.steps_back() {
            true => self.ledger.meta.clock,
            false => self.now(),
        };
        let mut used = BTreeMap::new();
        let (mut total, mut retired) = (0, 0);
        for (session, row) in self.ledger.sessions.present() {
            total += 1;
            let at = (session.clone(), row.fence.generation);
            match record(row, now).authority {
                Authority::Retired => retired += 1,
                _ if self.over.contains_key(&at) && record(row, self.seen()).authority == Authority::Live => {
                    return Err("authority came back after its expiry".to_owned());
                }
                Authority::Live => {}
                Authority::Expired => {
                    self.over.insert(at, ());
                }
            }
            if !row.retired {
                for (scope, units) in row.claims.iter() {
                    *used.entry((scope.clone(), row.fence.role)).or_insert(0) += units.get();
                }
            }
        }
        if (total, retired) != (self.ledger.meta.total, self.ledger.meta.retired) {
            return Err("the counters do not count the rows".to_owned());
        }
        for (key, pool) in self.ledger.pools.present() {
            if pool.used != used.get(key).copied().unwrap_or(0) {
                return Err("used units are not the unretired claims".to_owned());
            }
            if pool.used > pool.capacity.get() && self.also != Also::Pools {
                return Err("a pool is over its capacity".to_owned());
            }
        }
        if self
            .ledger
            .meta
            .ceiling
            .is_some_and(|ceiling| total > ceiling.get())
        {
            return Err("more sessions than the ceiling allows".to_owned());
        }
        for (session, kept) in self.ledger.evidence.present() {
            let row = self.ledger.sessions.get(session).unwrap();
            let about = |row: &crate::state::Session| {
                !row.retired && kept.iter().all(|piece| piece.fence == row.fence)
            };
            if !row.is_some_and(about) {
                return Err("evidence outlived what it is about".to_owned());
            }
        }
        let mut running = BTreeMap::new();
        for (at, _) in self.executions.iter().filter(|(_, e)| **e == Execution::Running) {
            let fence = &self.granted[at].0;
            let row = self.ledger.sessions.get(&at.0).unwrap();
            if row.is_none_or(|row| row.retired || row.fence != *fence) {
                return Err("a process runs that the ledger has forgotten".to_owned());
            }
            *running.entry(fence.target.clone()).or_insert(0) += 1;
        }
        if running.values().any(|processes| *processes > 1) && self.also != Also::Pools {
            return Err("two processes share one slot".to_owned());
        }
        Ok(())
    }
}

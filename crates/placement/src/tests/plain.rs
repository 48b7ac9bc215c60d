//! The rules once more, as plainly as they can be written, to compare the real thing with.
//!
//! Nothing is shared with `decide`: sums are formed anew for every question, and history is kept whole.

use std::collections::BTreeMap;

/// One request of a history. Small numbers, so that histories collide.
#[derive(Clone, Debug)]
pub(super) enum Move {
    Reserve {
        slot: u32,
        operation: u32,
        expected: u64,
        target: usize,
        units: u64,
        lease: i64,
    },
    /// Renews the `pick`th assignment that was ever granted.
    Renew {
        pick: usize,
        ahead: i64,
    },
    Retire {
        pick: usize,
    },
    /// Writes evidence about the `pick`th assignment.
    Record {
        pick: usize,
        by: By,
        kind: Kind,
    },
    /// Raises the ceiling, by somebody who saw `expect`.
    Raise {
        expect: u64,
        to: u64,
    },
    /// Sets a pool, by somebody who saw the policy that is `behind` the one that stands.
    Pool {
        scope: usize,
        capacity: u64,
        behind: u64,
    },
    /// Replaces a target's incarnation, by somebody who saw `seen` and the policy that is `behind`.
    Target {
        target: usize,
        seen: u32,
        next: u32,
        behind: u64,
    },
    /// Looks a session up.
    Look {
        slot: u32,
    },
    Wait {
        seconds: i64,
    },
    /// The clock is stepped back.
    Back {
        seconds: i64,
    },
    /// The clock is rebased, by somebody who saw the epoch that is `behind`.
    Rebase {
        behind: u64,
    },
}

/// Who writes evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The incarnation that the assignment names.
    Own,
    /// The incarnation that the target has now.
    Current,
    /// An incarnation that the target never had.
    Stranger,
    /// One of two sources.
    Source(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Reaped,
    Succeeded,
    Attested,
}

/// What a move came to, in one word and a number.
pub(super) type Answer = (&'static str, i64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Granted {
    pub(super) slot: u32,
    pub(super) generation: u64,
    pub(super) operation: u32,
    pub(super) expected: u64,
    pub(super) target: usize,
    pub(super) incarnation: u32,
    pub(super) units: u64,
    pub(super) lease: i64,
    pub(super) first: i64,
    pub(super) deadline: i64,
    pub(super) retired: bool,
}

/// The plain ledger. Two targets; each takes from a scope of its own and from one that both share.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    /// What the database's clock says.
    pub(super) clock: i64,
    /// The instant that a step is judged at.
    now: i64,
    /// The latest instant that everybody knows of.
    written: i64,
    pub(super) epoch: u64,
    /// The latest instant that each coordinator has judged at, and in which epoch.
    seen: [(u64, i64); 2],
    pub(super) history: Vec<Granted>,
    /// Capacity, and how often it was set.
    pub(super) pools: BTreeMap<usize, (u64, u64)>,
    pub(super) incarnations: [u32; 2],
    /// How often each target was set.
    pub(super) policies: [u64; 2],
    pub(super) maximum: i64,
    pub(super) ceiling: u64,
    /// By assignment, in `history`: which incarnation or source wrote what.
    pub(super) evidence: Vec<(usize, (bool, u32), Kind)>,
}

/// The quota of each coordinator. Whichever is not the ceiling is closed to new work.
pub(super) const QUOTAS: [u64; 2] = [3, 4];

pub(super) const SHARED: usize = 2;

/// How far the clock may stand behind, in seconds.
pub(super) const SKEW: i64 = 5;

impl Plain {
    pub(super) fn new(maximum: i64) -> Self {
        Self {
            clock: 0,
            now: 0,
            written: 0,
            epoch: 0,
            seen: [(0, 0); 2],
            history: Vec::new(),
            pools: BTreeMap::from([(0, (3, 1)), (1, (3, 1)), (SHARED, (4, 1))]),
            incarnations: [1, 1],
            policies: [1, 1],
            maximum,
            ceiling: QUOTAS[0],
            evidence: Vec::new(),
        }
    }

    pub(super) fn used(&self, scope: usize) -> u64 {
        let takes = |g: &&Granted| !g.retired && (g.target == scope || scope == SHARED);
        self.history.iter().filter(takes).map(|g| g.units).sum()
    }

    fn last(&self, slot: u32) -> Option<&Granted> {
        self.history.iter().rev().find(|granted| granted.slot == slot)
    }

    /// What coordinator `by` is answered.
    pub(super) fn step(&mut self, by: usize, step: &Move) -> Answer {
        match *step {
            Move::Wait { seconds } => {
                self.clock += seconds;
                return ("waited", self.clock);
            }
            Move::Back { seconds } => {
                self.clock -= seconds;
                return ("went back", self.clock);
            }
            Move::Renew { .. } | Move::Retire { .. } | Move::Record { .. } if self.history.is_empty() => {
                return ("nothing", 0);
            }
            _ => {}
        }
        // Each goes by what it has seen itself, and by what everybody knows.
        let shared = self.clock.max(self.written);
        self.now = match self.seen[by] {
            (epoch, seen) if epoch == self.epoch => shared.max(seen),
            _ => shared,
        };
        self.seen[by] = (self.epoch, self.now);
        let before = self.clone();
        let answer = self.asked(by, step);
        if matches!(step, Move::Rebase { .. }) {
            return answer;
        }
        match self.told(step, answer) {
            // What only this one knows is everybody's as far as the clock may be off, and no further.
            Some(end) if end > shared && end - self.clock <= SKEW => self.written = end,
            Some(end) if end > shared => {}
            Some(end) if end > self.written => self.written = shared,
            _ if self.rows() != before.rows() => self.written = shared,
            _ => {}
        }
        answer
    }

    /// Everything but the clock.
    #[allow(clippy::type_complexity, reason = "compared, and nothing else")]
    fn rows(
        &self,
    ) -> (
        &[Granted],
        &BTreeMap<usize, (u64, u64)>,
        [u32; 2],
        [u64; 2],
        u64,
        &[(usize, (bool, u32), Kind)],
    ) {
        (
            &self.history,
            &self.pools,
            self.incarnations,
            self.policies,
            self.ceiling,
            &self.evidence,
        )
    }

    /// The deadline that `answer` tells to have passed.
    fn told(&self, step: &Move, answer: Answer) -> Option<i64> {
        match (step, answer) {
            (_, ("expired" | "over", end)) => Some(end),
            (Move::Reserve { slot, .. }, ("replayed", _)) => {
                let last = self.last(*slot)?;
                (!last.retired && self.now >= last.deadline).then_some(last.deadline)
            }
            _ => None,
        }
    }

    fn behind(&self) -> Option<Answer> {
        let behind = self.now - self.clock;
        (behind > SKEW).then_some(("behind", behind))
    }

    fn asked(&mut self, by: usize, step: &Move) -> Answer {
        match *step {
            Move::Reserve {
                slot,
                operation,
                expected,
                target,
                units,
                lease,
            } => self.reserve(by, slot, operation, expected, target, units, lease),
            Move::Renew { pick, ahead } => {
                let Some(index) = self.picked(pick) else {
                    return ("nothing", 0);
                };
                let picked = self.history[index].clone();
                let current = self.last(picked.slot).map_or(0, |last| last.generation);
                let deadline = self.clock + ahead;
                if current > picked.generation {
                    ("superseded", i64::try_from(current).unwrap())
                } else if picked.retired {
                    ("retired", 0)
                } else if self.now >= picked.deadline {
                    ("expired", picked.deadline)
                } else if deadline <= picked.deadline {
                    ("kept", picked.deadline)
                } else if let Some(behind) = self.behind() {
                    behind
                } else if deadline > self.now + self.maximum {
                    ("too far", self.now + self.maximum)
                } else {
                    self.history[index].deadline = deadline;
                    ("moved", deadline)
                }
            }
            Move::Retire { pick } => {
                let Some(index) = self.picked(pick) else {
                    return ("nothing", 0);
                };
                let current = self
                    .last(self.history[index].slot)
                    .map_or(0, |last| last.generation);
                if current > self.history[index].generation {
                    return ("superseded", i64::try_from(current).unwrap());
                }
                self.evidence.retain(|(about, _, _)| *about != index);
                let already = std::mem::replace(&mut self.history[index].retired, true);
                ("released", i64::from(already))
            }
            Move::Record { pick, by, kind } => self.record(pick, by, kind),
            Move::Raise { expect, to } => {
                let current = i64::try_from(self.ceiling).unwrap();
                if to != self.ceiling && expect != self.ceiling {
                    return ("other ceiling", current);
                }
                if to < self.ceiling {
                    return ("downward", current);
                }
                self.ceiling = to;
                ("raised", i64::try_from(to).unwrap())
            }
            Move::Pool {
                scope,
                capacity,
                behind,
            } => {
                let (stands, policy) = self.pools[&scope];
                if stands != capacity && behind > 0 {
                    return ("stale", i64::try_from(policy).unwrap());
                }
                let policy = policy + u64::from(stands != capacity);
                self.pools.insert(scope, (capacity, policy));
                ("set", i64::try_from(capacity).unwrap())
            }
            Move::Target {
                target,
                seen,
                next,
                behind,
            } => {
                let stands = self.incarnations[target];
                if stands != next && (stands != seen || behind > 0) {
                    return ("stale", i64::try_from(self.policies[target]).unwrap());
                }
                self.policies[target] += u64::from(stands != next);
                self.incarnations[target] = next;
                ("set", i64::try_from(self.policies[target]).unwrap())
            }
            Move::Look { slot } => match self.last(slot) {
                None => ("absent", 0),
                Some(last) if last.retired => ("retired", last.first),
                Some(last) if self.now < last.deadline => ("live", last.deadline),
                Some(last) => ("over", last.deadline),
            },
            Move::Rebase { behind } => {
                let asked = self.epoch.saturating_sub(behind);
                let lasts = self.history.iter().filter(|granted| !granted.retired);
                let lasts = lasts.map(|granted| granted.deadline).max();
                if asked + 1 == self.epoch {
                    return ("rebased", i64::try_from(self.epoch).unwrap());
                }
                if asked != self.epoch {
                    return ("other epoch", i64::try_from(self.epoch).unwrap());
                }
                if let Some(lasts) = lasts.filter(|lasts| *lasts > self.clock) {
                    return ("held", lasts);
                }
                self.epoch += 1;
                self.written = self.clock;
                ("rebased", i64::try_from(self.epoch).unwrap())
            }
            Move::Wait { .. } | Move::Back { .. } => unreachable!("nobody is asked"),
        }
    }

    fn picked(&self, pick: usize) -> Option<usize> {
        (!self.history.is_empty()).then(|| pick % self.history.len())
    }

    fn record(&mut self, pick: usize, by: By, kind: Kind) -> Answer {
        let Some(index) = self.picked(pick) else {
            return ("nothing", 0);
        };
        let about = self.history[index].clone();
        let current = self.last(about.slot).map_or(0, |last| last.generation);
        if current > about.generation {
            return ("superseded", i64::try_from(current).unwrap());
        }
        if about.retired {
            return ("retired", 0);
        }
        let stands = self.incarnations[about.target];
        let author = match by {
            By::Own => (false, about.incarnation),
            By::Current => (false, stands),
            By::Stranger => (false, 9),
            By::Source(number) => (true, number),
        };
        if kind == Kind::Attested {
            return ("not theirs", 0);
        }
        if !author.0 && author.1 == about.incarnation && kind == Kind::Succeeded {
            return ("not theirs", 0);
        }
        if !author.0 && author.1 != about.incarnation && author.1 != stands {
            return ("not author", 0);
        }
        let first = self
            .evidence
            .iter()
            .find(|(about, who, _)| (*about, *who) == (index, author));
        match first {
            Some((_, _, said)) if *said == kind => ("already", 0),
            Some(_) => ("said other", 0),
            None => {
                self.evidence.push((index, author, kind));
                ("recorded", 0)
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "a request has as many fields")]
    fn reserve(
        &mut self,
        by: usize,
        slot: u32,
        operation: u32,
        expected: u64,
        target: usize,
        units: u64,
        lease: i64,
    ) -> Answer {
        // Whoever reserves names the incarnation that stands, as a controller does.
        let incarnation = self.incarnations[target];
        let last = self.last(slot).cloned();
        if let Some(last) = last.as_ref().filter(|last| last.operation == operation) {
            let same = (
                last.expected,
                last.target,
                last.incarnation,
                last.units,
                last.lease,
            ) == (expected, target, incarnation, units, lease);
            return match same {
                true => ("replayed", last.first),
                false => ("conflict", i64::try_from(last.generation).unwrap()),
            };
        }
        let current = last.as_ref().map_or(0, |last| last.generation);
        if current != expected {
            return ("superseded", i64::try_from(current).unwrap());
        }
        if last.is_some_and(|last| !last.retired) {
            return ("unretired", i64::try_from(current).unwrap());
        }
        if let Some(behind) = self.behind() {
            return behind;
        }
        if QUOTAS[by] != self.ceiling {
            return ("closed", i64::try_from(self.ceiling).unwrap());
        }
        let sessions = self.history.iter().map(|granted| granted.slot);
        let sessions = sessions.collect::<std::collections::BTreeSet<_>>().len() as u64;
        if current == 0 && sessions >= self.ceiling {
            return ("full", i64::try_from(sessions).unwrap());
        }
        if lease > self.maximum {
            return ("too long", self.maximum);
        }
        for scope in [target, SHARED] {
            let left = self.pools[&scope].0.saturating_sub(self.used(scope));
            if units > left {
                return ("no capacity", i64::try_from(left).unwrap());
            }
        }
        self.history.push(Granted {
            slot,
            generation: current + 1,
            operation,
            expected,
            target,
            incarnation,
            units,
            lease,
            first: self.now + lease,
            deadline: self.now + lease,
            retired: false,
        });
        ("granted", self.now + lease)
    }
}

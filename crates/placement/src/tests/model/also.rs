//! What some explorations have besides: evidence and a liar, a pool that changes, a ceiling, a clock that steps back.

use std::time::Duration;

use ether_types::{Fence, Generation, SessionId, Timestamp};

use crate::bounds::{EvidenceBody, Quota};
use crate::command::Command;
use crate::evidence::{Author, EvidenceKind};
use crate::tests::model::system::{Execution, Step, System};
use crate::tests::world::{START, boot, node};

/// What may happen besides, one thing for each exploration: together they would be too many states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Also {
    Nothing,
    /// Retirements need evidence that the ledger keeps, and a liar writes what it can.
    Evidence,
    /// An operator changes a pool's capacity.
    Pools,
    /// The ledger has room for one session until its ceiling is raised.
    Ceiling,
    /// The database's clock is stepped back, as often as it went forward, and an operator rebases the ledger.
    Back,
    /// As [`Also::Back`], where a step of the clock is within the declared skew and goes by, and one process remembers
    /// the latest clock that there was, which it saw without the lock.
    Within,
}

impl Also {
    /// Whether the clock may be stepped back.
    pub(super) fn steps_back(self) -> bool {
        matches!(self, Also::Back | Also::Within)
    }

    /// Whether one process remembers a later clock than there is.
    pub(super) fn has_glimpses(self) -> bool {
        self == Also::Within
    }

    /// Whether the coordinator may be started again with another quota.
    pub(super) fn has_restarts(self) -> bool {
        self == Also::Ceiling
    }

    /// How far the clock may stand behind: less than any step of it, or as far as one step.
    pub(super) fn skew(self) -> Duration {
        match self {
            Also::Within => Duration::from_secs(1),
            _ => Duration::from_millis(1),
        }
    }
}

/// The author that lies in the model: the owner of no source.
const LIAR: &str = "z";

pub(super) fn liar() -> Author {
    Author::Source {
        node: node(LIAR),
        boot: boot(LIAR),
    }
}

impl System {
    /// The steps that only some explorations have.
    pub(super) fn also_enabled(&self, steps: &mut Vec<Step>) {
        let mut ask = |command: Command| steps.push(Step::Ask(Box::new(command)));
        match self.also {
            Also::Nothing => {}
            Also::Evidence => {
                for (at, (fence, _)) in &self.granted {
                    self.pieces(at, fence).into_iter().for_each(&mut ask);
                    if self.proved(fence) {
                        ask(Command::Retire { fence: fence.clone() });
                    }
                }
            }
            Also::Pools => {
                for (units, seen) in [(0, 1), (1, 2), (2, 1), (2, 2), (2, 3)] {
                    ask(System::pool("w-slots", units, seen));
                }
            }
            Also::Ceiling => {
                let quota = |value| Quota::new(value).unwrap();
                for (expect, capacity) in [(1, 2), (2, 1), (2, 3)] {
                    let (expect, capacity) = (quota(expect), quota(capacity));
                    ask(Command::Raise { expect, capacity });
                }
                if self.ledger.own.published.quota == 1 {
                    steps.push(Step::Reconfigure);
                }
            }
            Also::Back | Also::Within => {
                for session in self.ledger.sessions.present().map(|(key, _)| key.clone()) {
                    ask(Command::Lookup { session });
                }
                for epoch in 0..=1 {
                    ask(Command::Rebase { epoch });
                }
                if self.clock > 0 && self.moved < 3 {
                    steps.push(Step::Back);
                }
                if self.also == Also::Within && self.clock < self.highest {
                    self.glimpsed(steps);
                }
            }
        }
    }

    /// What the process asks that has seen a later clock.
    fn glimpsed(&self, steps: &mut Vec<Step>) {
        let mut ask = |command| steps.push(Step::Glimpse(Box::new(command)));
        for session in self.ledger.sessions.present().map(|(key, _)| key.clone()) {
            ask(Command::Lookup { session });
        }
        for (fence, _) in self.granted.values() {
            let fence = fence.clone();
            let deadline = Timestamp::from_micros(START + 2_000_000);
            ask(Command::Renew { fence, deadline });
        }
    }

    /// What anybody may write about an assignment: the truth, once there is one, and what a liar says at once.
    fn pieces(&self, at: &(SessionId, Generation), fence: &Fence) -> Vec<Command> {
        let piece = |author, kind| Command::Record {
            fence: fence.clone(),
            author,
            kind,
            body: EvidenceBody::new("{}").unwrap(),
        };
        let own = Author::Target {
            boot: fence.target_boot.clone(),
        };
        let mut pieces = vec![
            piece(liar(), EvidenceKind::Reaped),
            piece(own.clone(), EvidenceKind::Attested),
            piece(own.clone(), EvidenceKind::Succeeded),
        ];
        if self.executions.get(at) == Some(&Execution::Ended) {
            pieces.push(piece(own, EvidenceKind::Reaped));
            if self.worker_boot == 2 && fence.target_boot.as_str() == "w1" {
                pieces.push(piece(
                    Author::Target { boot: boot("w2") },
                    EvidenceKind::Succeeded,
                ));
            }
        }
        pieces
    }

    /// The verifier of the model: the target's own word, or its successor's, as the ledger kept it.
    fn proved(&self, fence: &Fence) -> bool {
        let kept = self.ledger.evidence.get(&fence.session).unwrap();
        kept.into_iter().flatten().any(|piece| {
            let by_target = matches!(piece.author, Author::Target { .. });
            let final_word = matches!(piece.kind, EvidenceKind::Reaped | EvidenceKind::Succeeded);
            piece.fence == *fence && by_target && final_word
        })
    }
}

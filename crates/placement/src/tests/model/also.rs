//! What some explorations have besides: evidence and a liar, a pool that changes, a ceiling, a clock that steps back.

use ether_types::{Fence, Generation, SessionId};

use crate::bounds::{EvidenceBody, Quota};
use crate::command::Command;
use crate::evidence::{Author, EvidenceKind};
use crate::tests::model::system::{Execution, Step, System};
use crate::tests::world::{boot, node};

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
            Also::Back => {
                for session in self.ledger.sessions.present().map(|(key, _)| key.clone()) {
                    ask(Command::Lookup { session });
                }
                for epoch in 0..=1 {
                    ask(Command::Rebase { epoch });
                }
                if self.clock > 0 && self.moved < 3 {
                    steps.push(Step::Back);
                }
            }
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

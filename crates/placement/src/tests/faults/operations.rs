//! The operations that faults hit: each with what must stand before it, and what it must have come to after
//! it was repeated once.

use std::time::Duration;

use ether_types::{Fence, Role, ScopeName, TargetId, Timestamp};

use crate::bounds::{Capacity, Claims, EvidenceBody, PageSize, Quota, Units};
use crate::command::{Admission, Command, Reserve, SetPool, SetTarget};
use crate::error::{LedgerError, Retirement};
use crate::evidence::{Author, EvidenceKind};
use crate::ledger::Ledger;
use crate::outcome::{
    Authority, Joined, PoolSet, Raised, Rebased, Recorded, Released, Renewed, Reserved, TargetSet,
};
use crate::read::{Owner, Unretired};
use crate::state::Revision;
use crate::tests::world::{START, World, ask, boot, node, options, scope, session};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    SetPool,
    SetTarget,
    Reserve,
    /// Of so many scopes that its writes do not go to SQLite in one message.
    ReserveWide,
    ReserveAgain,
    Renew,
    RenewMany,
    Retire,
    Record,
    Raise,
    Withdraw,
    Join,
    Lookup,
    LookupMany,
    Unretired,
    Evidence,
    Usage,
    Rebase,
}

impl Operation {
    /// The clock is rebased when nothing that was reserved before is to last any more. Raising the ceiling comes
    /// last: it closes every coordinator that keeps the old number.
    pub(super) const ALL: [Operation; 18] = [
        Operation::SetPool,
        Operation::SetTarget,
        Operation::Reserve,
        Operation::ReserveWide,
        Operation::ReserveAgain,
        Operation::Renew,
        Operation::RenewMany,
        Operation::Retire,
        Operation::Record,
        Operation::Withdraw,
        Operation::Join,
        Operation::Lookup,
        Operation::LookupMany,
        Operation::Unretired,
        Operation::Evidence,
        Operation::Usage,
        Operation::Rebase,
        Operation::Raise,
    ];

    /// Whether it changes the ledger, and so its revision, exactly once.
    pub(super) fn mutates(self) -> bool {
        !matches!(
            self,
            Operation::Lookup
                | Operation::LookupMany
                | Operation::Unretired
                | Operation::Evidence
                | Operation::Usage
        )
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|operation| format!("{operation:?}") == name)
    }
}

/// Round `n` of one operation: it works on slot `n` and on names of its own, or is the `n`th of those that go on
/// from one another.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) operation: Operation,
    pub(super) n: u32,
}

impl Round {
    fn fence(&self) -> Fence {
        crate::command::ReserveRequest::new(ask(self.n, "op", 0))
            .unwrap()
            .fence(&options().cluster, ether_types::Generation::new(1).unwrap())
    }

    fn target(&self, incarnation: &str, seen: Option<&str>) -> SetTarget {
        SetTarget {
            target: TargetId::new(format!("n{}/cpu", self.n)).unwrap(),
            boot: boot(incarnation),
            expected: seen.map(boot),
            seen: Revision::new(u64::from(seen.is_some())),
            admission: Admission::new([(Role::Transcode, vec![scope("slots")])]).unwrap(),
        }
    }

    fn pool(&self, capacity: u64, seen: u64) -> SetPool {
        SetPool {
            scope: scope(&format!("pool-{}", self.n)),
            role: Role::Transcode,
            capacity: Capacity::new(capacity).unwrap(),
            seen: Revision::new(seen),
        }
    }

    fn wide(&self) -> Reserve {
        let units = Units::new(1).unwrap();
        Reserve {
            target: TargetId::new(WIDE).unwrap(),
            target_boot: boot("v1"),
            claims: Claims::new(wide_scopes().map(|scope| (scope, units))).unwrap(),
            ..ask(self.n, "op", 0)
        }
    }

    fn deadline(&self) -> Timestamp {
        Timestamp::from_micros(START + 60_000_000 + i64::from(self.n))
    }

    /// What must stand before.
    pub(super) async fn prepare(&self, world: &World) {
        let ledger = &world.ledger;
        match self.operation {
            Operation::SetPool => {
                ledger.set_pool(self.pool(1, 0)).await.unwrap();
            }
            Operation::SetTarget => {
                ledger.set_target(self.target("one", None)).await.unwrap();
            }
            Operation::ReserveWide => widen(ledger).await,
            Operation::ReserveAgain => {
                let fence = world.grant(ask(self.n, "op", 0)).await.fence;
                world.retire(&fence).await;
            }
            Operation::Withdraw => {
                let mut other = options();
                other.node = node("other");
                other.boot = boot(&format!("o{}", self.n));
                world.join(other).await.unwrap();
            }
            Operation::Join => {
                ledger.withdraw(node("c"), boot("c1")).await.unwrap();
            }
            // Nothing that was granted before lasts so long.
            Operation::Rebase => world.advance(Duration::from_secs(3_600)).await,
            Operation::Reserve | Operation::Raise | Operation::Usage => {}
            Operation::Renew
            | Operation::RenewMany
            | Operation::Retire
            | Operation::Record
            | Operation::Lookup
            | Operation::Unretired
            | Operation::Evidence
            | Operation::LookupMany => {
                world.grant(ask(self.n, "op", 0)).await;
            }
        }
    }

    /// Runs it; every outcome is the one of a first or of a repeated call.
    pub(super) async fn run(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        match self.operation {
            Operation::SetPool => {
                let set = ledger.set_pool(self.pool(2, 1)).await?;
                assert!(matches!(set, PoolSet::Set { .. }), "{set:?}");
            }
            Operation::SetTarget => {
                let set = ledger.set_target(self.target("two", Some("one"))).await?;
                assert!(matches!(set, TargetSet::Set { .. }), "{set:?}");
            }
            Operation::Reserve => reserved(ledger.reserve(ask(self.n, "op", 0)).await?),
            Operation::ReserveWide => reserved(ledger.reserve(self.wide()).await?),
            Operation::ReserveAgain => reserved(ledger.reserve(ask(self.n, "again", 1)).await?),
            Operation::Renew => renewed(&ledger.renew(self.fence(), self.deadline()).await?),
            Operation::RenewMany => {
                let many = vec![(self.fence(), self.deadline())];
                for answer in ledger.renew_many(many).await? {
                    renewed(&answer?);
                }
            }
            Operation::Retire => {
                let retired = ledger.retire(self.fence(), None).await?;
                assert!(
                    matches!(
                        retired,
                        Retirement::Proved {
                            released: Released::Retired { .. },
                            ..
                        }
                    ),
                    "{retired:?}"
                );
            }
            Operation::Record => {
                let author = Author::Target { boot: boot("w1") };
                let body = EvidenceBody::new("{}").unwrap();
                let recorded = ledger.record_evidence(self.fence(), author, EvidenceKind::Reaped, body);
                let recorded = recorded.await?;
                assert!(
                    matches!(recorded, Recorded::Recorded | Recorded::Already),
                    "{recorded:?}"
                );
            }
            Operation::Raise => {
                let ceiling = |n: u32| Quota::ceiling(5_000 + u64::from(n)).unwrap();
                let raised = ledger.raise_ceiling(ceiling(self.n), ceiling(self.n + 1)).await?;
                assert!(matches!(raised, Raised::Raised { .. }), "{raised:?}");
            }
            Operation::Withdraw => {
                ledger
                    .withdraw(node("other"), boot(&format!("o{}", self.n)))
                    .await?;
            }
            Operation::Lookup => {
                assert!(ledger.lookup(session(self.n)).await?.is_some());
            }
            Operation::LookupMany => {
                assert!(matches!(
                    ledger.lookup_many(&[session(self.n)]).await?[0],
                    Ok(Some(_))
                ));
            }
            Operation::Unretired => {
                let asked = Unretired {
                    owner: Owner::Controller(node("c")),
                    after: Some(session(self.n).into()),
                    limit: PageSize::MAX,
                };
                let page = ledger.unretired(asked).await?;
                assert!(
                    page.records
                        .iter()
                        .all(|record| record.fence.session != session(self.n))
                );
            }
            Operation::Evidence => assert!(ledger.evidence(&self.fence()).await?.pieces.is_empty()),
            Operation::Join => {
                let joined = ledger.join().await?;
                assert!(matches!(joined, Joined::Joined { .. }), "{joined:?}");
            }
            Operation::Usage => drop(ledger.usage().await?),
            Operation::Rebase => {
                let rebased = ledger.rebase_clock(u64::from(self.n)).await?;
                assert!(matches!(rebased, Rebased::Rebased { .. }), "{rebased:?}");
            }
        }
        Ok(())
    }
}

impl Round {
    /// Whether it has happened, by what the ledger holds; `None` where a lookup does not tell.
    pub(super) async fn happened(&self, ledger: &Ledger) -> Option<bool> {
        if self.operation == Operation::Rebase {
            // A lookup would tell what is over meanwhile.
            return Some(ledger.usage().await.unwrap().epoch > u64::from(self.n));
        }
        let record = ledger.lookup(session(self.n)).await.unwrap();
        Some(match self.operation {
            Operation::Reserve | Operation::ReserveWide => record.is_some(),
            Operation::ReserveAgain => record?.fence.generation.get() == 2,
            Operation::Renew | Operation::RenewMany => record?.deadline == self.deadline(),
            Operation::Retire => record?.authority == Authority::Retired,
            Operation::Record => !ledger.evidence(&self.fence()).await.unwrap().pieces.is_empty(),
            _ => return None,
        })
    }
}

fn reserved(outcome: Reserved) {
    assert!(
        matches!(outcome, Reserved::Granted(_) | Reserved::Replayed(_)),
        "{outcome:?}"
    );
}

fn renewed(outcome: &Renewed) {
    assert!(matches!(outcome, Renewed::Renewed { .. }), "{outcome:?}");
}

/// A world with room for every round.
pub(in crate::tests) async fn roomy(world: World) -> World {
    let world = world.ready().await;
    world.pool("slots", 100_000_000).await;
    world.pool("scratch", 1_000_000).await;
    world
}

/// The target whose every assignment claims as many scopes as there may be.
const WIDE: &str = "v/cpu";

fn wide_scopes() -> impl Iterator<Item = ScopeName> {
    (0..Claims::MAX).map(|n| scope(&format!("wide-{n}")))
}

/// Sets up [`WIDE`]; where it is already, this changes nothing.
async fn widen(ledger: &Ledger) {
    let pool = |scope| {
        Command::SetPool(SetPool {
            scope,
            role: Role::Transcode,
            capacity: Capacity::new(1_000).unwrap(),
            seen: Revision::NONE,
        })
    };
    let target = SetTarget {
        target: TargetId::new(WIDE).unwrap(),
        boot: boot("v1"),
        expected: None,
        seen: Revision::NONE,
        admission: Admission::new([(Role::Transcode, wide_scopes().collect())]).unwrap(),
    };
    let all = wide_scopes().map(pool).chain([Command::SetTarget(target)]);
    ledger.commands(all.collect()).await.unwrap();
}

/// A fleet whose ceiling is at its lowest, for the rounds of [`Operation::Raise`].
pub(super) async fn seed_ceiling(world: &World) {
    let mut fleet = options();
    fleet.node = node("fleet");
    fleet.fleet = true;
    world.join(fleet).await.unwrap();
}

pub(super) const PATIENCE: Duration = Duration::from_secs(60);

//! A year of a fleet's playbacks over reused sessions: what must be remembered is bounded by how many play at
//! once and not by how many ever did, and nothing is left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ether_types::{Fence, SessionId};

use crate::error::Retirement;
use crate::evidence::{Author, EvidenceKind};
use crate::ledger::Ledger;
use crate::outcome::{Assignment, Record, Recorded, Released, Renewed, Reserved};
use crate::read::{Owner, Unretired};
use crate::tests::world::{Mode, Place, World, ask, boot, later, node, options};
use crate::{EvidenceBody, PageSize};

/// Xorshift: a year that is the same every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The controllers of the fleet, each with a ledger of its own on the one database, and a worker that crashes.
const CONTROLLERS: [&str; 4] = ["c", "d", "e", "f"];
/// The most that one controller starts on one evening.
const STARTS: u64 = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_year_ends_with_tombstones_bounded_by_concurrency_and_nothing_stranded() {
    let soak = std::env::var_os("ETHER_SOAK").is_some();
    let evenings = if soak { 24 } else { 2 };
    let world = World::new(&Place::Memory).await.ready().await;
    world.pool("slots", 12_000).await;
    world.pool("scratch", 1_000).await;
    let mut ledgers = Vec::new();
    for name in CONTROLLERS {
        let mut own = options();
        own.node = node(name);
        ledgers.push(world.join(own).await.unwrap().0);
    }
    world.judge.set(Mode::Proof);
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut generations: [BTreeMap<u32, u64>; CONTROLLERS.len()] = Default::default();
    let (mut played, mut refused, mut crashed, mut died, mut most) = (0_u64, 0_u64, 0_u64, 0_u64, 0_usize);
    // What plays, and the most that any controller had at once.
    let mut running: Vec<(usize, Assignment)> = Vec::new();
    let mut peaks = [0_usize; CONTROLLERS.len()];
    let mut boot_number = 1;
    for step in 0..365 * evenings {
        world.advance(Duration::from_secs(86_400 / evenings)).await;
        let started = evening(&ledgers, &mut generations, &mut dice, step, boot_number).await;
        refused += started.refused;
        played += started.granted.len() as u64;
        running.extend(started.granted);
        most = most.max(running.len());
        for (by, peak) in peaks.iter_mut().enumerate() {
            *peak = (*peak).max(running.iter().filter(|(owner, _)| *owner == by).count());
        }
        // Most end well, some of them not before the next evening. Now and then the worker crashes: everything
        // expires, and its next boot proves it. Now and then a controller dies: what it left is found and retired by
        // another one on the worker's word.
        if dice.below(40) == 0 {
            crashed += 1;
            world.advance(Duration::from_secs(3_600)).await;
            let old = boot_number;
            boot_number += 1;
            let (old, new) = (format!("w{old}"), format!("w{boot_number}"));
            world
                .target("w/cpu", &new, Some(&old), &["slots", "scratch"])
                .await
                .unwrap();
            let sweeper = &ledgers[step as usize % ledgers.len()];
            for record in unretired_of(sweeper, worker(&old)).await {
                let author = Author::Target { boot: boot(&new) };
                prove(sweeper, &record.fence, author, EvidenceKind::Succeeded).await;
            }
            running.clear();
            continue;
        }
        let dead = (dice.below(30) == 0).then(|| dice.below(CONTROLLERS.len() as u64) as usize);
        let last = step + 1 == 365 * evenings;
        for (by, granted) in std::mem::take(&mut running) {
            if Some(by) == dead {
                continue;
            }
            if dice.below(8) == 0 && !last {
                running.push((by, granted));
                continue;
            }
            let proof = EvidenceBody::new("{}").unwrap();
            retire(&ledgers[by], &granted.fence, Some(proof)).await;
        }
        if let Some(dead) = dead {
            died += 1;
            let sweeper = &ledgers[(dead + 1) % ledgers.len()];
            let left = Owner::Controller(node(CONTROLLERS[dead]));
            for record in unretired_of(sweeper, left).await {
                let author = Author::Target {
                    boot: record.fence.target_boot.clone(),
                };
                prove(sweeper, &record.fence, author, EvidenceKind::Reaped).await;
            }
        }
    }
    println!("{played} playbacks, {refused} refused, {crashed} crashes, {died} deaths, {most} at once");
    let usage = world.ledger.usage().await.unwrap();
    // A session that was stranded, or could not be used again, would have been made up for by another one.
    let bound = peaks.iter().sum::<usize>() as u64;
    assert_eq!(usage.total, bound, "sessions, and the most at once: {peaks:?}");
    assert_eq!(usage.retired, usage.total, "nothing stranded");
    assert_eq!((world.used("slots").await, world.used("scratch").await), (0, 0));
    assert!(played > 2_000 && crashed > 3 && died > 3 && refused > 0 && most == 12);
    world.audit().await;
}

/// What started on one evening.
#[derive(Default)]
struct Evening {
    granted: Vec<(usize, Assignment)>,
    refused: u64,
}

/// Every controller starts some playbacks, each in the first session of its own that the ledger shows as free, and
/// renews them. Nothing but the ledger limits how many sessions it may come to have.
async fn evening(
    ledgers: &[Ledger],
    generations: &mut [BTreeMap<u32, u64>; CONTROLLERS.len()],
    dice: &mut Dice,
    step: u64,
    boot_number: u32,
) -> Evening {
    let mut evening = Evening::default();
    for (by, ledger) in ledgers.iter().enumerate() {
        let owner = node(CONTROLLERS[by]);
        let taken = unretired_of(ledger, Owner::Controller(owner.clone())).await;
        let taken: BTreeSet<SessionId> = taken.into_iter().map(|record| record.fence.session).collect();
        let free = (0..).map(|slot| (slot, SessionId::new(owner.clone(), slot)));
        let mut free = free.filter(|(_, session)| !taken.contains(session)).peekable();
        let mut renewals = Vec::new();
        for attempt in 0..=dice.below(STARTS) {
            let (slot, session) = free.peek().unwrap().clone();
            let generation = generations[by].entry(slot).or_default();
            let mut request = ask(0, &format!("op-{step}-{attempt}"), *generation);
            request.session = session;
            request.controller_node = owner.clone();
            request.target_boot = boot(&format!("w{boot_number}"));
            match ledger.reserve(request).await.unwrap() {
                Reserved::Granted(granted) => {
                    *generation += 1;
                    free.next();
                    let to = later(&granted, Duration::from_secs(60));
                    renewals.push((granted.fence.clone(), to));
                    evening.granted.push((by, granted));
                }
                Reserved::NoCapacity { .. } => evening.refused += 1,
                other => panic!("{other:?}"),
            }
        }
        for renewed in ledger.renew_many(renewals).await.unwrap() {
            assert!(matches!(renewed.unwrap(), Renewed::Renewed { moved: true, .. }));
        }
    }
    evening
}

async fn retire(ledger: &Ledger, fence: &Fence, proof: Option<EvidenceBody>) {
    let retired = ledger.retire(fence.clone(), proof).await.unwrap();
    assert!(
        matches!(
            retired,
            Retirement::Proved {
                released: Released::Retired { already: false },
                ..
            }
        ),
        "{retired:?}"
    );
}

/// Retires what somebody else left, on what `author` knows.
async fn prove(ledger: &Ledger, fence: &Fence, author: Author, kind: EvidenceKind) {
    let early = ledger.retire(fence.clone(), None).await.unwrap();
    assert!(matches!(early, Retirement::Unproven(_)), "{early:?}");
    let body = EvidenceBody::new("{}").unwrap();
    let recorded = ledger.record_evidence(fence.clone(), author, kind, body);
    assert_eq!(recorded.await.unwrap(), Recorded::Recorded);
    retire(ledger, fence, None).await;
}

fn worker(incarnation: &str) -> Owner {
    Owner::Target {
        node: node("w"),
        boot: boot(incarnation),
    }
}

/// Everything that `owner` has not retired, page by page.
async fn unretired_of(ledger: &Ledger, owner: Owner) -> Vec<Record> {
    let (mut records, mut after) = (Vec::new(), None);
    loop {
        let asked = Unretired {
            owner: owner.clone(),
            after,
            limit: PageSize::new(5).unwrap(),
        };
        let page = ledger.unretired(asked).await.unwrap();
        records.extend(page.records);
        after = page.next;
        if after.is_none() {
            return records;
        }
    }
}

//! A year of a fleet's playbacks over reused sessions: what must be remembered is bounded by how many play at
//! once and not by how many ever did, and nothing is left behind.

use std::time::Duration;

use crate::evidence::{Author, EvidenceKind};
use crate::outcome::{Record, Renewed, Reserved};
use crate::read::{Owner, Unretired};
use crate::tests::world::{Place, World, ask, boot, node};
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_year_ends_with_tombstones_bounded_by_concurrency_and_nothing_stranded() {
    let soak = std::env::var_os("ETHER_SOAK").is_some();
    let evenings = if soak { 24 } else { 3 };
    let world = World::new(&Place::Memory).await.ready().await;
    world.pool("slots", 12_000).await;
    world.pool("scratch", 1_000).await;
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut generations = [0_u64; 16];
    let (mut played, mut refused, mut crashed, mut most) = (0_u64, 0_u64, 0_u64, 0_usize);
    let mut boot_number = 1;
    for step in 0..365 * evenings {
        world.advance(Duration::from_secs(86_400 / evenings)).await;
        // Some start; each takes the first session of its controller that is free.
        let starting = 1 + dice.below(16) as usize;
        let mut running = Vec::new();
        for (slot, generation) in generations.iter_mut().enumerate().take(starting) {
            let mut request = ask(u32::try_from(slot).unwrap(), &format!("op-{step}"), *generation);
            request.target_boot = boot(&format!("w{boot_number}"));
            match world.ledger.reserve(request).await.unwrap() {
                Reserved::Granted(granted) => {
                    *generation += 1;
                    played += 1;
                    running.push(granted);
                }
                Reserved::NoCapacity { .. } => refused += 1,
                other => panic!("{other:?}"),
            }
        }
        most = most.max(running.len());
        let renewals = running
            .iter()
            .map(|granted| {
                let to = granted
                    .initial_deadline
                    .checked_add(Duration::from_secs(60))
                    .unwrap();
                (granted.fence.clone(), to)
            })
            .collect();
        for renewed in world.ledger.renew_many(renewals).await.unwrap() {
            assert!(matches!(renewed.unwrap(), Renewed::Renewed { moved: true, .. }));
        }
        // Most end well. Now and then the worker crashes: everything expires, and its next boot proves it.
        if dice.below(40) == 0 {
            crashed += 1;
            world.advance(Duration::from_secs(3_600)).await;
            let old = boot_number;
            boot_number += 1;
            let (old, new) = (format!("w{old}"), format!("w{boot_number}"));
            world
                .target("w/cpu", &new, Some(&old), &["slots", "scratch"])
                .await;
            for record in unretired_of(&world, &old).await {
                let author = Author::Target { boot: boot(&new) };
                let body = EvidenceBody::new("{}").unwrap();
                let kind = EvidenceKind::Succeeded;
                world
                    .ledger
                    .record_evidence(record.fence.clone(), author, kind, body)
                    .await
                    .unwrap();
                world.retire(&record.fence).await;
            }
        } else {
            for granted in running {
                world.retire(&granted.fence).await;
            }
        }
    }
    println!("{played} playbacks, {refused} refused, {crashed} crashes, {most} at once");
    let usage = world.ledger.usage().await.unwrap();
    assert!(
        usage.total <= 12,
        "{} sessions for at most 12 at once",
        usage.total
    );
    assert_eq!(usage.retired, usage.total, "nothing stranded");
    assert_eq!((world.used("slots").await, world.used("scratch").await), (0, 0));
    assert!(played > 2_000 && crashed > 3 && refused > 0);
    world.audit().await;
}

async fn unretired_of(world: &World, old: &str) -> Vec<Record> {
    let asked = Unretired {
        owner: Owner::Target {
            node: node("w"),
            boot: boot(old),
        },
        after: None,
        limit: PageSize::MAX,
    };
    world.ledger.unretired(asked).await.unwrap().records
}

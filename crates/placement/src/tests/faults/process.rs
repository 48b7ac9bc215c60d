//! Jobs in processes of their own: the test binary runs itself.

use std::process::Stdio;
use std::sync::Arc;

use ether_store::faults::Cut;
use ether_types::{ManualClock, Timestamp};

use crate::bounds::Quota;
use crate::error::{LedgerError, Retirement};
use crate::ledger::Ledger;
use crate::outcome::{Released, Renewed, Reserved};
use crate::tests::faults::operations::{Operation, Round};
use crate::tests::world::{Judge, START, ask, boot, node, open, open_real, options};

const JOB: &str = "ETHER_PLACEMENT_TEST_JOB";

/// Runs `job` in a process of its own; whether it ended well.
pub(super) async fn run(job: &str) -> bool {
    spawn(job).wait().await.unwrap().success()
}

#[allow(
    clippy::disallowed_methods,
    reason = "a test runs its own binary, and ether's process code is not below this crate"
)]
pub(super) fn spawn(job: &str) -> tokio::process::Child {
    tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::faults::process::job", "--nocapture"])
        .env(JOB, job)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Does nothing by itself: other tests run it in processes of their own.
#[test]
fn job() {
    let Ok(job) = std::env::var(JOB) else {
        return;
    };
    let words: Vec<&str> = job.split(' ').collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    match words.as_slice() {
        ["die", location, operation, n, nth, mode] => runtime.block_on(async {
            let operation = Operation::parse(operation).unwrap();
            let round = Round {
                operation,
                n: n.parse().unwrap(),
            };
            let clock = ManualClock::at(Timestamp::from_micros(START));
            let store = open(&location.parse().unwrap(), &clock).await;
            let judge = Arc::new(Judge::default());
            let (ledger, _) = Ledger::open(&store, options(), Some(judge)).await.unwrap();
            let cut = if *mode == "after" {
                Cut::AbortAfter
            } else {
                Cut::AbortBefore
            };
            store.faults().arm(nth.parse().unwrap(), cut);
            round.run(&ledger).await.unwrap();
        }),
        ["controller", location, index, cycles] => {
            runtime.block_on(controller(
                location,
                index.parse().unwrap(),
                cycles.parse().unwrap(),
            ));
        }
        other => panic!("no such job: {other:?}"),
    }
}

/// One of many controllers: it runs playbacks through one session, one after the other, and takes whatever
/// capacity there is when there is some.
async fn controller(location: &str, index: u32, cycles: u64) {
    let store = open_real(&location.parse().unwrap()).await;
    let mut own = options();
    own.node = node(&format!("c{index}"));
    own.boot = boot(&format!("b{index}"));
    own.quota = Quota::new(5_000).unwrap();
    let (ledger, _) = Ledger::open(&store, own.clone(), Some(Arc::new(Judge::default())))
        .await
        .unwrap();
    for cycle in 0..cycles {
        let mut request = ask(0, &format!("op-{cycle}"), cycle);
        request.session = ether_types::SessionId::new(own.node.clone(), 0);
        request.controller_node = own.node.clone();
        request.controller_boot = own.boot.clone();
        let fence = loop {
            match ledger.reserve(request.clone()).await {
                Ok(Reserved::Granted(granted) | Reserved::Replayed(granted)) => break granted.fence,
                // Full for the moment, or no answer: ask again. So many ask that each has to leave the others room.
                Ok(Reserved::NoCapacity { .. }) | Err(LedgerError::Unknown(_)) => {
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
                other => panic!("{other:?}"),
            }
        };
        let record = ledger
            .lookup_many(std::slice::from_ref(&fence.session))
            .await
            .unwrap();
        let deadline = record[0].as_ref().unwrap().as_ref().unwrap().deadline;
        let deadline = deadline.checked_add(std::time::Duration::from_secs(1)).unwrap();
        loop {
            match ledger.renew(fence.clone(), deadline).await {
                Ok(Renewed::Renewed { .. } | Renewed::Expired { .. }) => break,
                Err(LedgerError::Unknown(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        loop {
            match ledger.retire(fence.clone(), None).await {
                Ok(Retirement::Proved {
                    released: Released::Retired { .. },
                    ..
                }) => break,
                Err(LedgerError::Unknown(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

//! A ledger to measure, and the cycle that is measured.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use ether_placement::command::{Admission, SetPool, SetTarget};
use ether_placement::outcome::{Released, Renewed, Reserved};
use ether_placement::{
    Capacity, Claims, Lease, Ledger, LedgerError, Options, Quota, Retirement, Revision, Units,
    command::Reserve,
};
use ether_store::{Location, Store};
use ether_types::{
    BootId, ClusterId, Fence, Generation, InvalidId, NodeId, OperationId, Role, ScopeName, SessionId,
    SystemClock, TargetId, Timestamp,
};

use crate::harness::BenchError;
use crate::ledger::Accept;

pub(crate) struct Bench {
    pub(crate) ledger: Ledger,
}

impl From<InvalidId> for BenchError {
    fn from(error: InvalidId) -> Self {
        BenchError::Other(error.to_string())
    }
}

pub(crate) fn wrong(what: &impl Debug) -> BenchError {
    BenchError::Other(format!("{what:?}"))
}

fn failed<T, E: std::fmt::Display>(outcome: Result<T, E>) -> Result<T, BenchError> {
    outcome.map_err(|error| BenchError::Other(error.to_string()))
}

impl Bench {
    /// Opens the ledger at `url` with one target of two scopes that have room for everything.
    pub(crate) async fn open(url: &str) -> Result<Self, BenchError> {
        let location: Location = failed(url.parse())?;
        let store = Store::open(
            &location,
            ether_store::Options::default(),
            Arc::new(SystemClock::new()),
        )
        .await;
        let mut options = Options::new(ClusterId::new("bench")?, NodeId::new("c")?, BootId::new("c1")?);
        options.quota = Quota::MAX;
        options.maximum_lease = Duration::from_secs(3_600);
        options.transaction_timeout = Duration::from_secs(60);
        options.lock_timeout = Duration::from_secs(60);
        let (ledger, _) = failed(Ledger::open(&failed(store)?, options, Some(Arc::new(Accept))).await)?;
        let scopes = [ScopeName::new("slots")?, ScopeName::new("scratch")?];
        for scope in scopes.clone() {
            let set = SetPool {
                scope,
                role: Role::Transcode,
                capacity: Capacity::MAX,
                seen: Revision::NONE,
            };
            failed(ledger.set_pool(set).await)?;
        }
        let set = SetTarget {
            target: TargetId::new("w/cpu")?,
            boot: BootId::new("w1")?,
            expected: None,
            seen: Revision::NONE,
            admission: failed(Admission::new([(Role::Transcode, scopes.to_vec())]))?,
        };
        failed(ledger.set_target(set).await)?;
        Ok(Self { ledger })
    }
}

fn request(slot: u32, operation: &str, expected: u64) -> Result<Reserve, BenchError> {
    let claims = [
        (ScopeName::new("slots")?, failed(Units::new(1_000))?),
        (ScopeName::new("scratch")?, failed(Units::new(10))?),
    ];
    let controller = NodeId::new("c")?;
    Ok(Reserve {
        session: SessionId::new(controller.clone(), slot),
        controller_node: controller,
        controller_boot: BootId::new("c1")?,
        target: TargetId::new("w/cpu")?,
        target_boot: BootId::new("w1")?,
        role: Role::Transcode,
        operation: OperationId::new(operation)?,
        expected: Generation::new(expected).ok_or_else(|| wrong(&expected))?,
        claims: failed(Claims::new(claims))?,
        lease: failed(Lease::new(Duration::from_secs(600)))?,
    })
}

/// In which sessions the clients of a measurement work.
#[derive(Clone, Copy)]
pub(crate) enum Sessions {
    /// Each client in one of its own.
    Own,
    /// All over this many tombstones of generation one, another one each time.
    Tombstones(u64),
}

impl Sessions {
    /// Slot, operation and expected generation of the `cycle`th cycle of `client`, of `clients`.
    fn of(self, client: u32, clients: u32, cycle: u64) -> Result<(u32, String, u64), BenchError> {
        /// A prime that divides no number of tombstones: neighbours in time are far apart in the table.
        const STRIDE: u64 = 7_919;
        match self {
            Sessions::Own => Ok((1_000_000_000 + client, format!("op-{cycle}"), cycle)),
            Sessions::Tombstones(count) => {
                let number = cycle * u64::from(clients) + u64::from(client);
                let slot = 1 + number * STRIDE % count;
                let used = number / count;
                let slot = u32::try_from(slot).map_err(|_| wrong(&slot))?;
                Ok((slot, format!("op-{used}"), 1 + used))
            }
        }
    }
}

/// Reserve, renew, retire: `count` times by each of `clients`, who work at the same time. Each round goes on
/// where the round before ended.
pub(crate) async fn cycles(
    bench: &Bench,
    sessions: Sessions,
    clients: u32,
    count: u64,
    round: u64,
) -> Result<(), BenchError> {
    let first = (round - 1) * count;
    let clients: Vec<_> = (0..clients)
        .map(|client| {
            let ledger = bench.ledger.clone();
            tokio::spawn(async move {
                for cycle in first..first + count {
                    let (slot, operation, expected) = sessions.of(client, clients, cycle)?;
                    one_cycle(&ledger, request(slot, &operation, expected)?).await?;
                }
                Ok::<(), BenchError>(())
            })
        })
        .collect();
    for client in clients {
        failed(client.await)??;
    }
    Ok(())
}

async fn one_cycle(ledger: &Ledger, request: Reserve) -> Result<(), BenchError> {
    let granted = match failed(ledger.reserve(request).await)? {
        Reserved::Granted(granted) => granted,
        other => return Err(wrong(&other)),
    };
    let later = granted.initial_deadline.checked_add(Duration::from_secs(60));
    let later = later.ok_or_else(|| wrong(&granted.initial_deadline))?;
    moved(ledger.renew(granted.fence.clone(), later).await)?;
    match failed(ledger.retire(granted.fence, None).await)? {
        Retirement::Proved {
            released: Released::Retired { already: false },
            ..
        } => Ok(()),
        other => Err(wrong(&other)),
    }
}

pub(crate) fn moved(answer: Result<Renewed, LedgerError>) -> Result<(), BenchError> {
    match failed(answer)? {
        Renewed::Renewed { moved: true, .. } => Ok(()),
        other => Err(wrong(&other)),
    }
}

/// Reserves `count` sessions, and returns their fences and the latest of their deadlines.
pub(crate) async fn fill(bench: &Bench, count: u32) -> Result<(Vec<Fence>, Timestamp), BenchError> {
    let mut fences = Vec::with_capacity(count as usize);
    let mut last = Timestamp::from_micros(0);
    for chunk in (0..count).collect::<Vec<_>>().chunks(1_000) {
        let calls: Vec<_> = chunk
            .iter()
            .map(|slot| {
                let ledger = bench.ledger.clone();
                let request = request(*slot, "op", 0);
                tokio::spawn(async move { failed(ledger.reserve(request?).await) })
            })
            .collect();
        for call in calls {
            match failed(call.await)?? {
                Reserved::Granted(granted) => {
                    last = last.max(granted.initial_deadline);
                    fences.push(granted.fence);
                }
                other => return Err(wrong(&other)),
            }
        }
    }
    Ok((fences, last))
}

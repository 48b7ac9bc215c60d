//! Connections that have not proved who they are.
//!
//! They are few, and whoever stands there longest leaves first: ten thousand silent connections cost a listener a
//! handful of sockets, and a peer that shows its certificate at once passes between them.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

pub(crate) struct Doorway {
    most: usize,
    most_each: usize,
    waiting: Mutex<VecDeque<Waiting>>,
}

struct Waiting {
    address: IpAddr,
    leave: CancellationToken,
}

/// A place in the doorway, given back when it is dropped.
pub(crate) struct Place {
    doorway: Arc<Doorway>,
    leave: CancellationToken,
}

impl Doorway {
    pub(crate) fn new(most: usize, most_each: usize) -> Arc<Self> {
        Arc::new(Self {
            most: most.max(1),
            most_each: most_each.max(1),
            waiting: Mutex::new(VecDeque::new()),
        })
    }

    /// Takes a place; whoever has waited longest, of the same address where that has its share, has to leave.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Place {
        let leave = CancellationToken::new();
        let mut waiting = self.lock();
        let own = waiting.iter().filter(|other| other.address == address).count();
        let oldest = if own >= self.most_each {
            waiting.iter().position(|other| other.address == address)
        } else if waiting.len() >= self.most {
            Some(0)
        } else {
            None
        };
        if let Some(gone) = oldest.and_then(|oldest| waiting.remove(oldest)) {
            gone.leave.cancel();
        }
        waiting.push_back(Waiting {
            address,
            leave: leave.clone(),
        });
        drop(waiting);
        Place {
            doorway: Arc::clone(self),
            leave,
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Completes when the place is needed by another. Cancel-safe.
    pub(crate) fn needed(&self) -> impl Future<Output = ()> + '_ {
        self.leave.cancelled()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A place that was taken away is in the list no more; tokens are equal only to their own clones.
        self.leave.cancel();
        self.doorway.lock().retain(|other| !other.leave.is_cancelled());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_waited_longest_leaves_and_an_address_crowds_out_only_itself() {
        let doorway = Doorway::new(4, 2);
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let gone = |place: &Place| place.leave.is_cancelled();
        let first = doorway.enter(b);
        let crowd: Vec<Place> = (0..10).map(|_| doorway.enter(a)).collect();
        assert!(!gone(&first));
        assert_eq!(crowd.iter().filter(|place| !gone(place)).count(), 2);
        assert!(!gone(&crowd[9]));
        let others: Vec<Place> = (3..6)
            .map(|n| doorway.enter(IpAddr::from([10, 0, 0, n])))
            .collect();
        assert!(gone(&first), "the oldest of all");
        assert!(others.iter().all(|place| !gone(place)));
        drop((crowd, others));
        assert!(doorway.lock().is_empty());
    }
}

//! When the viewer last asked for anything, kept so that a request costs no message.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ether_types::{Clock, Monotonic};
use tokio::sync::Notify;

use crate::lifecycle::EndReason;

/// Signs of life of one viewer.
pub(crate) struct Activity {
    state: Mutex<State>,
    /// Wakes the task when it has to look again at once.
    pub(super) changed: Notify,
}

struct State {
    held: u32,
    touched: Monotonic,
    seal: Option<EndReason>,
}

impl Activity {
    pub(crate) fn new(now: Monotonic) -> Self {
        let state = State {
            held: 0,
            touched: now,
            seal: None,
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn touch(&self, now: Monotonic) {
        let mut state = self.lock();
        state.touched = state.touched.max(now);
    }

    pub(super) fn enter(self: &Arc<Self>, clock: Arc<dyn Clock>) -> Hold {
        self.lock().held += 1;
        Hold {
            activity: Arc::clone(self),
            clock,
        }
    }

    /// Since when nothing was asked for; absent while something is being served.
    pub(crate) fn idle_since(&self) -> Option<Monotonic> {
        let state = self.lock();
        (state.held == 0).then_some(state.touched)
    }

    /// When the viewer last showed a sign of life.
    pub(crate) fn last(&self) -> Monotonic {
        self.lock().touched
    }

    pub(super) fn seal(&self, reason: EndReason) {
        self.lock().seal.get_or_insert(reason);
        self.changed.notify_one();
    }

    pub(super) fn take_seal(&self) -> Option<EndReason> {
        self.lock().seal
    }
}

/// A request that is being served: the viewer is not idle while it lives.
#[must_use = "the viewer counts as idle once this is dropped"]
pub struct Hold {
    activity: Arc<Activity>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hold")
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let now = self.clock.monotonic();
        let last = {
            let mut state = self.activity.lock();
            state.held -= 1;
            state.touched = state.touched.max(now);
            state.held == 0
        };
        if last {
            // From now on the idle limit runs: the task sets its alarm by it.
            self.activity.changed.notify_one();
        }
    }
}

//! Sign-in codes that wait to be used, and how many wrong ones may be tried.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ether_types::Monotonic;
use subtle::ConstantTimeEq;

use crate::ports::TokenHash;

/// How long a code may be used.
const LIFETIME: Duration = Duration::from_secs(10 * 60);
/// How many codes wait at most.
const MOST_WAITING: usize = 16;
/// Tries that one address may make in [`WINDOW`], and all addresses together.
const TRIES_EACH: u32 = 10;
const TRIES_ALL: u32 = 60;
const WINDOW: Duration = Duration::from_secs(60);
/// Addresses that are told apart; beyond it only the common limit counts.
const MOST_ADDRESSES: usize = 1_024;

#[derive(Default)]
pub(super) struct Codes {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(TokenHash, Monotonic)>,
    window_began: Option<Monotonic>,
    tries: u32,
    by_address: HashMap<IpAddr, u32>,
}

impl Codes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, code: TokenHash, now: Monotonic) {
        let mut state = self.lock();
        while state.waiting.len() >= MOST_WAITING {
            state.waiting.pop_front();
        }
        state.waiting.push_back((code, now.saturating_add(LIFETIME)));
    }

    /// Uses `code` up if it waits.
    pub(super) fn take(&self, code: TokenHash, now: Monotonic) -> bool {
        let mut state = self.lock();
        state.waiting.retain(|(_, until)| now < *until);
        let found = state
            .waiting
            .iter()
            .position(|(waiting, _)| bool::from(waiting.0.ct_eq(&code.0)));
        found.and_then(|at| state.waiting.remove(at)).is_some()
    }

    /// Counts a try; otherwise says when the next may be made.
    pub(super) fn attempt(&self, from: Option<IpAddr>, now: Monotonic) -> Result<(), Duration> {
        let mut state = self.lock();
        let began = *state.window_began.get_or_insert(now);
        let age = now.saturating_since(began);
        if age >= WINDOW {
            state.window_began = Some(now);
            state.tries = 0;
            state.by_address.clear();
        }
        let left = WINDOW.saturating_sub(if age >= WINDOW { Duration::ZERO } else { age });
        if state.tries >= TRIES_ALL {
            return Err(left);
        }
        if let Some(address) = from {
            let known = state.by_address.contains_key(&address);
            if known || state.by_address.len() < MOST_ADDRESSES {
                let tries = state.by_address.entry(address).or_default();
                if *tries >= TRIES_EACH {
                    return Err(left);
                }
                *tries += 1;
            }
        }
        state.tries += 1;
        Ok(())
    }
}

//! The injected clock. Everything that waits or compares times takes one of these; the standard library's
//! clocks are called here and nowhere else (kept by lint).

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::time::{Monotonic, Timestamp};

/// A sleep that a [`Clock`] will end. Dropping it forgets the sleep and has no other effect.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Wall time, monotonic time and sleeping, as one injected dependency.
pub trait Clock: Send + Sync + 'static {
    /// Wall time. It may step in either direction.
    fn now(&self) -> Timestamp;
    /// Monotonic time of this process. It never goes back and ignores steps of the wall clock.
    fn monotonic(&self) -> Monotonic;
    /// A future that completes once `duration` of monotonic time has passed.
    fn sleep(&self, duration: Duration) -> Sleep;
}

/// The machine's own clocks.
#[derive(Clone, Debug)]
pub struct SystemClock {
    origin: std::time::Instant,
}

impl SystemClock {
    /// A clock whose monotonic origin is this call.
    #[allow(
        clippy::disallowed_methods,
        reason = "this is the one home of the machine's clocks"
    )]
    pub fn new() -> Self {
        Self {
            origin: std::time::Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "this is the one home of the machine's clocks"
    )]
    fn now(&self) -> Timestamp {
        let now = std::time::SystemTime::now();
        let micros = match now.duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |m| -m),
        };
        Timestamp::from_micros(micros)
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic::from_origin(self.origin.elapsed())
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A clock that moves only when it is told to: tests step it, and wall time can be stepped apart from
/// monotonic time to show what a corrected system clock does.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    state: Arc<Mutex<ManualState>>,
}

#[derive(Debug, Default)]
struct ManualState {
    wall: i64,
    monotonic: Duration,
    sleepers: Vec<(Duration, Waker)>,
}

impl ManualClock {
    /// A clock standing at `wall`, with monotonic time zero.
    pub fn at(wall: Timestamp) -> Self {
        let state = ManualState {
            wall: wall.as_micros(),
            ..ManualState::default()
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Moves wall and monotonic time forward together and wakes every sleep that is then due.
    pub fn advance(&self, by: Duration) {
        let due = {
            let mut state = self.lock();
            state.wall = state
                .wall
                .saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX));
            state.monotonic = state.monotonic.saturating_add(by);
            let now = state.monotonic;
            let (due, later) = std::mem::take(&mut state.sleepers)
                .into_iter()
                .partition(|(at, _)| *at <= now);
            state.sleepers = later;
            due
        };
        let due: Vec<(Duration, Waker)> = due;
        for (_, waker) in due {
            waker.wake();
        }
    }

    /// Steps wall time alone, as a corrected system clock does. No sleep ends by it.
    pub fn step_wall(&self, micros: i64) {
        let mut state = self.lock();
        state.wall = state.wall.saturating_add(micros);
    }

    /// How many sleeps are waiting, so that a test can advance only once its subject sleeps.
    pub fn sleepers(&self) -> usize {
        self.lock().sleepers.len()
    }

    fn lock(&self) -> MutexGuard<'_, ManualState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.lock().wall)
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic::from_origin(self.lock().monotonic)
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let until = self.lock().monotonic.saturating_add(duration);
        Box::pin(ManualSleep {
            clock: self.clone(),
            until,
        })
    }
}

struct ManualSleep {
    clock: ManualClock,
    until: Duration,
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.clock.lock();
        if state.monotonic >= self.until {
            return Poll::Ready(());
        }
        let until = self.until;
        match state
            .sleepers
            .iter_mut()
            .find(|(at, waker)| *at == until && waker.will_wake(cx.waker()))
        {
            Some(_) => {}
            None => state.sleepers.push((until, cx.waker().clone())),
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sleep_ends_when_the_clock_reaches_it_and_not_before() {
        let clock = ManualClock::at(Timestamp::from_micros(0));
        let sleep = tokio::spawn(clock.sleep(Duration::from_secs(10)));
        while clock.sleepers() == 0 {
            tokio::task::yield_now().await;
        }
        clock.advance(Duration::from_secs(9));
        tokio::task::yield_now().await;
        assert!(!sleep.is_finished());
        clock.advance(Duration::from_secs(1));
        sleep.await.unwrap();
    }

    #[tokio::test]
    async fn stepping_the_wall_ends_no_sleep() {
        let clock = ManualClock::at(Timestamp::from_micros(0));
        let sleep = tokio::spawn(clock.sleep(Duration::from_secs(1)));
        while clock.sleepers() == 0 {
            tokio::task::yield_now().await;
        }
        clock.step_wall(3_600_000_000);
        tokio::task::yield_now().await;
        assert!(!sleep.is_finished());
        assert_eq!(clock.now(), Timestamp::from_micros(3_600_000_000));
        assert_eq!(clock.monotonic(), Monotonic::from_origin(Duration::ZERO));
        sleep.abort();
    }
}

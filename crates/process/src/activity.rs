//! What a process has done so far, as the kernel counts it: what tells one that works from one that only lives.

use std::time::Duration;

/// What a process has read and computed since it began, its threads included and its children not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Bytes that it got from files and pipes, from the kernel's memory or from a disk.
    pub read: u64,
    /// Processor time, its own and the kernel's for it.
    pub computed: Duration,
}

impl Activity {
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let io = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
        let read = io.lines().find_map(|line| line.strip_prefix("rchar: "))?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name may hold anything, so fields are counted from behind it.
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut times = fields.split(' ').skip(11).map(str::parse::<u64>);
        let (user, system) = (times.next()?.ok()?, times.next()?.ok()?);
        let ticks = user.saturating_add(system);
        let second = rustix::param::clock_ticks_per_second().max(1);
        Some(Self {
            read: read.trim().parse().ok()?,
            computed: Duration::from_millis(ticks.saturating_mul(1_000) / second),
        })
    }
}

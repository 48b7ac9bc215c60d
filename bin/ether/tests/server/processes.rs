//! What the kernel knows of processes: who descends from whom, what they read, what they hold.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use tokio::time::{sleep, timeout};

/// How long something that is bound to happen may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Looks until `done` says so.
///
/// There is no event to wait for in the kernel's lists, so it looks again and again, and not for ever.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let look = async {
        while !done() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(SOON, look).await.is_ok(), "not within {SOON:?}: {what}");
}

/// One process, told apart from a later one with its number by the time of its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    parent: u32,
    started: u64,
    zombie: bool,
    pub(crate) words: Vec<Vec<u8>>,
}

impl Process {
    /// Whether an argument names something in `folder`.
    pub(crate) fn reads(&self, folder: &Path) -> bool {
        let folder = folder.as_os_str().as_bytes();
        self.words
            .iter()
            .any(|word| word.windows(folder.len()).any(|part| part == folder))
    }

    /// Whether its program is called so.
    pub(crate) fn runs(&self, program: &str) -> bool {
        self.words
            .first()
            .is_some_and(|word| word.rsplit(|b| *b == b'/').next() == Some(program.as_bytes()))
    }

    /// Whether it is there still; one that waits only to be reaped is not.
    pub(crate) fn lives(&self) -> bool {
        read(self.pid).is_some_and(|now| now.started == self.started && !now.zombie)
    }
}

/// Every process there is.
pub(crate) fn all() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(read).collect()
}

/// The living children of `pid` and theirs.
pub(crate) fn descendants(pid: u32) -> Vec<Process> {
    let all = all();
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for process in all
            .iter()
            .filter(|process| process.parent == parent && !process.zombie)
        {
            parents.push(process.pid);
            found.push(process.clone());
        }
    }
    found
}

/// Living processes that read something in `folder`, without the server that serves it.
pub(crate) fn readers(folder: &Path) -> Vec<Process> {
    let servers = |process: &Process| process.words.iter().any(|word| word == b"serve");
    all()
        .into_iter()
        .filter(|process| process.reads(folder) && !servers(process) && !process.zombie)
        .collect()
}

/// Bytes of files without a name that `pid` holds open below `folder`: scratch files have none.
pub(crate) fn nameless_bytes(pid: u32, folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return 0;
    };
    let mut files = BTreeMap::new();
    for entry in entries.flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else {
            continue;
        };
        let nameless = target.as_os_str().as_bytes().ends_with(b" (deleted)");
        if nameless
            && target.starts_with(folder)
            && let Ok(metadata) = std::fs::metadata(entry.path())
        {
            files.insert(target, metadata.len());
        }
    }
    files.values().sum()
}

fn read(pid: u32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    // The name is in brackets and may hold anything; what follows it does not.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        zombie: matches!(*fields.first()?, "Z" | "X"),
        words: words
            .split(|byte| *byte == 0)
            .filter(|word| !word.is_empty())
            .map(<[u8]>::to_vec)
            .collect(),
    })
}

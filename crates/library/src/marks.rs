//! What is to be looked at again: one coalescing queue for the watcher, the clock and the owner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::model::FolderId;
use crate::name::RelPath;

/// More marked directories than this in one folder, and the whole folder is looked at.
const MAX_DIRS: usize = 512;

/// Which part of a folder is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Everything.
    Full,
    /// Some directories.
    Part {
        /// These, but of the directories in them only those that are not known.
        shallow: BTreeSet<RelPath>,
        /// These and everything below.
        deep: BTreeSet<RelPath>,
    },
}

/// The marks that were set since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Every folder, in full.
    pub(crate) all: bool,
    /// Single folders.
    pub(crate) folders: BTreeMap<FolderId, Scope>,
    /// Someone waits for it: no pause for further changes.
    pub(crate) urgent: bool,
    /// The last request that these marks answer.
    pub(crate) request: u64,
}

/// The marks.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    state: Mutex<Taken>,
    set: Notify,
}

impl Marks {
    /// Everything; `urgent` where someone waits. Returns the request's number.
    pub(crate) fn all(&self, urgent: bool) -> u64 {
        let mut state = self.lock();
        state.all = true;
        state.folders.clear();
        state.urgent |= urgent;
        state.request += 1;
        let request = state.request;
        drop(state);
        self.set.notify_one();
        request
    }

    /// One folder in full.
    pub(crate) fn folder(&self, folder: &FolderId) {
        self.change(folder, |scope| *scope = Scope::Full);
    }

    /// One directory.
    pub(crate) fn shallow(&self, folder: &FolderId, dir: RelPath) {
        self.change(folder, |scope| {
            if let Scope::Part { shallow, .. } = scope {
                shallow.insert(dir);
            }
        });
    }

    /// One directory and everything below it.
    pub(crate) fn deep(&self, folder: &FolderId, dir: RelPath) {
        self.change(folder, |scope| {
            if let Scope::Part { deep, .. } = scope {
                deep.insert(dir);
            }
        });
    }

    /// Takes all marks, if there are any.
    pub(crate) fn take(&self) -> Option<Taken> {
        let mut state = self.lock();
        if !state.all && state.folders.is_empty() {
            return None;
        }
        let request = state.request;
        let taken = std::mem::take(&mut *state);
        state.request = request;
        Some(taken)
    }

    /// Whether there are marks, and whether someone waits for them.
    pub(crate) fn pending(&self) -> (bool, bool) {
        let state = self.lock();
        (state.all || !state.folders.is_empty(), state.urgent)
    }

    /// Completes when a mark is set, at once where one was set since the last call. Cancel-safe.
    pub(crate) async fn changed(&self) {
        self.set.notified().await;
    }

    fn change(&self, folder: &FolderId, change: impl FnOnce(&mut Scope)) {
        let mut state = self.lock();
        if !state.all {
            let scope = state
                .folders
                .entry(folder.clone())
                .or_insert_with(|| Scope::Part {
                    shallow: BTreeSet::new(),
                    deep: BTreeSet::new(),
                });
            change(scope);
            if matches!(scope, Scope::Part { shallow, deep } if shallow.len() + deep.len() > MAX_DIRS) {
                *scope = Scope::Full;
            }
        }
        drop(state);
        self.set.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_changes_becomes_one_look_at_the_folder() {
        let marks = Marks::default();
        let folder = FolderId("f".into());
        for n in 0..=MAX_DIRS {
            marks.shallow(&folder, RelPath::root().child(format!("{n}").as_bytes()).unwrap());
        }
        let taken = marks.take().unwrap();
        assert_eq!(taken.folders.get(&folder), Some(&Scope::Full));
        assert!(marks.take().is_none());
    }

    #[test]
    fn a_request_is_answered_by_the_marks_taken_after_it() {
        let marks = Marks::default();
        let first = marks.all(true);
        marks.shallow(&FolderId("f".into()), RelPath::root());
        let taken = marks.take().unwrap();
        assert!(taken.all && taken.urgent && taken.folders.is_empty());
        assert_eq!(taken.request, first);
        assert_eq!(marks.all(false), first + 1);
    }
}

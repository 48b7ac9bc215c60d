//! The directories that a walk has still to read, and how it got to them.

use std::io;
use std::sync::Arc;

use crate::name::RelPath;
use crate::sieve;
use crate::tree::{DirIdentity, MAX_DEPTH, Root};

/// A directory that waits to be read.
pub(super) struct Todo {
    pub(super) dir: RelPath,
    pub(super) mount: RelPath,
    /// Itself and the directories above it.
    pub(super) chain: Arc<Chain>,
    /// What is not known below it is walked as well; else only itself.
    pub(super) deep: bool,
}

pub(super) struct Chain {
    pub(super) identity: DirIdentity,
    pub(super) above: Option<Arc<Chain>>,
}

impl Chain {
    /// Whether `identity` is among them: then a directory contains itself.
    pub(super) fn holds(&self, identity: DirIdentity) -> bool {
        let mut at = Some(self);
        while let Some(chain) = at {
            if chain.identity == identity {
                return true;
            }
            at = chain.above.as_deref();
        }
        false
    }
}

/// A waiting directory for a path in the middle of the folder; `None` where it is not there or not walked.
///
/// # Errors
/// The operating system could not say what is there.
pub(super) fn approach(root: &Root, top: &Arc<Chain>, dir: &RelPath, deep: bool) -> io::Result<Option<Todo>> {
    let mut at = RelPath::root();
    let mut todo = Todo {
        dir: dir.clone(),
        mount: at.clone(),
        chain: Arc::clone(top),
        deep,
    };
    let below = dir.below(&at).unwrap_or_default();
    for name in below.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
        let Some(next) = at.child(name) else {
            return Ok(None);
        };
        at = next;
        if !sieve::walks(name) || at.depth() > MAX_DEPTH {
            return Ok(None);
        }
        let Some(identity) = root.directory(&at)? else {
            return Ok(None);
        };
        if todo.chain.holds(identity) {
            return Ok(None);
        }
        if identity.device != todo.chain.identity.device {
            todo.mount = at.clone();
        }
        todo.chain = Arc::new(Chain {
            identity,
            above: Some(todo.chain),
        });
    }
    Ok(Some(todo))
}

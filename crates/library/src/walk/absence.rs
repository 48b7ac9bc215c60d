//! What a walk did not meet: gone, or only out of sight. Nothing is forgotten that could not be looked for.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{DIRS_A_BATCH, NONE, Walk};
use crate::catalog::{KnownFile, KnownProblem};
use crate::marks::Scope;
use crate::name::RelPath;
use crate::problem::Reason;
use crate::record::Finding;
use crate::scan::{PATIENCE, ScanError, is_mounted};

impl Walk<'_> {
    /// What is remembered in directories that the walk did not meet.
    pub(super) async fn conclude(&mut self, scope: &Scope) -> Result<(), ScanError> {
        let dirs = match self.remembered.take() {
            Some((dirs, _)) => dirs,
            None => self.scanner.catalog.directories(&self.folder.id).await?,
        };
        let in_scope = |dir: &RelPath| match scope {
            Scope::Full => true,
            Scope::Part { deep, .. } => {
                deep.iter().any(|d| d == dir || dir.below(d).is_some()) || self.left_shallow(dir)
            }
        };
        let gone: Vec<String> = dirs
            .iter()
            .filter(|dir| !self.visited.contains(&dir.key()) && in_scope(dir) && !self.is_blocked(dir))
            .map(RelPath::key)
            .collect();
        for keys in gone.chunks(DIRS_A_BATCH) {
            let (files, problems) = self.scanner.catalog.in_directories(&self.folder.id, keys).await?;
            self.vanished(files).await?;
            for problem in problems {
                self.solved(problem).await?;
            }
            self.write_if_full().await?;
        }
        let unmounted: BTreeSet<RelPath> = self
            .mounted
            .iter()
            .filter(|(mount, mounted)| !**mounted && !self.unmounted_known.contains(*mount))
            .map(|(mount, _)| mount.clone())
            .collect();
        for mount in unmounted {
            self.problem(&mount, NONE, Reason::NotMounted, None);
        }
        for mount in std::mem::take(&mut self.unmounted_known) {
            if self.is_mounted(&mount).await? {
                self.findings.push(Finding::Mended {
                    place: self.place(&mount),
                });
            }
        }
        Ok(())
    }

    /// Whether the directory lay below one that was read for itself and is not in it any more.
    fn left_shallow(&self, dir: &RelPath) -> bool {
        self.shallow.iter().any(|(parent, found)| {
            let Some(below) = dir.below(parent) else {
                return false;
            };
            let first = below.split(|b| *b == b'/').next().unwrap_or_default();
            parent.child(first).is_some_and(|child| !found.contains(&child))
        })
    }

    fn is_blocked(&self, dir: &RelPath) -> bool {
        self.blocked.iter().any(|b| b == dir || dir.below(b).is_some())
    }

    /// Files that are remembered and were not met: gone, unless their filesystem is.
    pub(super) async fn vanished(&mut self, files: Vec<KnownFile>) -> Result<(), ScanError> {
        let mut gone = Vec::new();
        for file in files {
            if !file.missing && self.is_mounted(&file.mount).await? {
                self.scanner.rest(&file.place);
                gone.push((file.id, file.place));
            }
        }
        if !gone.is_empty() {
            self.findings.push(Finding::Gone { files: gone });
        }
        Ok(())
    }

    /// A problem whose entry was not met.
    pub(super) async fn solved(&mut self, problem: KnownProblem) -> Result<(), ScanError> {
        if problem.reason == Reason::NotMounted && !self.is_mounted(&problem.path).await? {
            self.unmounted_known.insert(problem.path);
            return Ok(());
        }
        self.mend(Some(problem));
        Ok(())
    }

    async fn is_mounted(&mut self, mount: &RelPath) -> Result<bool, ScanError> {
        if mount.is_root() {
            return Ok(true);
        }
        if let Some(mounted) = self.mounted.get(mount) {
            return Ok(*mounted);
        }
        let (root, at) = (Arc::clone(&self.root), mount.clone());
        // What nobody can tell is taken for unmounted: nothing is forgotten by an error.
        let mounted = self
            .scanner
            .on_disk(&self.folder.id, PATIENCE, move || {
                is_mounted(&root, &at).unwrap_or(false)
            })
            .await?;
        self.mounted.insert(mount.clone(), mounted);
        Ok(mounted)
    }
}

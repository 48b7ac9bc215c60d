//! The walk through one folder and the comparison with what is remembered of it.

mod absence;
mod frontier;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use ether_types::Timestamp;
use tokio::task::JoinSet;

use crate::catalog::{Folder, KnownFile, KnownProblem};
use crate::examine::{Examined, Subject, examine};
use crate::judge;
use crate::marks::Scope;
use crate::model::{Place, Progress};
use crate::name::RelPath;
use crate::problem::Reason;
use crate::record::{Finding, Media, Origin};
use crate::revision::Revision;
use crate::scan::{PATIENCE, ScanError, Scanner, Surroundings};
use crate::sieve::{self, Sieved};
use crate::tree::{DirIdentity, EntryKind, Listing, MAX_DEPTH, Root, absent};
use crate::watch::NoWatch;

use frontier::{Chain, Todo, approach};

/// Directories that are read before they are compared.
const DIRS_A_BATCH: usize = 32;
/// Entries after which no further directory is read into a batch.
const ENTRIES_A_BATCH: usize = 4_000;
/// Findings that are written in one transaction.
const FINDINGS_A_BATCH: usize = 64;
/// Other documents of one folder that are listed one by one; a folder full of them is no library.
const MAX_DOCUMENTS: usize = 2_000;

/// A revision for what has none: problems of links, pipes and directories.
const NONE: Revision = Revision {
    size: 0,
    mtime_ns: 0,
    inode: 0,
    device: 0,
};

/// One walk under way.
pub(crate) struct Walk<'a> {
    scanner: &'a Arc<Scanner>,
    folder: &'a Folder,
    around: &'a Surroundings,
    root: Arc<Root>,
    waiting: Vec<Todo>,
    jobs: JoinSet<Result<Examined, ScanError>>,
    findings: Vec<Finding>,
    progress: Progress,
    /// Keys of the directories that were read to their end.
    visited: HashSet<String>,
    /// Directories that could not be read: nothing is concluded about what is in or below them.
    blocked: Vec<RelPath>,
    /// Directories that were read for themselves only, with the directories found in them.
    shallow: HashMap<RelPath, HashSet<RelPath>>,
    /// Directories that are remembered to have a problem of their own.
    troubled: HashMap<RelPath, KnownProblem>,
    mounted: HashMap<RelPath, bool>,
    unmounted_known: HashSet<RelPath>,
    /// Directories in which something is remembered, and those above; filled for partial scans.
    remembered: Option<(Vec<RelPath>, HashSet<RelPath>)>,
    documents: usize,
    now: Timestamp,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(
        scanner: &'a Arc<Scanner>,
        folder: &'a Folder,
        root: Arc<Root>,
        around: &'a Surroundings,
    ) -> Self {
        Self {
            scanner,
            folder,
            around,
            root,
            waiting: Vec::new(),
            jobs: JoinSet::new(),
            findings: Vec::new(),
            progress: scanner.status.borrow().progress,
            visited: HashSet::new(),
            blocked: Vec::new(),
            shallow: HashMap::new(),
            troubled: HashMap::new(),
            mounted: HashMap::new(),
            unmounted_known: HashSet::new(),
            remembered: None,
            documents: 0,
            now: scanner.clock.now(),
        }
    }

    /// Walks `scope`. `Some` where the folder itself could not be read.
    pub(crate) async fn run(mut self, scope: Scope) -> Result<Option<io::Error>, ScanError> {
        self.begin(&scope).await?;
        while !self.waiting.is_empty() {
            if self.scanner.stop.is_cancelled() {
                return Err(ScanError::Stopped);
            }
            let batch = self.read_batch().await?;
            if let Some(error) = self.compare(batch).await? {
                return Ok(Some(error));
            }
        }
        self.conclude(&scope).await?;
        while !self.jobs.is_empty() {
            self.join_one().await?;
        }
        self.write().await?;
        self.publish();
        Ok(None)
    }

    async fn begin(&mut self, scope: &Scope) -> Result<(), ScanError> {
        let top = Arc::new(Chain {
            identity: self.root.identity,
            above: None,
        });
        let (shallow, deep) = match scope {
            Scope::Full => {
                self.waiting.push(Todo {
                    dir: RelPath::root(),
                    mount: RelPath::root(),
                    chain: top,
                    deep: true,
                });
                return Ok(());
            }
            Scope::Part { shallow, deep } => (shallow, deep),
        };
        let known = self.scanner.catalog.directories(&self.folder.id).await?;
        let mut with_parents = HashSet::new();
        for dir in &known {
            let mut at = Some(dir.clone());
            while let Some(dir) = at.take_if(|dir| !with_parents.contains(dir)) {
                at = dir.parent();
                with_parents.insert(dir);
            }
        }
        self.remembered = Some((known, with_parents));
        let covered = |dir: &RelPath| deep.iter().any(|d| dir.below(d).is_some());
        let wanted: Vec<(RelPath, bool)> = deep
            .iter()
            .filter(|dir| !covered(dir))
            .map(|dir| (dir.clone(), true))
            .chain(
                shallow
                    .iter()
                    .filter(|dir| !covered(dir) && !deep.contains(*dir))
                    .map(|dir| (dir.clone(), false)),
            )
            .collect();
        let root = Arc::clone(&self.root);
        let approached = self
            .scanner
            .on_disk(&self.folder.id, PATIENCE, move || {
                let approach = |(dir, deep)| match approach(&root, &top, &dir, deep) {
                    Ok(todo) => todo.map(Ok),
                    Err(_) => Some(Err(dir)),
                };
                wanted.into_iter().filter_map(approach).collect::<Vec<_>>()
            })
            .await?;
        let roots = Arc::clone(&self.around.roots);
        for todo in approached {
            match todo {
                // A directory that is a folder of its own is not walked as part of this one.
                Ok(todo) if todo.dir.is_root() || !roots.contains(&todo.chain.identity) => {
                    self.waiting.push(todo);
                }
                Ok(_) => {}
                // Its parent's listing says what is wrong with it.
                Err(dir) => self.blocked.push(dir),
            }
        }
        Ok(())
    }

    /// Reads some of the waiting directories.
    async fn read_batch(&mut self) -> Result<Vec<(Todo, io::Result<Listing>)>, ScanError> {
        let from = self.waiting.len().saturating_sub(DIRS_A_BATCH);
        let mut batch = self.waiting.split_off(from);
        let root = Arc::clone(&self.root);
        let watcher = self.scanner.watcher.clone();
        let folder = self.folder.id.clone();
        let stop = self.scanner.stop.clone();
        let (read, rest) = self
            .scanner
            .on_disk(&self.folder.id, PATIENCE, move || {
                let mut read = Vec::with_capacity(batch.len());
                let mut entries = 0;
                while entries < ENTRIES_A_BATCH && !stop.is_cancelled() {
                    let Some(todo) = batch.pop() else { break };
                    let listing = match &watcher {
                        Some(watcher) => root.list(&todo.dir, &watcher.of(&folder)),
                        None => root.list(&todo.dir, &NoWatch),
                    };
                    entries += listing.as_ref().map_or(0, |l| l.entries.len());
                    read.push((todo, listing));
                }
                (read, batch)
            })
            .await?;
        self.waiting.extend(rest);
        Ok(read)
    }

    async fn compare(
        &mut self,
        batch: Vec<(Todo, io::Result<Listing>)>,
    ) -> Result<Option<io::Error>, ScanError> {
        let mut read = Vec::with_capacity(batch.len());
        for (todo, listing) in batch {
            match listing {
                Ok(listing) => read.push((todo, listing)),
                Err(error) if todo.dir.is_root() => return Ok(Some(error)),
                // Gone since its parent was read: then so is what was in it.
                Err(error) if absent(&error) => {}
                Err(error) => {
                    let known = self.troubled.remove(&todo.dir);
                    self.problem(&todo.dir, NONE, Reason::from_io(&error), known.as_ref());
                    self.blocked.push(todo.dir);
                }
            }
        }
        let keys: Vec<String> = read.iter().map(|(todo, _)| todo.dir.key()).collect();
        if keys.is_empty() {
            return Ok(None);
        }
        let (files, problems) = self
            .scanner
            .catalog
            .in_directories(&self.folder.id, &keys)
            .await?;
        let mut files: HashMap<RelPath, KnownFile> =
            files.into_iter().map(|f| (f.place.path.clone(), f)).collect();
        let mut problems: HashMap<RelPath, KnownProblem> =
            problems.into_iter().map(|p| (p.path.clone(), p)).collect();
        for (todo, listing) in read {
            self.visited.insert(todo.dir.key());
            if self.troubled.remove(&todo.dir).is_some() {
                self.findings.push(Finding::Mended {
                    place: self.place(&todo.dir),
                });
            }
            self.directory(&todo, listing, &mut files, &mut problems).await?;
            self.write_if_full().await?;
        }
        self.vanished(files.into_values().collect()).await?;
        for problem in problems.into_values() {
            self.solved(problem).await?;
        }
        self.publish();
        Ok(None)
    }

    async fn directory(
        &mut self,
        todo: &Todo,
        listing: Listing,
        files: &mut HashMap<RelPath, KnownFile>,
        problems: &mut HashMap<RelPath, KnownProblem>,
    ) -> Result<(), ScanError> {
        let mut subdirectories = HashSet::new();
        for entry in listing.entries {
            let path = entry.path;
            let problem = problems.remove(&path);
            match entry.kind {
                EntryKind::Directory(identity) => {
                    subdirectories.insert(path.clone());
                    self.subdirectory(todo, listing.identity, path, identity, problem);
                }
                EntryKind::File(revision) => {
                    let known = files.remove(&path);
                    self.file(todo, path, revision, known, problem).await?;
                }
                EntryKind::LinkInside => {
                    if problem.is_some() {
                        self.findings.push(Finding::Mended {
                            place: self.place(&path),
                        });
                    }
                }
                EntryKind::Problem(_) if path.name().starts_with(b".") => {}
                EntryKind::Problem(reason) => self.problem(&path, NONE, reason, problem.as_ref()),
            }
        }
        if !todo.deep {
            self.shallow.insert(todo.dir.clone(), subdirectories);
        }
        Ok(())
    }

    fn subdirectory(
        &mut self,
        todo: &Todo,
        parent: DirIdentity,
        path: RelPath,
        identity: DirIdentity,
        problem: Option<KnownProblem>,
    ) {
        if !sieve::walks(path.name()) || self.around.roots.contains(&identity) {
            self.mend(problem);
            return;
        }
        let refused = match path.depth() > MAX_DEPTH {
            true => Some(Reason::TooDeep { limit: MAX_DEPTH }),
            false => todo.chain.holds(identity).then_some(Reason::Cycle),
        };
        if let Some(reason) = refused {
            self.problem(&path, NONE, reason, problem.as_ref());
            self.blocked.push(path);
            return;
        }
        if let Some(problem) = problem {
            if problem.reason == Reason::NotMounted {
                self.unmounted_known.insert(path.clone());
            } else {
                self.troubled.insert(path.clone(), problem);
            }
        }
        let known = self
            .remembered
            .as_ref()
            .is_some_and(|(_, dirs)| dirs.contains(&path));
        if !todo.deep && known {
            return;
        }
        self.waiting.push(Todo {
            mount: match identity.device == parent.device {
                true => todo.mount.clone(),
                false => path.clone(),
            },
            chain: Arc::new(Chain {
                identity,
                above: Some(Arc::clone(&todo.chain)),
            }),
            dir: path,
            deep: true,
        });
    }

    async fn file(
        &mut self,
        todo: &Todo,
        path: RelPath,
        revision: Revision,
        known: Option<KnownFile>,
        problem: Option<KnownProblem>,
    ) -> Result<(), ScanError> {
        let sieved = sieve::file(path.name(), revision.size);
        let reason = match sieved {
            Sieved::Ignored | Sieved::Sidecar => {
                self.progress.sidecars += u64::from(sieved == Sieved::Sidecar);
                self.mend(problem);
                // An older version took such names for films.
                return self.vanished(known.into_iter().collect()).await;
            }
            Sieved::NotMedia => {
                let suffix = sieve::suffix(path.name()).unwrap_or_default();
                self.documents += 1;
                if self.documents <= MAX_DOCUMENTS || problem.is_some() {
                    self.problem(&path, NONE, Reason::OtherDocument { suffix }, problem.as_ref());
                }
                return Ok(());
            }
            Sieved::Empty => Some(Reason::Empty),
            Sieved::TooSmall => Some(Reason::TooSmall { size: revision.size }),
            Sieved::Candidate => None,
        };
        self.progress.seen += 1;
        let reader = self.scanner.reader.version();
        let place = self.place(&path);
        if let Some(known) = known.as_ref().filter(|known| {
            reason.is_none() && known.remembered.revision.same_file(&revision) && known.reader == reader
        }) {
            self.scanner.rest(&place);
            self.progress.done += 1;
            self.mend(problem);
            if known.missing || known.mount != todo.mount {
                self.findings.push(Finding::Media(Box::new(Media {
                    mount: todo.mount.clone(),
                    found: judge::Remembered {
                        revision,
                        sample: known.remembered.sample.clone(),
                    },
                    origin: Origin::Here(known.id.clone()),
                    facts: None,
                    place,
                })));
            }
            return Ok(());
        }
        let looked = |p: &KnownProblem| {
            p.revision.same_file(&revision)
                && p.reader == reader
                && !judge::look_again(&p.reason, p.attempts, p.looked, self.now)
        };
        if problem.as_ref().is_some_and(looked) {
            self.scanner.rest(&place);
            self.progress.done += 1;
            return Ok(());
        }
        if self.scanner.is_restless(&place, &revision) {
            return Ok(());
        }
        if let Some(reason) = reason {
            self.progress.done += 1;
            self.problem(&path, revision, reason, problem.as_ref());
            return Ok(());
        }
        let subject = Subject {
            place,
            mount: todo.mount.clone(),
            listed: revision,
            known: problem.filter(|p| p.revision.same_file(&revision) && p.reader == reader),
        };
        self.submit(subject).await
    }

    async fn submit(&mut self, subject: Subject) -> Result<(), ScanError> {
        while self.jobs.len() >= self.scanner.examiners {
            self.join_one().await?;
        }
        self.publish();
        let scanner = Arc::clone(self.scanner);
        let root = Arc::clone(&self.root);
        let around = self.around.clone();
        let job = scanner
            .work
            .clone()
            .track_future(async move { examine(&scanner, root, subject, &around).await });
        self.jobs.spawn(job);
        Ok(())
    }

    async fn join_one(&mut self) -> Result<(), ScanError> {
        // Nobody waits for the rest once the library closes; the tracker does.
        let examined = tokio::select! {
            biased;
            () = self.scanner.stop.cancelled() => return Err(ScanError::Stopped),
            examined = self.jobs.join_next() => examined,
        };
        match examined {
            None => {}
            Some(Ok(outcome)) => {
                match outcome? {
                    Examined::Found { findings, read } => {
                        self.progress.done += 1;
                        self.progress.read += u64::from(read);
                        self.findings.extend(findings);
                    }
                    Examined::Changing { place, revision } => {
                        self.scanner.note_restless(&place, &revision);
                    }
                    Examined::Stopped => return Err(ScanError::Stopped),
                }
                self.publish();
            }
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Some(Err(_)) => return Err(ScanError::Stopped),
        }
        // While others are examined, what is known reaches the viewers.
        if self.jobs.is_empty() || self.findings.len() >= FINDINGS_A_BATCH {
            self.write().await?;
        }
        Ok(())
    }

    fn problem(&mut self, path: &RelPath, revision: Revision, reason: Reason, known: Option<&KnownProblem>) {
        let reader = self.scanner.reader.version();
        if known.is_some_and(|k| k.reason == reason && k.revision.same_file(&revision) && k.reader == reader)
        {
            return;
        }
        self.findings.push(Finding::Problem {
            place: self.place(path),
            revision,
            withdraw: reason.is_about_content(),
            reason,
            attempts: 0,
            reader,
        });
    }

    fn mend(&mut self, problem: Option<KnownProblem>) {
        if let Some(problem) = problem {
            self.findings.push(Finding::Mended {
                place: self.place(&problem.path),
            });
        }
    }

    fn place(&self, path: &RelPath) -> Place {
        Place {
            folder: self.folder.id.clone(),
            path: path.clone(),
        }
    }

    async fn write_if_full(&mut self) -> Result<(), ScanError> {
        match self.findings.len() >= FINDINGS_A_BATCH {
            true => self.write().await,
            false => Ok(()),
        }
    }

    async fn write(&mut self) -> Result<(), ScanError> {
        let findings = std::mem::take(&mut self.findings);
        if findings.is_empty() {
            return Ok(());
        }
        let moved = self
            .scanner
            .catalog
            .record(findings, self.scanner.clock.now())
            .await?;
        for place in moved {
            self.scanner
                .marks
                .shallow(&place.folder, place.path.parent().unwrap_or_default());
        }
        self.scanner.status.send_modify(|status| status.version += 1);
        Ok(())
    }

    fn publish(&self) {
        let progress = self.progress;
        let restless = self.scanner.restless().len();
        self.scanner.status.send_if_modified(|status| {
            let changed = status.progress.done != progress.done || status.progress.seen != progress.seen;
            status.progress = progress;
            status.restless = restless;
            changed
        });
    }
}

//! Work that improves the library while nobody waits for it, one film at a time: complete keyframes for
//! files that have no index (D13), then pictures. What a viewer asks for goes first, and is done during scans
//! too.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ether_media::{Facts, Gap};
use ether_store::{Sql, Value};
use ether_types::ItemId;
use tokio::sync::Notify;

use crate::catalog::{Catalog, CatalogError, KnownFile, READ, WRITE};
use crate::model::PartId;
use crate::open::{OpenError, open_known};
use crate::pictures::{KeepError, Pictures, is_current};
use crate::reader::ChoreFailure;
use crate::scan::{ScanError, Scanner};

/// Requests that are remembered; more are served by the ordinary order.
const MAX_WANTED: usize = 256;

/// The kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chore {
    /// Find every keyframe.
    Index,
    /// Make a picture.
    Picture,
}

/// What viewers ask for.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    queue: Mutex<VecDeque<(Chore, ItemId)>>,
}

impl Wanted {
    /// Puts a request in the queue; `false` where it is in it already, or the queue is full.
    pub(crate) fn push(&self, chore: Chore, item: &ItemId) -> bool {
        let mut queue = self.lock();
        let known = queue.iter().any(|(c, i)| *c == chore && i == item);
        if known || queue.len() >= MAX_WANTED {
            return false;
        }
        queue.push_back((chore, item.clone()));
        true
    }

    fn pop(&self) -> Option<(Chore, ItemId)> {
        self.lock().pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Chore, ItemId)>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that does the work.
pub(crate) struct Chores {
    pub(crate) scanner: Arc<Scanner>,
    pub(crate) pictures: Arc<Pictures>,
    pub(crate) wanted: Arc<Wanted>,
    /// Rung when there may be work.
    pub(crate) bell: Arc<Notify>,
    /// Width of the pictures, in pixels.
    pub(crate) width: u32,
}

/// Why a piece of work ended without a result.
#[derive(Debug, thiserror::Error)]
enum ChoreError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Scan(#[from] ScanError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    Keep(#[from] KeepError),
    #[error("{0}")]
    NotNow(String),
}

/// Where the rounds through the items are; an item that gave nothing is passed until the next scan.
#[derive(Default)]
struct Round {
    index: String,
    picture: String,
    /// No room for pictures, on the disk or in the budget: only those that are asked for.
    full: bool,
}

impl Chores {
    /// Runs until the library closes.
    pub(crate) async fn run(self) {
        let stop = self.scanner.stop.clone();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.bell.notified() => {}
            }
            let mut round = Round::default();
            loop {
                let next = match self.next(&mut round).await {
                    Ok(next) => next,
                    Err(error) => {
                        tracing::debug!(%error, "background work waits for the database");
                        None
                    }
                };
                let Some((chore, item)) = next else { break };
                self.busy(true);
                let done = tokio::select! {
                    biased;
                    // Dropping the work ends the processes behind it.
                    () = stop.cancelled() => return,
                    done = self.work(chore, &item) => done,
                };
                if let Err(error) = done {
                    tracing::debug!(%item, ?chore, %error, "background work gave nothing");
                    round.full |= matches!(error, ChoreError::Keep(KeepError::File(_)));
                }
            }
            self.busy(false);
        }
    }

    fn busy(&self, busy: bool) {
        self.scanner
            .status
            .send_if_modified(|status| std::mem::replace(&mut status.chores, busy) != busy);
    }

    async fn next(&self, round: &mut Round) -> Result<Option<(Chore, ItemId)>, CatalogError> {
        if let Some(wanted) = self.wanted.pop() {
            return Ok(Some(wanted));
        }
        if self.scanner.status.borrow().scanning {
            return Ok(None);
        }
        let catalog = &self.scanner.catalog;
        if let Some(item) = catalog.next_wanting(INDEX_WANTED, &round.index).await? {
            round.index = item.as_str().to_owned();
            return Ok(Some((Chore::Index, item)));
        }
        if !round.full {
            round.full = catalog.picture_bytes().await? >= self.pictures.budget;
        }
        if round.full {
            return Ok(None);
        }
        let item = catalog.next_wanting(PICTURE_WANTED, &round.picture).await?;
        if let Some(item) = &item {
            round.picture = item.as_str().to_owned();
        }
        Ok(item.map(|item| (Chore::Picture, item)))
    }

    async fn work(&self, chore: Chore, item: &ItemId) -> Result<(), ChoreError> {
        let catalog = &self.scanner.catalog;
        let Some(known) = catalog.file_of(item).await? else {
            return Ok(());
        };
        let Some(facts) = catalog.facts(item).await? else {
            return Ok(());
        };
        match chore {
            Chore::Index => self.index(known, facts).await,
            Chore::Picture => self.picture(known, facts).await,
        }
    }

    async fn index(&self, known: KnownFile, facts: Arc<Facts>) -> Result<(), ChoreError> {
        let wanting = |gap: &Gap| matches!(gap, Gap::Keyframes { .. });
        if !facts.gaps.iter().any(wanting) {
            return Ok(());
        }
        // Every session of such a film asks for it anew; that there are none to be had is found out once.
        if !self.scanner.catalog.wants_index(&known.item).await? {
            return Ok(());
        }
        let opened = open_known(&self.scanner, &known).await?;
        let found = self
            .scanner
            .reader
            .keyframes(opened.file, Arc::clone(&facts))
            .await;
        // A file that changed while it was read gave a list of neither state.
        open_known(&self.scanner, &known).await?;
        let catalog = &self.scanner.catalog;
        match found {
            Ok(keyframes) => {
                let mut facts = Arc::unwrap_or_clone(facts);
                facts.keyframes = Some(keyframes);
                facts.gaps.retain(|gap| !wanting(gap));
                catalog
                    .indexed(&known.id, &known.item, known.stamp, Some(&facts))
                    .await?;
                self.scanner.status.send_modify(|status| status.version += 1);
                Ok(())
            }
            Err(ChoreFailure::Never(reason)) => {
                tracing::debug!(item = %known.item, %reason, "no keyframes are to be had: video is always encoded");
                Ok(catalog.indexed(&known.id, &known.item, known.stamp, None).await?)
            }
            Err(ChoreFailure::NotNow(reason)) => Err(ChoreError::NotNow(reason)),
        }
    }

    async fn picture(&self, known: KnownFile, facts: Arc<Facts>) -> Result<(), ChoreError> {
        let scanner = &self.scanner;
        if scanner.catalog.picture(&known.item).await?.is_some() {
            return Ok(());
        }
        let opened = open_known(scanner, &known).await?;
        match scanner.reader.picture(opened.file, facts, self.width).await {
            Ok(bytes) => {
                self.pictures
                    .keep(scanner, &known.item, &known.id, known.stamp, bytes)
                    .await?
            }
            Err(ChoreFailure::Never(reason)) => {
                let now = scanner.clock.now();
                let (item, part) = (&known.item, &known.id);
                let old = scanner
                    .catalog
                    .no_picture(item, part, known.stamp, &reason, now)
                    .await?;
                self.pictures.remove(scanner, old.unwrap_or_default()).await;
            }
            Err(ChoreFailure::NotNow(reason)) => return Err(ChoreError::NotNow(reason)),
        }
        scanner.status.send_modify(|status| status.version += 1);
        Ok(())
    }
}

const INDEX_WANTED: &str = "SELECT id FROM library_items WHERE index_state = 1 AND visible = 1 AND id > $1 \
                            ORDER BY id LIMIT 1";
const PICTURE_WANTED: &str = "SELECT id FROM library_items WHERE picture_state = 0 AND visible = 1 AND id > $1 \
                              ORDER BY id LIMIT 1";

impl Catalog {
    async fn next_wanting(&self, sql: &'static str, after: &str) -> Result<Option<ItemId>, CatalogError> {
        let rows = self.tables.query(READ, sql, vec![Value::from(after)]).await?;
        rows.first()
            .map(|row| crate::catalog::item_from(&row.text(0usize)?))
            .transpose()
    }

    /// Whether keyframes of `item` are to be looked for: they are not known, and may be to be had.
    async fn wants_index(&self, item: &ItemId) -> Result<bool, CatalogError> {
        let wanted = "SELECT id FROM library_items WHERE index_state = 1 AND id = $1";
        let rows = self
            .tables
            .query(READ, wanted, vec![Value::from(item.as_str())])
            .await?;
        Ok(!rows.is_empty())
    }

    /// Replaces the facts of `item`, read from `part` at `stamp`, by `facts` with complete keyframes; without
    /// them notes that there are none to be had. Nothing happens where the film is another by now.
    async fn indexed(
        &self,
        part: &PartId,
        item: &ItemId,
        stamp: i64,
        facts: Option<&Facts>,
    ) -> Result<(), CatalogError> {
        let guard = [
            Value::from(part.as_str()),
            Value::from(item.as_str()),
            Value::from(stamp),
        ];
        let facts = facts
            .map(serde_json::to_string)
            .transpose()
            .map_err(|_| CatalogError::Damaged { what: "facts" })?;
        let item = Value::from(item.as_str());
        self.tables
            .write(WRITE, move |tx| {
                Box::pin(async move {
                    if !is_current(tx, &guard).await? {
                        return Ok(());
                    }
                    let state = Value::from(if facts.is_some() { 0 } else { 2 });
                    let update: Sql = "UPDATE library_items SET index_state = $2 WHERE id = $1".into();
                    tx.execute(update, &[item.clone(), state]).await?;
                    if let Some(facts) = facts {
                        tx.execute(
                            "UPDATE library_facts SET facts = $2 WHERE item = $1",
                            &[item, Value::from(facts)],
                        )
                        .await?;
                    }
                    Ok(())
                })
            })
            .await
    }
}

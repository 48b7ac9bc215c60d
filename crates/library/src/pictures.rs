//! Pictures made from films: files under random names in one directory, an index in the tables, a budget in
//! bytes. The index is the truth; a file that it does not name is litter, a file that is not there is made
//! again.

use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use ether_store::{Sql, Tx, Value};
use ether_types::id::random_hex;
use ether_types::{ItemId, Timestamp};

use crate::catalog::{Catalog, CatalogError, READ, WRITE};
use crate::model::PartId;
use crate::scan::{ScanError, Scanner};

/// How stale the time of a picture's last use may be. Keeps reading from writing.
const USED_STEP: Duration = Duration::from_secs(3600);

/// The directory of pictures.
#[derive(Debug)]
pub(crate) struct Pictures {
    pub(crate) dir: PathBuf,
    pub(crate) budget: u64,
}

/// A picture that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// The JPEG.
    pub bytes: Bytes,
    /// Names these bytes and no others.
    pub etag: String,
}

/// What the index says of an item's picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PictureRow {
    /// It was made.
    Ready { id: String, used: Timestamp },
    /// It cannot be made from this revision.
    Failed(String),
}

/// Why a picture was not kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeepError {
    #[error("the picture's file could not be written: {0}")]
    File(#[from] io::Error),
    #[error(transparent)]
    Scan(#[from] ScanError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl Pictures {
    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.jpg"))
    }

    /// Deletes what the index does not name.
    pub(crate) async fn tidy(&self, scanner: &Scanner) -> Result<(), KeepError> {
        let rows = scanner
            .catalog
            .tables
            .query(
                READ,
                "SELECT id FROM library_pictures WHERE reason IS NULL",
                Vec::new(),
            )
            .await
            .map_err(CatalogError::from)?;
        let mut named = std::collections::HashSet::with_capacity(rows.len());
        for row in &rows {
            named.insert(format!("{}.jpg", row.text(0usize).map_err(CatalogError::from)?));
        }
        let dir = self.dir.clone();
        let tidied = move || -> io::Result<()> {
            for entry in std::fs::read_dir(&dir)? {
                let entry = entry?;
                if entry
                    .file_name()
                    .to_str()
                    .is_none_or(|name| !named.contains(name))
                {
                    // What cannot be deleted now is tried again at the next start.
                    let _ = std::fs::remove_file(entry.path());
                }
            }
            Ok(())
        };
        Ok(scanner.blocking(tidied).await??)
    }

    /// The picture `id`; `None` where its file is gone.
    pub(crate) async fn read(&self, scanner: &Scanner, id: &str) -> Result<Option<Bytes>, KeepError> {
        let path = self.path(id);
        match scanner.blocking(move || std::fs::read(path)).await? {
            Ok(bytes) => Ok(Some(Bytes::from(bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Keeps `bytes` as the picture of `item`, made from `part` at `stamp`, and evicts the pictures that were
    /// not used for longest until the budget holds.
    pub(crate) async fn keep(
        &self,
        scanner: &Scanner,
        item: &ItemId,
        part: &PartId,
        stamp: i64,
        bytes: Bytes,
    ) -> Result<(), KeepError> {
        let id = random_hex().map_err(CatalogError::from)?;
        let (path, length) = (self.path(&id), bytes.len());
        let written = scanner.blocking(move || write_whole(&path, &bytes)).await?;
        if let Err(error) = written {
            self.remove(scanner, vec![id]).await;
            return Err(error.into());
        }
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        let now = scanner.clock.now();
        let old = scanner
            .catalog
            .keep_picture(item, part, stamp, &id, length, now)
            .await;
        match old {
            Ok(Some(old)) => self.remove(scanner, old).await,
            // The film changed meanwhile.
            Ok(None) => self.remove(scanner, vec![id]).await,
            Err(error) => {
                // It may have been kept: the file stays until the next start knows.
                return Err(error.into());
            }
        }
        let evicted = scanner.catalog.evict_pictures(self.budget).await?;
        self.remove(scanner, evicted).await;
        Ok(())
    }

    /// Deletes files; what cannot be deleted is litter for the next start.
    pub(crate) async fn remove(&self, scanner: &Scanner, ids: Vec<String>) {
        let paths: Vec<PathBuf> = ids
            .iter()
            .filter(|id| !id.is_empty())
            .map(|id| self.path(id))
            .collect();
        if paths.is_empty() {
            return;
        }
        let _ = scanner
            .blocking(move || {
                for path in paths {
                    let _ = std::fs::remove_file(path);
                }
            })
            .await;
    }
}

/// Writes a file that is whole or absent after a crash.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension("tmp");
    let written = (|| {
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&unfinished, path)?;
        let dir = path.parent().unwrap_or(Path::new("."));
        std::fs::File::open(dir)?.sync_all()
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    written
}

impl Catalog {
    /// What the index says of `item`'s picture.
    pub(crate) async fn picture(&self, item: &ItemId) -> Result<Option<PictureRow>, CatalogError> {
        let rows = self
            .tables
            .query(
                READ,
                "SELECT p.id, p.used, p.reason FROM library_pictures p JOIN library_items i ON i.id = p.item \
                 WHERE p.item = $1 AND i.picture_state <> 0",
                vec![Value::from(item.as_str())],
            )
            .await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(match row.opt_text(2usize)? {
            Some(reason) => PictureRow::Failed(reason),
            None => PictureRow::Ready {
                id: row.text(0usize)?,
                used: Timestamp::from_micros(row.integer(1usize)?),
            },
        }))
    }

    /// Notes that `item`'s picture was used, now and then.
    pub(crate) async fn picture_used(
        &self,
        item: &ItemId,
        used: Timestamp,
        now: Timestamp,
    ) -> Result<(), CatalogError> {
        if now >= used && now.saturating_since(used) < USED_STEP {
            return Ok(());
        }
        self.change(
            "UPDATE library_pictures SET used = $2 WHERE item = $1",
            vec![Value::from(item.as_str()), Value::from(now.as_micros())],
        )
        .await
    }

    /// Notes that `item`'s picture has to be made anew: its file is gone.
    pub(crate) async fn picture_lost(&self, item: &ItemId) -> Result<(), CatalogError> {
        self.change(
            "UPDATE library_items SET picture_state = 0 WHERE id = $1",
            vec![Value::from(item.as_str())],
        )
        .await
    }

    /// Notes that no picture can be made of `part` at `stamp`.
    pub(crate) async fn no_picture(
        &self,
        item: &ItemId,
        part: &PartId,
        stamp: i64,
        reason: &str,
        now: Timestamp,
    ) -> Result<Option<Vec<String>>, CatalogError> {
        self.note_picture(item, part, stamp, "", 0, Some(reason.to_owned()), now)
            .await
    }

    async fn keep_picture(
        &self,
        item: &ItemId,
        part: &PartId,
        stamp: i64,
        id: &str,
        bytes: i64,
        now: Timestamp,
    ) -> Result<Option<Vec<String>>, CatalogError> {
        self.note_picture(item, part, stamp, id, bytes, None, now).await
    }

    /// Returns the identities of the pictures that this replaces; `None` where the film is another by now.
    #[allow(clippy::too_many_arguments, reason = "the columns of one row")]
    async fn note_picture(
        &self,
        item: &ItemId,
        part: &PartId,
        stamp: i64,
        id: &str,
        bytes: i64,
        reason: Option<String>,
        now: Timestamp,
    ) -> Result<Option<Vec<String>>, CatalogError> {
        let guard = [
            Value::from(part.as_str()),
            Value::from(item.as_str()),
            Value::from(stamp),
        ];
        let state = [
            Value::from(item.as_str()),
            Value::from(if reason.is_none() { 1 } else { 2 }),
        ];
        let values = [
            Value::from(item.as_str()),
            Value::from(id),
            Value::from(stamp),
            Value::from(bytes),
            Value::from(now.as_micros()),
            Value::from(reason),
        ];
        self.tables
            .write(WRITE, move |tx| {
                Box::pin(async move {
                    if !is_current(tx, &guard).await? {
                        return Ok(None);
                    }
                    let old = tx
                        .query("SELECT id FROM library_pictures WHERE item = $1", &values[..1])
                        .await?;
                    let old = old
                        .iter()
                        .map(|row| row.text(0usize))
                        .collect::<Result<Vec<_>, _>>()?;
                    tx.execute(
                        "INSERT INTO library_pictures (item, id, stamp, bytes, used, reason) \
                         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (item) DO UPDATE SET id = excluded.id, \
                         stamp = excluded.stamp, bytes = excluded.bytes, used = excluded.used, \
                         reason = excluded.reason",
                        &values,
                    )
                    .await?;
                    tx.execute(
                        "UPDATE library_items SET picture_state = $2 WHERE id = $1",
                        &state,
                    )
                    .await?;
                    Ok::<_, CatalogError>(Some(old))
                })
            })
            .await
    }

    /// Bytes in all pictures.
    pub(crate) async fn picture_bytes(&self) -> Result<u64, CatalogError> {
        let rows = self
            .tables
            .query(
                READ,
                "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM library_pictures",
                Vec::new(),
            )
            .await?;
        let sum = rows
            .first()
            .map(|row| row.integer(0usize))
            .transpose()?
            .unwrap_or(0);
        Ok(u64::try_from(sum).unwrap_or(0))
    }

    /// Takes pictures out of the index, the longest unused first, until the rest fits into `budget`.
    async fn evict_pictures(&self, budget: u64) -> Result<Vec<String>, CatalogError> {
        let mut over = self.picture_bytes().await?.saturating_sub(budget);
        let mut evicted = Vec::new();
        while over > 0 {
            let (freed, ids) = self
                .tables
                .write(WRITE, move |tx| Box::pin(evict_some(tx, over)))
                .await?;
            if freed == 0 {
                break;
            }
            over = over.saturating_sub(freed);
            evicted.extend(ids);
        }
        Ok(evicted)
    }

    pub(crate) async fn change(&self, sql: impl Into<Sql>, values: Vec<Value>) -> Result<(), CatalogError> {
        let sql = sql.into();
        self.tables
            .write(WRITE, move |tx| {
                Box::pin(async move {
                    tx.execute(sql, &values).await?;
                    Ok(())
                })
            })
            .await
    }
}

/// Whether the part, item and stamp still belong together.
pub(crate) async fn is_current(tx: &mut Tx, guard: &[Value; 3]) -> Result<bool, CatalogError> {
    let row = tx
        .first(
            "SELECT id FROM library_files WHERE id = $1 AND item = $2 AND stamp = $3",
            guard,
        )
        .await?;
    Ok(row.is_some())
}

async fn evict_some(tx: &mut Tx, over: u64) -> Result<(u64, Vec<String>), CatalogError> {
    let rows = tx
        .query(
            "SELECT item, id, bytes FROM library_pictures WHERE bytes > 0 ORDER BY used LIMIT 64",
            &[],
        )
        .await?;
    let (mut freed, mut ids) = (0, Vec::new());
    for row in &rows {
        if freed >= over {
            break;
        }
        let item = [Value::from(row.text(0usize)?)];
        tx.execute("DELETE FROM library_pictures WHERE item = $1", &item)
            .await?;
        tx.execute("UPDATE library_items SET picture_state = 0 WHERE id = $1", &item)
            .await?;
        freed += u64::try_from(row.integer(2usize)?).unwrap_or(0);
        ids.push(row.text(1usize)?);
    }
    Ok((freed, ids))
}

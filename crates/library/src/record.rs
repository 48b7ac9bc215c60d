//! What a scan found, written down. Every change is conditional on what the scanner saw when it decided; a
//! change whose ground has moved is not made, and the scanner looks again.

use std::collections::BTreeSet;

use ether_media::Facts;
use ether_store::{Sql, Tx, Value};
use ether_types::id::random_hex;
use ether_types::{ItemId, Timestamp};

use crate::catalog::{Catalog, CatalogError, WRITE};
use crate::judge::Remembered;
use crate::model::{FolderId, PartId, Place, Summary};
use crate::name::{RelPath, encode};
use crate::problem::Reason;
use crate::revision::Revision;
use crate::title::{order_key, title_of};

/// One finding.
#[derive(Clone, Debug)]
pub(crate) enum Finding {
    /// A film or song is at `place`.
    Media(Box<Media>),
    /// Something at `place` is not offered.
    Problem {
        place: Place,
        revision: Revision,
        reason: Reason,
        attempts: u32,
        reader: i64,
        /// A film that is remembered at `place` is not there any more.
        withdraw: bool,
    },
    /// Nothing is wrong any more at `place`.
    Mended { place: Place },
    /// These files are no longer at these places.
    Gone { files: Vec<(PartId, Place)> },
}

/// A film or song that was found.
#[derive(Clone, Debug)]
pub(crate) struct Media {
    pub(crate) place: Place,
    pub(crate) mount: RelPath,
    pub(crate) found: Remembered,
    pub(crate) origin: Origin,
    /// Absent where what is known still holds.
    pub(crate) facts: Option<ReadFacts>,
}

/// Freshly read facts.
#[derive(Clone, Debug)]
pub(crate) struct ReadFacts {
    pub(crate) facts: Facts,
    pub(crate) summary: Summary,
    pub(crate) reader: i64,
    /// The bytes differ from those that were known, as opposed to being read anew by a better reader.
    pub(crate) changed: bool,
}

/// Where a found file comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Never seen.
    New,
    /// The file known at its place.
    Here(PartId),
    /// A known file that was in the folder `was` under the key `key`, and replaces whatever is remembered at
    /// the new place.
    Moved {
        file: PartId,
        was: FolderId,
        key: String,
    },
}

impl Catalog {
    /// Writes `findings` down, all or none. Returns the places at which the ground had moved, whose findings
    /// were left out.
    pub(crate) async fn record(
        &self,
        findings: Vec<Finding>,
        now: Timestamp,
    ) -> Result<Vec<Place>, CatalogError> {
        self.tables
            .write(WRITE, move |tx| {
                Box::pin(async move {
                    let mut moved = Vec::new();
                    let mut touched = BTreeSet::new();
                    for finding in findings {
                        match finding {
                            Finding::Media(media) => {
                                let place = media.place.clone();
                                if !media_found(tx, *media, now, &mut touched).await? {
                                    moved.push(place);
                                }
                            }
                            Finding::Problem {
                                place,
                                revision,
                                reason,
                                attempts,
                                reader,
                                withdraw,
                            } => {
                                problem(tx, &place, &revision, &reason, attempts, reader, now).await?;
                                if withdraw {
                                    withdraw_at(tx, &place, now, &mut touched).await?;
                                }
                            }
                            Finding::Mended { place } => mended(tx, &place).await?,
                            Finding::Gone { files } => gone(tx, &files, now, &mut touched).await?,
                        }
                    }
                    settle(tx, &touched).await?;
                    Ok(moved)
                })
            })
            .await
    }

    /// Forgets files that are missing since before `before`, the items that then have none left, and all that
    /// belongs to those. Returns the identities of their pictures. At most 200 files at a time.
    pub(crate) async fn purge(&self, before: Timestamp) -> Result<(u64, Vec<String>), CatalogError> {
        self.tables
            .write(WRITE, move |tx| {
                Box::pin(async move {
                    let rows = tx
                        .query(
                            "SELECT id, item FROM library_files WHERE missing > 0 AND missing < $1 LIMIT 200",
                            &[Value::from(before.as_micros())],
                        )
                        .await?;
                    let mut pictures = Vec::new();
                    for row in &rows {
                        let (file, item) = (row.text(0)?, row.text(1)?);
                        tx.execute("DELETE FROM library_files WHERE id = $1", &[Value::from(file)])
                            .await?;
                        let left = tx
                            .first(
                                "SELECT id FROM library_files WHERE item = $1 LIMIT 1",
                                &[Value::from(item.as_str())],
                            )
                            .await?;
                        if left.is_some() {
                            continue;
                        }
                        let item = [Value::from(item)];
                        let picture = tx
                            .first("SELECT id FROM library_pictures WHERE item = $1", &item)
                            .await?;
                        pictures.extend(picture.map(|row| row.text(0)).transpose()?);
                        for statement in [
                            "DELETE FROM library_pictures WHERE item = $1",
                            "DELETE FROM library_positions WHERE item = $1",
                            "DELETE FROM library_facts WHERE item = $1",
                            "DELETE FROM library_items WHERE id = $1",
                        ] {
                            tx.execute(statement, &item).await?;
                        }
                    }
                    Ok((rows.len() as u64, pictures))
                })
            })
            .await
    }

    /// Forgets that `folder` was another directory: what is not in it now is gone at the next scan.
    pub(crate) async fn disown(&self, folder: &FolderId) -> Result<(), CatalogError> {
        let values = [Value::from(&*folder.0)];
        self.tables
            .write(WRITE, move |tx| {
                Box::pin(async move {
                    tx.execute("UPDATE library_folders SET known = 0 WHERE id = $1", &values)
                        .await?;
                    tx.execute("UPDATE library_files SET mount = '' WHERE folder = $1", &values)
                        .await?;
                    Ok::<_, CatalogError>(())
                })
            })
            .await
    }
}

/// The statement that makes the items listed by the query `items` (one parameter, `$1`) visible where one of
/// their files can be played, and points them at such a file.
pub(crate) fn settle_items(items: &str) -> Sql {
    let live = "SELECT f.id FROM library_files f JOIN library_folders d ON d.id = f.folder \
                WHERE f.item = library_items.id AND f.missing = 0 AND d.active = 1";
    Sql::generated(format!(
        "UPDATE library_items SET \
         visible = CASE WHEN EXISTS ({live}) THEN 1 ELSE 0 END, \
         file = COALESCE(({live} ORDER BY f.id LIMIT 1), file) \
         WHERE id IN ({items})"
    ))
}

async fn settle(tx: &mut Tx, touched: &BTreeSet<ItemId>) -> Result<(), CatalogError> {
    for item in touched {
        tx.execute(settle_items("$1"), &[Value::from(item.as_str())])
            .await?;
    }
    Ok(())
}

/// Writes one film down; `false` where the ground has moved.
async fn media_found(
    tx: &mut Tx,
    media: Media,
    now: Timestamp,
    touched: &mut BTreeSet<ItemId>,
) -> Result<bool, CatalogError> {
    let title = title_of(media.place.path.name());
    let (file, item, stamp) = match &media.origin {
        Origin::New => {
            let Some(read) = &media.facts else {
                return Ok(false);
            };
            let item = ItemId::random()?;
            let file = PartId(random_hex()?.into());
            if !insert_file(tx, &file, &item, &media, read.reader, now).await? {
                return Ok(false);
            }
            insert_item(tx, &item, &file, &title, read, now).await?;
            (file, item, None)
        }
        Origin::Here(file) => match known(tx, file, &media.place.folder, &media.place.path.key()).await? {
            Some((item, stamp)) => (file.clone(), item, Some(stamp)),
            None => return Ok(false),
        },
        Origin::Moved { file, was, key } => {
            let Some((item, stamp)) = known(tx, file, was, key).await? else {
                return Ok(false);
            };
            displace(tx, &media.place, file, now, touched).await?;
            let values = [
                Value::from(item.as_str()),
                Value::from(title.as_str()),
                Value::from(order_key(&title)),
            ];
            tx.execute(
                "UPDATE library_items SET title = $2, order_key = $3 WHERE id = $1",
                &values,
            )
            .await?;
            (file.clone(), item, Some(stamp))
        }
    };
    if let Some(stamp) = stamp {
        let changed = media.facts.as_ref().is_some_and(|read| read.changed);
        let stamp = if changed { next_stamp(stamp, now) } else { stamp };
        update_file(tx, &file, &media, stamp).await?;
        if let Some(read) = &media.facts {
            update_item(tx, &item, read).await?;
        }
    }
    if let Some(read) = &media.facts {
        let values = [
            Value::from(item.as_str()),
            Value::from(read.reader),
            Value::from(
                serde_json::to_string(&read.facts).map_err(|_| CatalogError::Damaged { what: "facts" })?,
            ),
        ];
        tx.execute(
            "INSERT INTO library_facts (item, reader, facts) VALUES ($1, $2, $3) \
             ON CONFLICT (item) DO UPDATE SET reader = excluded.reader, facts = excluded.facts",
            &values,
        )
        .await?;
    }
    mended(tx, &media.place).await?;
    touched.insert(item);
    Ok(true)
}

/// Stamps only grow, also when the wall clock is set back.
fn next_stamp(stamp: i64, now: Timestamp) -> i64 {
    (now.as_micros() / 1_000_000).max(stamp.saturating_add(1))
}

/// The item and stamp of `file`, where it is still remembered under `key`, or is missing.
async fn known(
    tx: &mut Tx,
    file: &PartId,
    folder: &FolderId,
    key: &str,
) -> Result<Option<(ItemId, i64)>, CatalogError> {
    let row = tx
        .first(
            "SELECT item, stamp FROM library_files \
             WHERE id = $1 AND (missing > 0 OR (folder = $2 AND path_key = $3))",
            &[
                Value::from(file.as_str()),
                Value::from(&*folder.0),
                Value::from(key),
            ],
        )
        .await?;
    match row {
        Some(row) => Ok(Some((crate::catalog::item_from(&row.text(0)?)?, row.integer(1)?))),
        None => Ok(None),
    }
}

/// What is remembered at `place` makes room for `newcomer`; it is missing from now on.
async fn displace(
    tx: &mut Tx,
    place: &Place,
    newcomer: &PartId,
    now: Timestamp,
    touched: &mut BTreeSet<ItemId>,
) -> Result<(), CatalogError> {
    let row = tx
        .first(
            "SELECT id, item FROM library_files WHERE folder = $1 AND path_key = $2 AND id <> $3",
            &[
                Value::from(&*place.folder.0),
                Value::from(place.path.key()),
                Value::from(newcomer.as_str()),
            ],
        )
        .await?;
    let Some(row) = row else { return Ok(()) };
    let (file, item) = (row.text(0)?, row.text(1)?);
    // No path has such a key, so nothing will be found there.
    let nowhere = format!("displaced-{file}");
    tx.execute(
        "UPDATE library_files SET path_key = $2, dir_key = $2, \
         missing = CASE WHEN missing = 0 THEN $3 ELSE missing END WHERE id = $1",
        &[
            Value::from(file),
            Value::from(nowhere),
            Value::from(now.as_micros()),
        ],
    )
    .await?;
    touched.insert(crate::catalog::item_from(&item)?);
    Ok(())
}

fn split(place: &Place) -> (RelPath, String) {
    (place.path.parent().unwrap_or_default(), encode(place.path.name()))
}

/// What is kept of a file, however it is kept: where it is, and how it was last seen. The first twelve parameters
/// of the statements below, in their order.
fn file_values(media: &Media, stamp: i64) -> [Value; 12] {
    let (dir, name) = split(&media.place);
    let revision = &media.found.revision;
    [
        Value::from(&*media.place.folder.0),
        Value::from(media.place.path.key()),
        Value::from(dir.key()),
        Value::from(dir.to_text()),
        Value::from(name),
        Value::from(media.mount.to_text()),
        Value::from(revision.size.cast_signed()),
        Value::from(revision.mtime_ns),
        Value::from(revision.inode.cast_signed()),
        Value::from(revision.device.cast_signed()),
        Value::from(media.found.sample.as_str()),
        Value::from(stamp),
    ]
}

async fn insert_file(
    tx: &mut Tx,
    file: &PartId,
    item: &ItemId,
    media: &Media,
    reader: i64,
    now: Timestamp,
) -> Result<bool, CatalogError> {
    let mut values = file_values(media, next_stamp(0, now)).to_vec();
    values.extend([
        Value::from(reader),
        Value::from(file.as_str()),
        Value::from(item.as_str()),
    ]);
    let inserted = tx
        .execute(
            "INSERT INTO library_files (folder, path_key, dir_key, dir, name, mount, size, mtime_ns, inode, \
             device, sample, stamp, reader, id, item, missing) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, 0) \
             ON CONFLICT (folder, path_key) DO NOTHING",
            &values,
        )
        .await?;
    Ok(inserted == 1)
}

async fn update_file(tx: &mut Tx, file: &PartId, media: &Media, stamp: i64) -> Result<(), CatalogError> {
    let mut values = file_values(media, stamp).to_vec();
    values.extend([
        Value::from(media.facts.as_ref().map(|read| read.reader)),
        Value::from(file.as_str()),
    ]);
    tx.execute(
        "UPDATE library_files SET folder = $1, path_key = $2, dir_key = $3, dir = $4, name = $5, mount = $6, \
         size = $7, mtime_ns = $8, inode = $9, device = $10, sample = $11, stamp = $12, missing = 0, \
         reader = COALESCE($13, reader) WHERE id = $14",
        &values,
    )
    .await?;
    Ok(())
}

fn summary_values(summary: &Summary) -> [Value; 9] {
    let warnings = serde_json::to_string(&summary.warnings).unwrap_or_else(|_| "[]".to_owned());
    [
        Value::from(summary.kind.as_str()),
        Value::from(summary.duration_ms),
        Value::from(summary.width),
        Value::from(summary.height),
        Value::from(summary.video.clone()),
        Value::from(summary.audio.clone()),
        Value::from(summary.container.as_str()),
        Value::from(warnings),
        Value::from(i64::from(summary.needs_index)),
    ]
}

async fn insert_item(
    tx: &mut Tx,
    item: &ItemId,
    file: &PartId,
    title: &str,
    read: &ReadFacts,
    now: Timestamp,
) -> Result<(), CatalogError> {
    let mut values = vec![
        Value::from(item.as_str()),
        Value::from(title),
        Value::from(order_key(title)),
        Value::from(now.as_micros()),
        Value::from(file.as_str()),
    ];
    values.extend(summary_values(&read.summary));
    tx.execute(
        "INSERT INTO library_items (id, title, order_key, visible, added, file, kind, duration_ms, width, \
         height, video, audio, container, warnings, index_state, picture_state) \
         VALUES ($1, $2, $3, 1, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, 0)",
        &values,
    )
    .await?;
    Ok(())
}

async fn update_item(tx: &mut Tx, item: &ItemId, read: &ReadFacts) -> Result<(), CatalogError> {
    let mut values = vec![Value::from(item.as_str()), Value::from(i64::from(read.changed))];
    values.extend(summary_values(&read.summary));
    tx.execute(
        "UPDATE library_items SET kind = $3, duration_ms = $4, width = $5, height = $6, video = $7, audio = $8, \
         container = $9, warnings = $10, index_state = $11, \
         picture_state = CASE WHEN $2 = 1 OR picture_state = 2 THEN 0 ELSE picture_state END WHERE id = $1",
        &values,
    )
    .await?;
    Ok(())
}

async fn problem(
    tx: &mut Tx,
    place: &Place,
    revision: &Revision,
    reason: &Reason,
    attempts: u32,
    reader: i64,
    now: Timestamp,
) -> Result<(), CatalogError> {
    let (dir, name) = split(place);
    tx.execute(
        "INSERT INTO library_problems (folder, path_key, dir_key, dir, name, size, mtime_ns, inode, device, \
         reader, reason, attempts, looked) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) \
         ON CONFLICT (folder, path_key) DO UPDATE SET size = excluded.size, mtime_ns = excluded.mtime_ns, \
         inode = excluded.inode, device = excluded.device, reader = excluded.reader, reason = excluded.reason, \
         attempts = excluded.attempts, looked = excluded.looked",
        &[
            Value::from(&*place.folder.0),
            Value::from(place.path.key()),
            Value::from(dir.key()),
            Value::from(dir.to_text()),
            Value::from(name),
            Value::from(revision.size.cast_signed()),
            Value::from(revision.mtime_ns),
            Value::from(revision.inode.cast_signed()),
            Value::from(revision.device.cast_signed()),
            Value::from(reader),
            Value::from(reason.to_text()),
            Value::from(i64::from(attempts)),
            Value::from(now.as_micros()),
        ],
    )
    .await?;
    Ok(())
}

/// A film whose place now holds something unusable is missing; its item waits for it.
async fn withdraw_at(
    tx: &mut Tx,
    place: &Place,
    now: Timestamp,
    touched: &mut BTreeSet<ItemId>,
) -> Result<(), CatalogError> {
    let row = tx
        .first(
            "SELECT id FROM library_files WHERE folder = $1 AND path_key = $2 AND missing = 0",
            &[Value::from(&*place.folder.0), Value::from(place.path.key())],
        )
        .await?;
    match row {
        Some(row) => gone(tx, &[(PartId(row.text(0)?.into()), place.clone())], now, touched).await,
        None => Ok(()),
    }
}

async fn mended(tx: &mut Tx, place: &Place) -> Result<(), CatalogError> {
    tx.execute(
        "DELETE FROM library_problems WHERE folder = $1 AND path_key = $2",
        &[Value::from(&*place.folder.0), Value::from(place.path.key())],
    )
    .await?;
    Ok(())
}

/// The place is part of the condition: a file may have been found elsewhere since it was missed here.
async fn gone(
    tx: &mut Tx,
    files: &[(PartId, Place)],
    now: Timestamp,
    touched: &mut BTreeSet<ItemId>,
) -> Result<(), CatalogError> {
    for chunk in files.chunks(100) {
        let mut values = vec![Value::from(now.as_micros())];
        let mut list = Vec::with_capacity(chunk.len());
        for (file, place) in chunk {
            let at = values.len() + 1;
            list.push(format!("(${at}, ${}, ${})", at + 1, at + 2));
            values.push(Value::from(file.as_str()));
            values.push(Value::from(&*place.folder.0));
            values.push(Value::from(place.path.key()));
        }
        let sql = format!(
            "UPDATE library_files SET missing = $1 WHERE missing = 0 \
             AND (id, folder, path_key) IN (VALUES {}) RETURNING item",
            list.join(", ")
        );
        for row in tx.query(Sql::generated(sql), &values).await? {
            touched.insert(crate::catalog::item_from(&row.text(0)?)?);
        }
    }
    Ok(())
}

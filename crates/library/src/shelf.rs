//! What viewers ask of the tables: lists, single items, facts, problems, positions.

use std::sync::Arc;

use ether_media::Facts;
use ether_store::{Row, Sql, Value};
use ether_types::{ItemId, Timestamp};

use crate::catalog::{Catalog, CatalogError, READ, WRITE, item_from, place_from};
use crate::model::{FolderId, Item, Kind, PictureState, Viewer};
use crate::problem::Reason;

/// Positions that are kept for one viewer; the oldest go first.
const MAX_POSITIONS: i64 = 10_000;

const ITEM: &str = "i.id, i.title, f.dir, f.name, f.folder, i.kind, i.duration_ms, i.width, i.height, i.video, \
                    i.audio, i.container, i.added, i.warnings, i.picture_state, p.position_ms, p.finished";
const JOINS: &str = "FROM library_items i LEFT JOIN library_files f ON f.id = i.file \
                     LEFT JOIN library_positions p ON p.item = i.id AND p.viewer = $1";

/// An item as it is kept; the folder is a key yet.
#[derive(Debug)]
pub(crate) struct ShelfItem {
    pub(crate) item: Item,
    pub(crate) folder: FolderId,
}

/// A problem as it is shown.
#[derive(Debug)]
pub(crate) struct ShelfProblem {
    pub(crate) folder: FolderId,
    pub(crate) file: String,
    pub(crate) reason: Reason,
}

impl Catalog {
    /// Up to `limit` items after `after`, in the order of their titles.
    pub(crate) async fn list(
        &self,
        viewer: &Viewer,
        after: Option<&ItemId>,
        limit: i64,
    ) -> Result<Vec<ShelfItem>, CatalogError> {
        let mut values = vec![Value::from(viewer.as_str()), Value::from(limit)];
        values.extend(after.map(|after| Value::from(after.as_str())));
        let rows = self.tables.query(READ, list_sql(after.is_some()), values).await?;
        rows.iter().map(read_item).collect()
    }

    /// The item `id`, where it is listed.
    pub(crate) async fn item(&self, viewer: &Viewer, id: &ItemId) -> Result<Option<ShelfItem>, CatalogError> {
        let sql = format!("SELECT {ITEM} {JOINS} WHERE i.visible = 1 AND i.id = $2");
        let values = vec![Value::from(viewer.as_str()), Value::from(id.as_str())];
        let rows = self.tables.query(READ, Sql::generated(sql), values).await?;
        rows.first().map(read_item).transpose()
    }

    /// The facts of `item` with the version of the reader that found them.
    pub(crate) async fn facts(&self, item: &ItemId) -> Result<Option<Arc<Facts>>, CatalogError> {
        let rows = self
            .tables
            .query(
                READ,
                "SELECT facts FROM library_facts WHERE item = $1",
                vec![Value::from(item.as_str())],
            )
            .await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let facts: Facts =
            serde_json::from_str(&row.text(0)?).map_err(|_| CatalogError::Damaged { what: "facts" })?;
        Ok(Some(Arc::new(facts)))
    }

    /// Up to `limit` problems of active folders, and how many there are.
    pub(crate) async fn problems(&self, limit: i64) -> Result<(Vec<ShelfProblem>, u64), CatalogError> {
        let node = Value::from(self.node.as_str());
        let from = "FROM library_problems p JOIN library_folders d ON d.id = p.folder \
                    WHERE d.node = $1 AND d.active = 1";
        let count = self
            .tables
            .query(
                READ,
                Sql::generated(format!("SELECT CAST(COUNT(*) AS BIGINT) {from}")),
                vec![node.clone()],
            )
            .await?;
        let rows = self
            .tables
            .query(READ, PROBLEMS, vec![node, Value::from(limit)])
            .await?;
        let mut problems = Vec::with_capacity(rows.len());
        for row in &rows {
            problems.push(ShelfProblem {
                folder: FolderId(row.text(0)?.into()),
                file: place_from(&row.text(1)?, &row.text(2)?)?.to_string(),
                reason: Reason::from_text(&row.text(3)?),
            });
        }
        let count = count.first().map(|row| row.integer(0)).transpose()?.unwrap_or(0);
        Ok((problems, u64::try_from(count).unwrap_or(0)))
    }

    /// Remembers where `viewer` is in `item`; `finished` absent leaves that as it is. `false` where there is
    /// no such item.
    pub(crate) async fn set_position(
        &self,
        viewer: &Viewer,
        item: &ItemId,
        position_ms: i64,
        finished: Option<bool>,
        now: Timestamp,
    ) -> Result<bool, CatalogError> {
        let values = [
            Value::from(viewer.as_str()),
            Value::from(item.as_str()),
            Value::from(position_ms),
            Value::from(finished.map(i64::from)),
            Value::from(now.as_micros()),
        ];
        self.tables
            .write(WRITE, move |tx| {
                Box::pin(async move {
                    let known = tx
                        .first("SELECT visible FROM library_items WHERE id = $1", &values[1..2])
                        .await?;
                    if known.is_none() {
                        return Ok(false);
                    }
                    let updated = tx
                        .execute(
                            "UPDATE library_positions SET position_ms = $3, updated = $5, \
                             finished = COALESCE($4, finished) WHERE viewer = $1 AND item = $2",
                            &values,
                        )
                        .await?;
                    if updated > 0 {
                        return Ok(true);
                    }
                    tx.execute(
                        "INSERT INTO library_positions (viewer, item, position_ms, finished, updated) \
                         VALUES ($1, $2, $3, COALESCE($4, 0), $5)",
                        &values,
                    )
                    .await?;
                    tx.execute(
                        "DELETE FROM library_positions WHERE viewer = $1 AND updated < \
                         (SELECT o.updated FROM library_positions o WHERE o.viewer = $1 \
                          ORDER BY o.updated DESC LIMIT 1 OFFSET $2)",
                        &[values[0].clone(), Value::from(MAX_POSITIONS - 1)],
                    )
                    .await?;
                    Ok(true)
                })
            })
            .await
    }
}

/// The latest problems: node, limit. The cross join keeps SQLite on the index by age, which has the order of
/// the answer; on PostgreSQL it is a join like any other.
pub(crate) const PROBLEMS: &str = "SELECT p.folder, p.dir, p.name, p.reason FROM library_problems p \
     CROSS JOIN library_folders d WHERE d.id = p.folder AND d.node = $1 AND d.active = 1 \
     ORDER BY p.looked DESC, p.folder DESC, p.path_key DESC LIMIT $2";

/// One page of the shelf: viewer, limit and, with `after`, the item before the page.
pub(crate) fn list_sql(after: bool) -> Sql {
    let after = match after {
        true => "((SELECT a.order_key FROM library_items a WHERE a.id = $3), $3)",
        // Every key is greater than the empty one.
        false => "('', '')",
    };
    Sql::generated(format!(
        "SELECT {ITEM} {JOINS} WHERE i.visible = 1 AND (i.order_key, i.id) > {after} \
         ORDER BY i.order_key, i.id LIMIT $2"
    ))
}

fn read_item(row: &Row) -> Result<ShelfItem, CatalogError> {
    let unsigned = |value: Option<i64>| value.and_then(|v| u64::try_from(v).ok());
    let pixels = |value: Option<i64>| value.and_then(|v| u32::try_from(v).ok());
    let file = match (row.opt_text(2)?, row.opt_text(3)?) {
        (Some(dir), Some(name)) => place_from(&dir, &name)?.to_string(),
        _ => String::new(),
    };
    let item = Item {
        id: item_from(&row.text(0)?)?,
        title: row.text(1)?,
        file,
        folder: String::new(),
        kind: match row.text(5)?.as_str() {
            "music" => Kind::Music,
            _ => Kind::Film,
        },
        duration_ms: unsigned(row.opt_integer(6)?),
        width: pixels(row.opt_integer(7)?),
        height: pixels(row.opt_integer(8)?),
        video: row.opt_text(9)?,
        audio: row.opt_text(10)?,
        container: row.text(11)?,
        added: Timestamp::from_micros(row.integer(12)?),
        warnings: serde_json::from_str(&row.text(13)?).unwrap_or_default(),
        picture: match row.integer(14)? {
            0 => PictureState::Wanted,
            1 => PictureState::Ready,
            _ => PictureState::Failed,
        },
        position_ms: unsigned(row.opt_integer(15)?).unwrap_or(0),
        finished: row.opt_integer(16)? == Some(1),
    };
    Ok(ShelfItem {
        item,
        folder: FolderId(row.opt_text(4)?.unwrap_or_default().into()),
    })
}

//! The library's tables as the scanner reads them. Statements only; what they mean is decided elsewhere.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ether_store::{Bound, Row, Sql, StoreError, Tables, Value};
use ether_types::id::random_hex;
use ether_types::{ItemId, NodeId, Timestamp};

use crate::judge::Remembered;
use crate::model::{FolderId, PartId, Place};
use crate::name::{RelPath, decode, encode, hex};
use crate::problem::Reason;
use crate::revision::Revision;
use crate::tree::DirIdentity;

/// How long one look at the tables may take.
pub(crate) const READ: Bound = Bound::of(Duration::from_secs(10));
/// How long one change of the tables may take, the wait for the lock included.
pub(crate) const WRITE: Bound = Bound::of(Duration::from_secs(30));

/// Why the library's tables gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The operating system's generator of random numbers.
    #[error("no random numbers are to be had: {0}")]
    Random(#[from] getrandom::Error),
    /// A row holds what this program never writes.
    #[error("the library's tables hold a {what} that is none")]
    Damaged {
        /// What was expected.
        what: &'static str,
    },
}

/// The tables, for one node.
#[derive(Clone, Debug)]
pub(crate) struct Catalog {
    pub(crate) tables: Tables,
    pub(crate) node: NodeId,
}

/// A folder as it is kept.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    pub(crate) id: FolderId,
    pub(crate) path: PathBuf,
    pub(crate) active: bool,
    pub(crate) identity: Option<DirIdentity>,
}

/// A file as it is kept.
#[derive(Clone, Debug)]
pub(crate) struct KnownFile {
    pub(crate) id: PartId,
    pub(crate) item: ItemId,
    pub(crate) place: Place,
    /// The mount point inside the folder that it lay behind; the folder itself for none.
    pub(crate) mount: RelPath,
    pub(crate) remembered: Remembered,
    pub(crate) stamp: i64,
    pub(crate) reader: i64,
    pub(crate) missing: bool,
    /// What the tables know its path by; no path's key where another file has taken its place.
    pub(crate) key: String,
}

/// A problem as it is kept.
#[derive(Clone, Debug)]
pub(crate) struct KnownProblem {
    pub(crate) path: RelPath,
    pub(crate) revision: Revision,
    pub(crate) reader: i64,
    pub(crate) reason: Reason,
    pub(crate) attempts: u32,
    pub(crate) looked: Timestamp,
}

const FILE: &str = "f.id, f.item, f.folder, f.dir, f.name, f.mount, f.size, f.mtime_ns, f.inode, f.device, \
                    f.sample, f.stamp, f.reader, f.missing, f.path_key";

impl Catalog {
    /// Makes `paths` the folders of this node, in their order; folders that were configured before and are
    /// not any more keep their films, unlisted.
    pub(crate) async fn configure(&self, paths: Vec<PathBuf>) -> Result<Vec<Folder>, CatalogError> {
        let node = self.node.clone();
        self.tables
            .write(WRITE, move |tx| {
                Box::pin(async move {
                    let rows = tx
                        .query(
                            "SELECT id, path, active, known, device, inode FROM library_folders WHERE node = $1",
                            &[Value::from(node.as_str())],
                        )
                        .await?;
                    let mut before = BTreeMap::new();
                    for row in &rows {
                        let folder = read_folder(row)?;
                        before.insert(folder.path.clone(), folder);
                    }
                    let mut folders = Vec::with_capacity(paths.len());
                    let mut changed = false;
                    for path in paths {
                        if let Some(mut folder) = before.remove(&path) {
                            changed |= !folder.active;
                            folder.active = true;
                            folders.push(folder);
                            continue;
                        }
                        let id = random_hex()?;
                        let bytes = path.as_os_str().as_bytes();
                        tx.execute(
                            "INSERT INTO library_folders (id, node, path_key, path, active, known, device, inode) \
                             VALUES ($1, $2, $3, $4, 1, 0, 0, 0)",
                            &[
                                Value::from(id.as_str()),
                                Value::from(node.as_str()),
                                Value::from(path_key(bytes)),
                                Value::from(encode(bytes)),
                            ],
                        )
                        .await?;
                        folders.push(Folder {
                            id: FolderId(id.into()),
                            path,
                            active: true,
                            identity: None,
                        });
                    }
                    let gone: Vec<Folder> = before.into_values().filter(|folder| folder.active).collect();
                    if !changed && gone.is_empty() {
                        return Ok(folders);
                    }
                    for (active, folder) in gone
                        .iter()
                        .map(|folder| (0, folder))
                        .chain(folders.iter().map(|folder| (1, folder)))
                    {
                        tx.execute(
                            "UPDATE library_folders SET active = $2 WHERE id = $1",
                            &[Value::from(&*folder.id.0), Value::from(active)],
                        )
                        .await?;
                        let items = "SELECT item FROM library_files WHERE folder = $1";
                        let sql = crate::record::settle_items(items);
                        tx.execute(sql, &[Value::from(&*folder.id.0)]).await?;
                    }
                    Ok(folders)
                })
            })
            .await
    }

    /// Every folder this node ever had.
    pub(crate) async fn folders(&self) -> Result<Vec<Folder>, CatalogError> {
        let rows = self
            .tables
            .query(
                READ,
                "SELECT id, path, active, known, device, inode FROM library_folders WHERE node = $1",
                vec![Value::from(self.node.as_str())],
            )
            .await?;
        rows.iter().map(read_folder).collect()
    }

    /// Notes which directory a folder is.
    pub(crate) async fn adopt(&self, folder: &FolderId, identity: DirIdentity) -> Result<(), CatalogError> {
        let values = [
            Value::from(&*folder.0),
            Value::from(identity.device.cast_signed()),
            Value::from(identity.inode.cast_signed()),
        ];
        self.tables
            .write(WRITE, move |tx| {
                Box::pin(async move {
                    tx.execute(
                        "UPDATE library_folders SET known = 1, device = $2, inode = $3 WHERE id = $1",
                        &values,
                    )
                    .await?;
                    Ok::<_, CatalogError>(())
                })
            })
            .await
    }

    /// How many files are remembered in `folder`, and up to `limit` of them, by chance.
    pub(crate) async fn some_files(
        &self,
        folder: &FolderId,
        limit: i64,
    ) -> Result<(u64, Vec<KnownFile>), CatalogError> {
        let count = self
            .tables
            .query(
                READ,
                "SELECT CAST(COUNT(*) AS BIGINT) FROM library_files WHERE folder = $1 AND missing = 0",
                vec![Value::from(&*folder.0)],
            )
            .await?;
        // Keys are digests, so the first ones are spread over the folder.
        let sql = format!(
            "SELECT {FILE} FROM library_files f WHERE f.folder = $1 AND f.missing = 0 \
             ORDER BY f.path_key LIMIT $2"
        );
        let rows = self
            .tables
            .query(
                READ,
                Sql::generated(sql),
                vec![Value::from(&*folder.0), Value::from(limit)],
            )
            .await?;
        let count = count.first().map(|row| row.integer(0)).transpose()?.unwrap_or(0);
        Ok((
            u64::try_from(count).unwrap_or(0),
            rows.iter().map(read_file).collect::<Result<_, _>>()?,
        ))
    }

    /// What is remembered directly in the directories with the keys `dirs`.
    pub(crate) async fn in_directories(
        &self,
        folder: &FolderId,
        dirs: &[String],
    ) -> Result<(Vec<KnownFile>, Vec<KnownProblem>), CatalogError> {
        let mut values = vec![Value::from(&*folder.0)];
        values.extend(dirs.iter().map(|key| Value::from(key.as_str())));
        let list = placeholders(2, dirs.len());
        let sql = format!("SELECT {FILE} FROM library_files f WHERE f.folder = $1 AND f.dir_key IN ({list})");
        let files = self
            .tables
            .query(READ, Sql::generated(sql), values.clone())
            .await?;
        let sql = format!(
            "SELECT dir, name, size, mtime_ns, inode, device, reader, reason, attempts, looked \
             FROM library_problems WHERE folder = $1 AND dir_key IN ({list})"
        );
        let problems = self.tables.query(READ, Sql::generated(sql), values).await?;
        Ok((
            files.iter().map(read_file).collect::<Result<_, _>>()?,
            problems.iter().map(read_problem).collect::<Result<_, _>>()?,
        ))
    }

    /// The directories of `folder` in which anything is remembered.
    pub(crate) async fn directories(&self, folder: &FolderId) -> Result<Vec<RelPath>, CatalogError> {
        let rows = self
            .tables
            .query(
                READ,
                "SELECT DISTINCT dir FROM library_files WHERE folder = $1 AND missing = 0 \
                 UNION SELECT DISTINCT dir FROM library_problems WHERE folder = $1",
                vec![Value::from(&*folder.0)],
            )
            .await?;
        rows.iter()
            .map(|row| path_from(&row.text(0)?, "directory"))
            .collect()
    }

    /// What is remembered at `place`, missing or not.
    pub(crate) async fn at(&self, place: &Place) -> Result<Option<KnownFile>, CatalogError> {
        let sql = format!("SELECT {FILE} FROM library_files f WHERE f.folder = $1 AND f.path_key = $2");
        let values = vec![Value::from(&*place.folder.0), Value::from(place.path.key())];
        let rows = self.tables.query(READ, Sql::generated(sql), values).await?;
        rows.first().map(read_file).transpose()
    }

    /// Up to 16 files of this node that may be the one found.
    pub(crate) async fn alike(&self, found: &Remembered) -> Result<Vec<KnownFile>, CatalogError> {
        let [by_content, by_inode] = alike_sql();
        let revision = &found.revision;
        let node = Value::from(self.node.as_str());
        let size = Value::from(revision.size.cast_signed());
        let values = vec![node.clone(), size.clone(), Value::from(found.sample.as_str())];
        let mut rows = self.tables.query(READ, by_content, values).await?;
        let values = vec![
            node,
            Value::from(revision.inode.cast_signed()),
            size,
            Value::from(revision.mtime_ns),
            Value::from(revision.device.cast_signed()),
        ];
        rows.extend(self.tables.query(READ, by_inode, values).await?);
        let mut files: Vec<KnownFile> = rows.iter().map(read_file).collect::<Result<_, _>>()?;
        files.sort_by(|a, b| a.id.cmp(&b.id));
        files.dedup_by(|a, b| a.id == b.id);
        Ok(files)
    }

    /// The file of `item` that is played; missing ones last.
    pub(crate) async fn file_of(&self, item: &ItemId) -> Result<Option<KnownFile>, CatalogError> {
        let sql = format!(
            "SELECT {FILE} FROM library_items i JOIN library_files f ON f.id = i.file \
             WHERE i.id = $1 AND i.visible = 1"
        );
        let values = vec![Value::from(item.as_str())];
        let rows = self.tables.query(READ, Sql::generated(sql), values).await?;
        rows.first().map(read_file).transpose()
    }

    /// The file `part`, where its item is listed.
    pub(crate) async fn file(&self, part: &PartId) -> Result<Option<KnownFile>, CatalogError> {
        let sql = format!(
            "SELECT {FILE} FROM library_files f JOIN library_folders d ON d.id = f.folder \
             WHERE f.id = $1 AND f.missing = 0 AND d.active = 1"
        );
        let values = vec![Value::from(part.as_str())];
        let rows = self.tables.query(READ, Sql::generated(sql), values).await?;
        rows.first().map(read_file).transpose()
    }
}

/// The files that may be one found: by content (node, size, sample), and by number (node, inode, size,
/// modification, device).
pub(crate) fn alike_sql() -> [Sql; 2] {
    let from = format!("SELECT {FILE} FROM library_files f JOIN library_folders d ON d.id = f.folder");
    [
        Sql::generated(format!(
            "{from} WHERE f.size = $2 AND f.sample = $3 AND d.node = $1 LIMIT 16"
        )),
        Sql::generated(format!(
            "{from} WHERE f.inode = $2 AND f.size = $3 AND f.mtime_ns = $4 AND f.device = $5 AND d.node = $1 \
             LIMIT 16"
        )),
    ]
}

/// `$first, $first+1, …`, `count` of them.
pub(crate) fn placeholders(first: usize, count: usize) -> String {
    let list: Vec<String> = (first..first + count).map(|n| format!("${n}")).collect();
    list.join(", ")
}

/// The database key of a folder's path.
pub(crate) fn path_key(path: &[u8]) -> String {
    use sha2::Digest as _;
    hex(&sha2::Sha256::digest(path)[..16])
}

/// A path that the tables hold.
pub(crate) fn path_from(text: &str, what: &'static str) -> Result<RelPath, CatalogError> {
    RelPath::from_text(text).ok_or(CatalogError::Damaged { what })
}

/// A directory and a name that the tables hold, as one path.
pub(crate) fn place_from(dir: &str, name: &str) -> Result<RelPath, CatalogError> {
    const DAMAGED: CatalogError = CatalogError::Damaged { what: "file name" };
    let name = decode(name).ok_or(DAMAGED)?;
    match name.is_empty() {
        // A problem of the directory itself.
        true => path_from(dir, "directory"),
        false => path_from(dir, "directory")?.child(&name).ok_or(DAMAGED),
    }
}

pub(crate) fn item_from(text: &str) -> Result<ItemId, CatalogError> {
    ItemId::new(text).map_err(|_| CatalogError::Damaged { what: "item id" })
}

fn read_folder(row: &Row) -> Result<Folder, CatalogError> {
    let path = decode(&row.text(1)?).ok_or(CatalogError::Damaged { what: "folder" })?;
    let known = row.integer(3)? != 0;
    let identity = DirIdentity {
        device: row.integer(4)?.cast_unsigned(),
        inode: row.integer(5)?.cast_unsigned(),
    };
    Ok(Folder {
        id: FolderId(row.text(0)?.into()),
        path: Path::new(std::ffi::OsStr::from_bytes(&path)).to_owned(),
        active: row.integer(2)? != 0,
        identity: known.then_some(identity),
    })
}

fn read_revision(row: &Row, first: usize) -> Result<Revision, CatalogError> {
    Ok(Revision {
        size: row.integer(first)?.cast_unsigned(),
        mtime_ns: row.integer(first + 1)?,
        inode: row.integer(first + 2)?.cast_unsigned(),
        device: row.integer(first + 3)?.cast_unsigned(),
    })
}

pub(crate) fn read_file(row: &Row) -> Result<KnownFile, CatalogError> {
    let folder = FolderId(row.text(2)?.into());
    Ok(KnownFile {
        id: PartId(Arc::from(row.text(0)?)),
        item: item_from(&row.text(1)?)?,
        place: Place {
            folder,
            path: place_from(&row.text(3)?, &row.text(4)?)?,
        },
        mount: path_from(&row.text(5)?, "mount point")?,
        remembered: Remembered {
            revision: read_revision(row, 6)?,
            sample: row.text(10)?,
        },
        stamp: row.integer(11)?,
        reader: row.integer(12)?,
        missing: row.integer(13)? != 0,
        key: row.text(14)?,
    })
}

fn read_problem(row: &Row) -> Result<KnownProblem, CatalogError> {
    Ok(KnownProblem {
        path: place_from(&row.text(0)?, &row.text(1)?)?,
        revision: read_revision(row, 2)?,
        reader: row.integer(6)?,
        reason: Reason::from_text(&row.text(7)?),
        attempts: u32::try_from(row.integer(8)?).unwrap_or(u32::MAX),
        looked: Timestamp::from_micros(row.integer(9)?),
    })
}

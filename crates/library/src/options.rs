//! How a library is set up, and why it may not start.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ether_store::MigrateError;
use ether_types::NodeId;

use crate::catalog::CatalogError;

/// Folders that one library may have.
const MAX_FOLDERS: usize = 256;

/// How a library is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folders, in the order they are shown. They need not exist.
    pub folders: Vec<PathBuf>,
    /// Where the directory `pictures` is made.
    pub data_dir: PathBuf,
    /// Whose folders these are.
    pub node: NodeId,
    /// How long a file must not have changed before it is read.
    pub settle: Duration,
    /// The time between two scans of everything; they find what no event tells.
    pub rescan: Duration,
    /// How long it must be quiet after a change before it is looked at.
    pub debounce: Duration,
    /// How long a file that is gone is remembered, with the positions of its item.
    pub grace: Duration,
    /// Whether changes are watched for between scans.
    pub watch: bool,
    /// Files that are examined at once, at least 1.
    pub examiners: usize,
    /// Bytes that pictures may take.
    pub picture_bytes: u64,
    /// Width of the pictures, in pixels.
    pub picture_width: u32,
}

impl Options {
    /// The usual settings for `folders` of `node`.
    pub fn new(node: NodeId, data_dir: PathBuf, folders: Vec<PathBuf>) -> Self {
        Self {
            folders,
            data_dir,
            node,
            settle: Duration::from_secs(3),
            rescan: Duration::from_secs(15 * 60),
            debounce: Duration::from_millis(500),
            grace: Duration::from_secs(30 * 24 * 3600),
            watch: true,
            examiners: 2,
            picture_bytes: 512 << 20,
            picture_width: 480,
        }
    }
}

/// Why a library did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Too many folders.
    #[error("a library has at most {MAX_FOLDERS} folders, not {0}")]
    TooManyFolders(usize),
    /// A folder's path is empty, or the current directory is needed and cannot be had.
    #[error("the folder {path:?} is no path: {source}")]
    Folder {
        /// What was given.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The directory for pictures cannot be made.
    #[error("the directory {path:?} cannot be made: {source}")]
    Pictures {
        /// Which directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The tables cannot be brought to this version.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// The tables.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// Absolute paths without repetitions; nothing is looked up.
pub(crate) fn normalized(folders: &[PathBuf]) -> Result<Vec<PathBuf>, StartError> {
    if folders.len() > MAX_FOLDERS {
        return Err(StartError::TooManyFolders(folders.len()));
    }
    let mut paths: Vec<PathBuf> = Vec::with_capacity(folders.len());
    for folder in folders {
        let path = std::path::absolute(folder).map_err(|source| StartError::Folder {
            path: folder.clone(),
            source,
        })?;
        // Spells "/films/" and "/films" alike.
        let path: PathBuf = path.components().collect();
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    Ok(paths)
}

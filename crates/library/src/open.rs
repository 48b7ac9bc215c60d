//! Opening a film for someone who plays it: the file must lie beneath its folder, behind no symbolic link,
//! and be the one that the facts describe.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::catalog::{CatalogError, KnownFile};
use crate::model::Opened;
use crate::name::shown;
use crate::problem::Reason;
use crate::revision::sample;
use crate::scan::{ScanError, Scanner, is_mounted};
use crate::tree::{Root, absent};

/// How long a viewer waits for a file to be opened.
const VIEWERS_PATIENCE: Duration = Duration::from_secs(15);

/// Why an item's file is not to be had.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such item or part, or it is not listed.
    #[error("there is no such item in the library")]
    NoSuchItem,
    /// The folder, or the disk or share it is on, is not there now.
    #[error("the folder {folder} is not there now: mount its disk or share again")]
    FolderMissing {
        /// The folder's path, made printable.
        folder: String,
    },
    /// The file is not where it was. A scan was asked for.
    #[error("the file {file} is not there any more")]
    Gone {
        /// The file's path below its folder, made printable.
        file: String,
    },
    /// The file is not the one that is known. A scan was asked for.
    #[error("the file {file} has changed: try again once it was scanned")]
    Changed {
        /// The file's path below its folder, made printable.
        file: String,
    },
    /// The operating system does not give it out.
    #[error("the file {file}: {reason}")]
    Unreadable {
        /// The file's path below its folder, made printable.
        file: String,
        /// Why.
        reason: Reason,
    },
    /// The library is closing.
    #[error("the library is closing")]
    Closing,
    /// The database.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl From<ScanError> for OpenError {
    fn from(error: ScanError) -> Self {
        match error {
            ScanError::Stopped | ScanError::Silent => OpenError::Closing,
            ScanError::Catalog(error) => OpenError::Catalog(error),
        }
    }
}

/// Where a known file lies.
pub(crate) async fn whereabouts(
    scanner: &Scanner,
    known: &KnownFile,
) -> Result<(PathBuf, PathBuf), OpenError> {
    let folders = scanner.catalog.folders().await?;
    let folder = folders
        .into_iter()
        .find(|f| f.id == known.place.folder)
        .ok_or(OpenError::NoSuchItem)?;
    let path = known.place.path.beneath(&folder.path);
    Ok((folder.path, path))
}

/// Opens `known` and checks that it is the file that is known.
///
/// Cancelling this closes what it opened.
pub(crate) async fn open_known(scanner: &Arc<Scanner>, known: &KnownFile) -> Result<Opened, OpenError> {
    let (folder, path) = whereabouts(scanner, known).await?;
    let file = known.place.path.to_string();
    let (at, mount) = (known.place.path.clone(), known.mount.clone());
    let before = known.remembered.clone();
    let shown_folder = shown(std::os::unix::ffi::OsStrExt::as_bytes(folder.as_os_str()));
    let opened = scanner
        .on_disk(
            &known.place.folder,
            VIEWERS_PATIENCE,
            move || -> Result<_, Step> {
                let root = Root::open(&folder).map_err(Step::Folder)?;
                let opened = root.open_file(&at);
                match opened {
                    // Some filesystems number a file anew whenever they like.
                    Ok((file, now))
                        if now.same_clock(&before.revision) && now.inode != before.revision.inode =>
                    {
                        let same = sample(&file, now.size).map_err(Step::File)? == before.sample;
                        Ok((file, now, same))
                    }
                    Ok((file, now)) => Ok((file, now, now.same_file(&before.revision))),
                    Err(error) if absent(&error) && !is_mounted(&root, &mount).unwrap_or(false) => {
                        Err(Step::Folder(error))
                    }
                    Err(error) => Err(Step::File(error)),
                }
            },
        )
        .await;
    let opened = match opened {
        Err(ScanError::Silent) => {
            let reason = Reason::Silent;
            return Err(OpenError::Unreadable { file, reason });
        }
        opened => opened?,
    };
    let look_again = || {
        let parent = known.place.path.parent().unwrap_or_default();
        scanner.marks.shallow(&known.place.folder, parent);
    };
    match opened {
        Ok((opened, revision, true)) => Ok(Opened {
            file: Arc::new(opened),
            path,
            revision,
            item: known.item.clone(),
            part: known.id.clone(),
            changestamp: known.stamp.unsigned_abs(),
            name: shown(known.place.path.name()),
        }),
        Ok(_) => {
            look_again();
            Err(OpenError::Changed { file })
        }
        Err(Step::Folder(error)) if absent(&error) => Err(OpenError::FolderMissing { folder: shown_folder }),
        Err(Step::File(error)) if absent(&error) || error.kind() == io::ErrorKind::InvalidInput => {
            look_again();
            Err(OpenError::Gone { file })
        }
        Err(Step::Folder(error) | Step::File(error)) => Err(OpenError::Unreadable {
            file,
            reason: Reason::from_io(&error),
        }),
    }
}

enum Step {
    Folder(io::Error),
    File(io::Error),
}

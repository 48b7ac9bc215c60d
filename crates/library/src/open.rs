//! Opening a film for someone who plays it: the file must lie beneath its folder, behind no symbolic link,
//! and be the one that the facts describe.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::catalog::{CatalogError, KnownFile};
use crate::model::{Opened, Sidecar};
use crate::name::{RelPath, shown};
use crate::problem::Reason;
use crate::revision::sample;
use crate::scan::{ScanError, Scanner, is_mounted};
use crate::sieve::{self, Sieved};
use crate::tree::{EntryKind, Root, absent};
use crate::watch::NoWatch;

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

/// The files beside `known` that go with it by their name.
pub(crate) async fn sidecars(scanner: &Arc<Scanner>, known: &KnownFile) -> Result<Vec<Sidecar>, OpenError> {
    let (folder, _) = whereabouts(scanner, known).await?;
    let film = known.place.path.clone();
    let found = scanner
        .on_disk(
            &known.place.folder,
            VIEWERS_PATIENCE,
            move || -> io::Result<Vec<Sidecar>> {
                let root = Root::open(&folder)?;
                let listing = root.list(&film.parent().unwrap_or_default(), &NoWatch)?;
                let beside = listing.entries.into_iter().filter_map(|entry| match entry.kind {
                    EntryKind::File(revision) => sidecar(&film, &entry.path, revision.size, &folder),
                    _ => None,
                });
                let mut beside: Vec<Sidecar> = beside.collect();
                beside.sort_by(|a, b| a.name.cmp(&b.name));
                Ok(beside)
            },
        )
        .await;
    // A directory that cannot be read has no sidecars to offer; playing the film says the rest.
    match found {
        Ok(found) => Ok(found.unwrap_or_default()),
        Err(ScanError::Silent) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

fn sidecar(film: &RelPath, path: &RelPath, size: u64, folder: &std::path::Path) -> Option<Sidecar> {
    if sieve::file(path.name(), size) != Sieved::Sidecar {
        return None;
    }
    let suffix = sieve::suffix(path.name())?;
    let stem = |name: &[u8]| {
        name.iter()
            .rposition(|b| *b == b'.')
            .map_or(name.len(), |dot| dot)
    };
    let film_stem = &film.name()[..stem(film.name())];
    let own_stem = &path.name()[..stem(path.name())];
    let tags = own_stem.strip_prefix(film_stem)?;
    if !tags.is_empty() && !tags.starts_with(b".") {
        return None;
    }
    Some(Sidecar {
        path: path.beneath(folder),
        name: shown(path.name()),
        suffix,
        tags: tags
            .split(|b| *b == b'.')
            .filter(|t| !t.is_empty())
            .map(shown)
            .collect(),
        size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecar_belongs_to_the_film_whose_name_it_begins_with() {
        let film = RelPath::from_text("d/The Film.mkv").unwrap();
        let of = |name: &str| {
            let path = RelPath::from_text("d").unwrap().child(name.as_bytes()).unwrap();
            sidecar(&film, &path, 100, std::path::Path::new("/m")).map(|s| (s.suffix, s.tags))
        };
        assert_eq!(of("The Film.srt"), Some(("srt".into(), vec![])));
        assert_eq!(
            of("The Film.en.forced.srt"),
            Some(("srt".into(), vec!["en".into(), "forced".into()]))
        );
        assert_eq!(of("The Film 2.srt"), None);
        assert_eq!(of("The Film.mkv"), None);
    }
}

//! One file that is new or changed: which one is it, and what is in it.

use std::fs::File;
use std::io;
use std::sync::Arc;

use ether_media::Facts;

use crate::catalog::KnownProblem;
use crate::judge::{Candidate, Placement, Remembered, place};
use crate::model::{FolderId, Place, Summary};
use crate::name::RelPath;
use crate::problem::Reason;
use crate::reader::ReadFailure;
use crate::record::{Finding, Media, Origin, ReadFacts};
use crate::revision::{Revision, sample};
use crate::scan::{PATIENCE, ScanError, Scanner, Surroundings};
use crate::tree::{Root, absent};

/// What is to be examined.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) place: Place,
    pub(crate) mount: RelPath,
    /// What the directory says of it.
    pub(crate) listed: Revision,
    /// What is remembered to be wrong with this revision.
    pub(crate) known: Option<KnownProblem>,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Examined {
    /// Findings to be written; `read` where the file's streams had to be read.
    Found { findings: Vec<Finding>, read: bool },
    /// The file changed meanwhile.
    Changing { place: Place, revision: Revision },
    /// The library is closing.
    Stopped,
}

/// Examines one file. Nothing is written here.
pub(crate) async fn examine(
    scanner: &Arc<Scanner>,
    root: Arc<Root>,
    subject: Subject,
    around: &Surroundings,
) -> Result<Examined, ScanError> {
    let reader = scanner.reader.version();
    let nothing = Examined::Found {
        findings: Vec::new(),
        read: false,
    };
    let opened = scanner
        .on_disk(&subject.place.folder, PATIENCE, {
            let path = subject.place.path.clone();
            move || -> io::Result<_> {
                let (file, revision) = root.open_file(&path)?;
                let sample = sample(&file, revision.size)?;
                Ok((Arc::new(file), Remembered { revision, sample }))
            }
        })
        .await?;
    let problem = |revision: Revision, reason: Reason| Finding::Problem {
        place: subject.place.clone(),
        revision,
        withdraw: reason.is_about_content(),
        reason,
        attempts: subject.known.as_ref().map_or(0, |k| k.attempts.saturating_add(1)),
        reader,
    };
    let (file, found) = match opened {
        Ok(opened) => opened,
        // Gone, or replaced by something else, since it was listed: the next look tells.
        Err(error) if absent(&error) || error.kind() == io::ErrorKind::InvalidInput => return Ok(nothing),
        Err(error) => {
            let reason = Reason::from_io(&error);
            // Tried at every scan, written down once.
            let findings = match subject.known.as_ref().is_some_and(|k| k.reason == reason) {
                true => Vec::new(),
                false => vec![problem(subject.listed, reason)],
            };
            return Ok(Examined::Found {
                findings,
                read: false,
            });
        }
    };
    let here = scanner.catalog.at(&subject.place).await?;
    let mut candidates = Vec::new();
    for file in scanner.catalog.alike(&found).await? {
        if file.place != subject.place {
            let gone = scanner
                .is_gone(&file, (&subject.place, found.revision), around)
                .await?;
            candidates.push(Candidate {
                id: (file.id, file.place.folder, file.key, file.reader),
                remembered: file.remembered,
                gone,
            });
        }
    }
    let placement = place(here.as_ref().map(|h| &h.remembered), &found, &candidates);
    let (origin, same_bytes, read_by) = match placement {
        Placement::New => (Origin::New, false, None),
        Placement::Moved { from, same_bytes } => {
            let (file, was, key, read_by) = from;
            (Origin::Moved { file, was, key }, same_bytes, Some(read_by))
        }
        Placement::Same | Placement::Changed => match here {
            Some(here) => (
                Origin::Here(here.id),
                placement == Placement::Same,
                Some(here.reader),
            ),
            None => (Origin::New, false, None),
        },
    };
    let facts = match same_bytes && read_by == Some(reader) {
        true => None,
        false => match read(scanner, &file).await {
            Ok(facts) => match Summary::of(&facts) {
                Some(summary) => Some(ReadFacts {
                    facts,
                    summary,
                    reader,
                    changed: !same_bytes,
                }),
                None => {
                    let findings = vec![problem(found.revision, Reason::NothingToPlay)];
                    return Ok(Examined::Found { findings, read: true });
                }
            },
            Err(ReadFailure::Stopped) if scanner.stop.is_cancelled() => return Ok(Examined::Stopped),
            // Others are closing before this library does: nothing is known, and nothing is said.
            Err(ReadFailure::Stopped) => return Ok(nothing),
            // What was known of these very bytes is better than nothing.
            Err(ReadFailure::Problem(reason)) if same_bytes && reason.is_passing() => None,
            Err(ReadFailure::Problem(reason)) => {
                if let Some(revision) = changed_since(scanner, &subject.place.folder, &file, &found).await? {
                    return Ok(Examined::Changing {
                        place: subject.place,
                        revision,
                    });
                }
                let findings = vec![problem(found.revision, reason)];
                return Ok(Examined::Found { findings, read: true });
            }
        },
    };
    if let Some(revision) = changed_since(scanner, &subject.place.folder, &file, &found).await? {
        return Ok(Examined::Changing {
            place: subject.place,
            revision,
        });
    }
    let read = facts.is_some();
    let media = Media {
        place: subject.place,
        mount: subject.mount,
        found,
        origin,
        facts,
    };
    Ok(Examined::Found {
        findings: vec![Finding::Media(Box::new(media))],
        read,
    })
}

/// Reads the facts. Readers bound themselves, except where a share lets them wait for ever.
async fn read(scanner: &Arc<Scanner>, file: &Arc<File>) -> Result<Facts, ReadFailure> {
    tokio::select! {
        biased;
        read = scanner.reader.facts(Arc::clone(file)) => read,
        () = scanner.clock.sleep(PATIENCE) => Err(ReadFailure::Problem(Reason::TimedOut)),
    }
}

/// The revision that the open file has now, where it is another one than was found.
async fn changed_since(
    scanner: &Arc<Scanner>,
    folder: &FolderId,
    file: &Arc<File>,
    found: &Remembered,
) -> Result<Option<Revision>, ScanError> {
    let file = Arc::clone(file);
    let before = found.revision;
    scanner
        .on_disk(folder, PATIENCE, move || {
            Revision::of(&file).ok().filter(|now| !now.same_file(&before))
        })
        .await
}

//! What the library tells: items, their files, its folders and what is wrong with them.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use ether_media::{Container, Facts, Gap, Rotation};
use ether_types::{ItemId, Timestamp};

use crate::name::RelPath;
use crate::problem::Reason;
use crate::revision::Revision;

/// One owner's file of an item, as direct play addresses it. Opaque and random.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId(pub(crate) Arc<str>);

/// A text that is no part identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a part identity has 32 hexadecimal digits")]
pub struct InvalidPartId;

impl PartId {
    /// The identity as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PartId {
    type Err = InvalidPartId;

    fn from_str(text: &str) -> Result<Self, InvalidPartId> {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        match text.len() == 32 && text.bytes().all(hex) {
            true => Ok(Self(text.into())),
            false => Err(InvalidPartId),
        }
    }
}

impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who watches: 1 to 128 letters, digits, `-`, `_` and `.`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Viewer(Arc<str>);

/// A text that names no viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a viewer has 1 to 128 letters, digits, '-', '_' and '.'")]
pub struct InvalidViewer;

impl Viewer {
    /// The person who runs this server.
    pub fn owner() -> Self {
        Self("owner".into())
    }

    /// The viewer as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Viewer {
    type Err = InvalidViewer;

    fn from_str(text: &str) -> Result<Self, InvalidViewer> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        match (1..=128).contains(&text.len()) && text.bytes().all(allowed) {
            true => Ok(Self(text.into())),
            false => Err(InvalidViewer),
        }
    }
}

/// What an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It has moving pictures.
    Film,
    /// It has sound and no moving pictures.
    Music,
}

impl Kind {
    /// The kind as a stable word.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Film => "film",
            Kind::Music => "music",
        }
    }
}

/// What a list shows of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Opaque and random; it survives restarts, renames and the absence of its folder.
    pub id: ItemId,
    /// From the file's name.
    pub title: String,
    /// The file's path below its folder, made printable.
    pub file: String,
    /// The folder's path, made printable.
    pub folder: String,
    /// Film or music.
    pub kind: Kind,
    /// Length in milliseconds, where known.
    pub duration_ms: Option<u64>,
    /// Width of the film as it is shown, before its sample aspect ratio, in pixels.
    pub width: Option<u32>,
    /// Height of the film as it is shown, in pixels.
    pub height: Option<u32>,
    /// FFmpeg's name of the film's codec.
    pub video: Option<String>,
    /// FFmpeg's name of the sound's codec.
    pub audio: Option<String>,
    /// FFmpeg's name of the container.
    pub container: String,
    /// When the item was first seen.
    pub added: Timestamp,
    /// Where the viewer left off, in milliseconds; zero where they never began.
    pub position_ms: u64,
    /// The viewer has seen it to its end.
    pub finished: bool,
    /// Whether there is a picture, or one may still be made.
    pub picture: PictureState,
    /// What a viewer may notice, in words.
    pub warnings: Vec<String>,
}

/// Whether an item has a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureState {
    /// Not made yet.
    Wanted,
    /// Made.
    Ready,
    /// It could not be made from this revision of the file.
    Failed,
}

/// An item with everything that playing it needs.
#[derive(Clone, Debug)]
pub struct Detail {
    /// What a list shows of it.
    pub item: Item,
    /// Everything known of its file.
    pub facts: Arc<Facts>,
    /// The file for direct play.
    pub part: PartId,
    /// Changes whenever the file's bytes do; never repeats for one part.
    pub changestamp: u64,
    /// Where the file is. It is opened through [`crate::Library::open`], which checks it.
    pub path: PathBuf,
    /// The state of the file that the facts describe.
    pub revision: Revision,
}

/// A file that was opened and found to be the one that is known.
#[derive(Debug)]
pub struct Opened {
    /// The open file; reading it is safe whatever happens to its path.
    pub file: Arc<File>,
    /// Where it lies, for a process that cannot take a descriptor.
    pub path: PathBuf,
    /// Its state when it was opened; compare with [`Revision::of`] later.
    pub revision: Revision,
    /// The item it belongs to.
    pub item: ItemId,
    /// The file's identity.
    pub part: PartId,
    /// The file's stamp.
    pub changestamp: u64,
    /// The file's own name, made printable.
    pub name: String,
}

/// A subtitle file beside a film that goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sidecar {
    /// Its number among the film's tracks: [`SIDECARS_FROM`] or more, so that it is never that of a stream, and
    /// the same for as long as its name is.
    pub number: u32,
    /// Its name, made printable.
    pub name: String,
    /// Its suffix in lower case (`srt`, `vtt`, …).
    pub suffix: String,
    /// Its language, as its name has it.
    pub language: Option<String>,
    /// What else its name says, for people.
    pub title: Option<String>,
    /// Only what is said in other languages, and signs.
    pub forced: bool,
    /// For the hard of hearing.
    pub hearing_impaired: bool,
    /// Its state.
    pub revision: Revision,
    pub(crate) path: RelPath,
}

/// The least number of a subtitle file beside a film; streams of films have lower ones.
pub const SIDECARS_FROM: u32 = 10_000;

/// One page of the shelf.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The items, in the order of their titles.
    pub items: Vec<Item>,
    /// Whether more follow the last of them.
    pub more: bool,
}

/// How a folder is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderStatus {
    /// Its path, made printable.
    pub path: String,
    /// Whether its films can be reached.
    pub state: FolderState,
}

/// Whether a folder's films can be reached. In every state its items stay listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FolderState {
    /// Not looked at since the start.
    #[error("it has not been looked at yet")]
    Unseen,
    /// It is there.
    #[error("it is there")]
    Present,
    /// There is nothing at its path.
    #[error("the folder does not exist: create it, mount its disk, or correct --media")]
    Missing,
    /// Something is at its path that is not the folder that was there before.
    #[error(
        "another directory stands in its place, most likely because its disk or share is not mounted; its films are kept"
    )]
    Doubtful,
    /// It cannot be read.
    #[error("{0}")]
    Unreadable(Reason),
    /// It is the same directory as another one that was given.
    #[error("it is the same directory as {0}, which was given as well")]
    Duplicate(String),
}

/// Something in a folder that is not offered, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its path below the folder, made printable; empty for the folder itself.
    pub file: String,
    /// The folder's path, made printable.
    pub folder: String,
    /// Why.
    pub reason: Reason,
}

/// How far a scan is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Files met that could be media.
    pub seen: u64,
    /// How many of them are dealt with.
    pub done: u64,
    /// How many had to be read, which is what takes time.
    pub read: u64,
    /// Subtitles, pictures and descriptions met; they belong to films and are no problems.
    pub sidecars: u64,
}

/// Whether changes are noticed as they happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Watching {
    /// Every directory is watched.
    #[error("changes are noticed as they happen")]
    Complete,
    /// The system's limit of watches was reached; the rest is found by the periodic scans.
    #[error(
        "the system's limit of watched directories is reached: changes are noticed at the next scan; \
         raise fs.inotify.max_user_watches"
    )]
    LimitReached,
    /// There is no watching here.
    #[error("changes are noticed at the next scan: {0}")]
    Unavailable(String),
    /// It was switched off.
    #[error("watching is switched off: changes are noticed at the next scan")]
    Off,
}

/// What the library is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// A scan runs, or is about to.
    pub scanning: bool,
    /// How far the running scan is; the last one where none runs.
    pub progress: Progress,
    /// The folders, in the order they were given.
    pub folders: Vec<FolderStatus>,
    /// Files that are still being written.
    pub restless: usize,
    /// Whether changes are noticed as they happen.
    pub watching: Watching,
    /// Why the last scan could not be kept, where it could not; it is tried again.
    pub trouble: Option<String>,
    /// Grows with every change of what [`crate::Library::list`] answers, positions aside.
    pub version: u64,
    /// The last request whose scan is finished; see [`crate::Library::finished`].
    pub finished: u64,
    /// Background work (keyframes, pictures) that waits or runs.
    pub chores: bool,
}

/// What the database keeps of facts beside the facts, so that lists need not read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) kind: Kind,
    pub(crate) duration_ms: Option<i64>,
    pub(crate) width: Option<i64>,
    pub(crate) height: Option<i64>,
    pub(crate) video: Option<String>,
    pub(crate) audio: Option<String>,
    pub(crate) container: String,
    pub(crate) warnings: Vec<String>,
    pub(crate) needs_index: bool,
}

impl Summary {
    /// What to show of `facts`; `None` where there is nothing to play.
    pub(crate) fn of(facts: &Facts) -> Option<Self> {
        let video = facts.main_video();
        let audio = facts.main_audio();
        let kind = match (video, audio) {
            (Some(_), _) => Kind::Film,
            (None, Some(_)) => Kind::Music,
            (None, None) => return None,
        };
        let picture = video.and_then(|v| v.video());
        let turned = |r: Rotation| !r.degrees.is_multiple_of(180);
        let size = picture.map(|v| match turned(v.rotation) {
            true => (v.height, v.width),
            false => (v.width, v.height),
        });
        Some(Self {
            kind,
            duration_ms: facts.playing_time().map(|d| d.as_millis().max(0)),
            width: size.map(|(w, _)| i64::from(w)),
            height: size.map(|(_, h)| i64::from(h)),
            video: video.map(|v| clean(v.codec.as_str())),
            audio: audio.map(|a| clean(a.codec.as_str())),
            container: container_name(&facts.container),
            warnings: facts
                .gaps
                .iter()
                .filter_map(|gap| warning(gap, facts.size))
                .collect(),
            needs_index: facts.gaps.iter().any(|gap| matches!(gap, Gap::Keyframes { .. })),
        })
    }
}

fn clean(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}

fn container_name(container: &Container) -> String {
    match container {
        Container::Mp4 => "mp4".to_owned(),
        Container::Matroska => "matroska".to_owned(),
        Container::Webm => "webm".to_owned(),
        Container::MpegTs => "mpegts".to_owned(),
        Container::Other(name) => clean(name),
    }
}

fn warning(gap: &Gap, size: u64) -> Option<String> {
    match gap {
        Gap::Duration => Some("Its length is not known for sure.".to_owned()),
        Gap::Truncated { expected } => {
            let percent = u128::from(size) * 100 / u128::from(*expected).max(1);
            Some(format!(
                "The file is not whole: it has {percent} % of its bytes and ends early."
            ))
        }
        Gap::CodecConfig { index } => Some(format!(
            "Stream {index} lacks what a decoder needs to know; it may not play."
        )),
        Gap::Times { index } => Some(format!(
            "The times of stream {index} are damaged; it is left out."
        )),
        // Filled in by the background scan; until then it costs encoding and no viewer.
        Gap::Keyframes { .. } => None,
    }
}

/// A file's place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) folder: FolderId,
    pub(crate) path: RelPath,
}

/// A folder's identity in the database.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FolderId(pub(crate) Arc<str>);

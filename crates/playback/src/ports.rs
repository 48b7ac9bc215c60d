//! What a playback needs from the rest of a node: its library, its viewer tokens and its capacity.
//!
//! Each port is small and says what it promises; `node` joins it with whoever keeps the promise. The encoder
//! is the fourth port and lives in `ether_encoder`, because two crates implement it.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ether_encoder::{BoxFuture, Retirement, Revision};
use ether_media::Facts;
use ether_media::subtitles::{Form, Line, Track};
use ether_types::{BudgetView, ItemId, Monotonic, PlaybackId, Timestamp};
use serde::Serialize;

/// The films and songs of this node, where people left off in them, and how the folders are doing.
///
/// Every future may be dropped at any time; a change it was making is then either made or not.
pub trait Library: Send + Sync {
    /// One page of the items, in an order that stays the same while nothing changes, with the state of the
    /// folders.
    ///
    /// # Errors
    /// [`LibraryError::Unavailable`].
    fn list(&self, page: Page) -> BoxFuture<'_, Result<Listing, LibraryError>>;

    /// One item with everything that is needed to play it.
    ///
    /// # Errors
    /// [`LibraryError::NoSuchItem`] and [`LibraryError::Unavailable`].
    fn item(&self, id: ItemId) -> BoxFuture<'_, Result<ItemDetail, LibraryError>>;

    /// The item's picture; `None` where there is none and none can be made.
    ///
    /// # Errors
    /// [`LibraryError::NoSuchItem`] and [`LibraryError::Unavailable`].
    fn picture(&self, id: ItemId) -> BoxFuture<'_, Result<Option<Picture>, LibraryError>>;

    /// Opens the item's file, as long as it is the one that `item` describes and lies beneath its folder behind
    /// no link. What opened is closed where the answer is not taken.
    ///
    /// # Errors
    /// [`OpenError`].
    fn open<'a>(&'a self, item: &'a ItemDetail) -> BoxFuture<'a, Result<Arc<File>, OpenError>>;

    /// Remembers where the item was left.
    ///
    /// # Errors
    /// [`LibraryError::NoSuchItem`] and [`LibraryError::Unavailable`].
    fn set_position(&self, id: ItemId, position: Position) -> BoxFuture<'_, Result<(), LibraryError>>;

    /// Asks for a scan of every folder and returns at once; a scan that runs already is enough.
    ///
    /// # Errors
    /// [`LibraryError::Unavailable`].
    fn rescan(&self) -> BoxFuture<'_, Result<(), LibraryError>>;
}

/// Why the library gives no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// It has no such item, or no longer.
    #[error("there is no item {item}")]
    NoSuchItem {
        /// What was asked for.
        item: ItemId,
    },
    /// It cannot be read or written now; asking again later may help.
    #[error("the library cannot be reached now")]
    Unavailable,
}

/// Why the file behind an item is not given out. None of them names a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The folder is not there, as an unmounted share is not. Its items are kept.
    #[error("the folder {folder} is not there now")]
    FolderMissing {
        /// The folder's name.
        folder: String,
    },
    /// It is not the file that was promised.
    #[error("{file} was changed since it was found")]
    Changed {
        /// The file's path below its folder.
        file: String,
    },
    /// It is not there, or something else is in its place: a link, for one.
    #[error("{file} is not there any more")]
    Gone {
        /// The file's path below its folder.
        file: String,
    },
    /// It cannot be read.
    #[error("{file} cannot be read: {reason}")]
    Unreadable {
        /// The file's path below its folder.
        file: String,
        /// Why, for people.
        reason: String,
    },
    /// Not now.
    #[error(transparent)]
    Library(#[from] LibraryError),
}

/// Which part of the list is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// At most this many items; at least one.
    pub limit: usize,
    /// Begins after this item; from the first where absent. An item that is gone gives an empty page.
    pub after: Option<ItemId>,
}

/// One page of the library.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listing {
    /// The items of the page.
    pub items: Vec<ItemSummary>,
    /// Whether a scan runs now.
    pub scanning: bool,
    /// How far the running or the last scan came.
    pub progress: ScanProgress,
    /// The folders that were named at start.
    pub folders: Vec<FolderStatus>,
    /// Files that are not in the list, and why; bounded by whoever answers.
    pub problems: Vec<Problem>,
}

/// How far a scan came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScanProgress {
    /// Files found so far.
    pub seen: u64,
    /// Files of these whose facts are known.
    pub done: u64,
}

/// How one folder is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FolderStatus {
    /// What it is called: the end of its path, as much of it as tells it from the others.
    pub name: String,
    /// Its path as the owner gave it; for the owner alone.
    pub path: String,
    /// Whether it can be read.
    pub state: FolderState,
    /// Why it cannot, for people.
    pub reason: Option<String>,
}

/// Whether a folder can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FolderState {
    /// It can.
    Ok,
    /// It is not there, as an unmounted share is not; its items are kept.
    Missing,
    /// It is there and cannot be read.
    Unreadable,
}

/// A file that is not in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file's path below its folder, made printable.
    pub file: String,
    /// The folder's name.
    pub folder: String,
    /// Why, for people.
    pub reason: String,
    /// Why, for programs: a short word that does not change.
    pub code: String,
}

/// What kind of thing an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ItemKind {
    /// It has moving pictures.
    Film,
    /// It has sound alone.
    Music,
}

/// One item as a list shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ItemSummary {
    /// Its identity.
    pub id: ItemId,
    /// Its title.
    pub title: String,
    /// The file's path below its folder, made printable.
    pub file: String,
    /// The folder's name.
    pub folder: String,
    /// Milliseconds, where known.
    pub duration_ms: Option<u64>,
    /// Width of the main picture in pixels.
    pub width: Option<u32>,
    /// Height of the main picture in pixels.
    pub height: Option<u32>,
    /// FFmpeg's name of the main picture's codec.
    pub video: Option<String>,
    /// FFmpeg's name of the main sound's codec.
    pub audio: Option<String>,
    /// What kind of thing it is.
    pub kind: ItemKind,
    /// When it was first seen, in microseconds since the Unix epoch.
    pub added_at: Timestamp,
    /// Where it was left, in milliseconds.
    pub position_ms: u64,
    /// Whether it was watched to its end.
    pub finished: bool,
    /// Whether it has a picture, or one may be made when it is asked for.
    #[serde(skip)]
    pub has_picture: bool,
    /// What may not work with it, for people.
    pub warnings: Vec<String>,
}

/// One item with everything that is needed to play it.
#[derive(Clone, Debug)]
pub struct ItemDetail {
    /// What a list shows of it.
    pub summary: ItemSummary,
    /// What is known of the file.
    pub facts: Arc<Facts>,
    /// The file.
    pub path: PathBuf,
    /// The state of the file that the facts were read from.
    pub revision: Revision,
    /// Subtitle files that lie beside it.
    pub sidecars: Vec<Sidecar>,
}

/// A subtitle file that lies beside an item's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sidecar {
    /// Its number among the item's tracks; never that of a stream.
    pub stream: u32,
    /// Its name, made printable.
    pub name: String,
    /// Its language, as its name has it.
    pub language: Option<String>,
    /// What else its name says, for people.
    pub title: Option<String>,
    /// Only what is said in other languages, and signs.
    pub forced: bool,
    /// For the hard of hearing.
    pub hearing_impaired: bool,
}

/// The text tracks of items, out of their files and from beside them, and the fonts that come with them.
///
/// Nothing is read before it is asked for; what is read is kept for whoever asks next.
pub trait Texts: Send + Sync {
    /// Begins to read track `stream` of `item`, joins whoever does, or finds it read. Dropping what it gives
    /// withdraws the interest.
    ///
    /// # Errors
    /// [`TextError`].
    fn open(
        &self,
        item: Arc<ItemDetail>,
        stream: u32,
    ) -> BoxFuture<'_, Result<Box<dyn TextSource>, TextError>>;

    /// The file that is attached to `item` as stream `stream`: a font.
    ///
    /// # Errors
    /// [`TextError`].
    fn font(&self, item: Arc<ItemDetail>, stream: u32) -> BoxFuture<'_, Result<Bytes, TextError>>;
}

/// A track that is being read, or was. Every future may be dropped; nothing is lost by it.
pub trait TextSource: Send {
    /// The whole track.
    ///
    /// # Errors
    /// [`TextError`].
    fn whole(&mut self) -> BoxFuture<'_, Result<Arc<Track>, TextError>>;

    /// Lines that were not given yet, at least one unless the track is at its end.
    ///
    /// # Errors
    /// [`TextError`].
    fn next(&mut self) -> BoxFuture<'_, Result<TextBatch, TextError>>;
}

/// Some lines of a track.
#[derive(Clone, Debug)]
pub struct TextBatch {
    /// How the lines are written; with the first batch at the latest.
    pub form: Option<Form>,
    /// The lines.
    pub lines: Vec<Line>,
    /// Whether they are the last.
    pub complete: bool,
}

/// Why there is no text, or no font.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// There is no such track.
    #[error("there is no such subtitle track: GET /ether/api/items/{{id}} lists those that there are")]
    NoSuchTrack,
    /// The track holds pictures.
    #[error(
        "the subtitle track holds pictures and no text; a session with `subtitle` draws it into the picture"
    )]
    Pictures,
    /// The track is text that cannot be read here.
    #[error(
        "subtitles in the format {format} cannot be read here: put them beside the film as SRT, WebVTT or ASS"
    )]
    Unreadable {
        /// The format.
        format: String,
    },
    /// The file is in another state than was found.
    #[error("the file was changed since the session began: ask for a new one once it was scanned")]
    Changed,
    /// The file is not there any more.
    #[error("the file is not there any more: put it back, or mount its disk or share again")]
    Gone,
    /// It could not be read.
    #[error("the subtitle track could not be read: it may be damaged, and the film plays without it")]
    Failed,
    /// Not now.
    #[error("the subtitle track cannot be read now: ask again soon")]
    Unavailable,
}

/// Where an item was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Milliseconds from the start.
    pub position_ms: u64,
    /// Whether it was watched to its end; absent leaves what is remembered.
    pub finished: Option<bool>,
}

/// A still picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// The encoded picture.
    pub bytes: Bytes,
    /// Its media type.
    pub content_type: &'static str,
}

/// Viewer tokens as they are stored: never a token, only its hash.
pub trait Tokens: Send + Sync {
    /// The viewer whose token has this hash, if it is not revoked.
    ///
    /// # Errors
    /// [`TokensUnavailable`].
    fn find(&self, hash: TokenHash) -> BoxFuture<'_, Result<Option<ViewerId>, TokensUnavailable>>;

    /// Keeps a new viewer's token.
    ///
    /// # Errors
    /// [`TokensUnavailable`]; whether it was kept is then not known, and the token is not given out.
    fn insert(&self, viewer: NewViewer) -> BoxFuture<'_, Result<(), TokensUnavailable>>;

    /// Forgets a viewer's token; forgetting one twice is a success.
    ///
    /// # Errors
    /// [`TokensUnavailable`].
    fn revoke(&self, viewer: ViewerId) -> BoxFuture<'_, Result<(), TokensUnavailable>>;
}

/// The store of tokens cannot be reached now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store of viewer tokens cannot be reached now")]
pub struct TokensUnavailable;

/// SHA-256 of a token's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenHash(pub [u8; 32]);

/// One signed-in device: 128 random bits in hexadecimal, not secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ViewerId(pub String);

/// A viewer to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewViewer {
    /// Its identity.
    pub id: ViewerId,
    /// The hash of its token.
    pub hash: TokenHash,
    /// When it signed in.
    pub created_at: Timestamp,
}

/// The budgets that encoding takes from (D18): taken before an encoder is started and given back only with
/// proof that it ended.
pub trait Capacity: Send + Sync {
    /// What is used, what there is, and who waits.
    fn usage(&self) -> CapacityUsage;

    /// How full it is of what must be remembered, and when it will be full (D15). A book that keeps no such account
    /// answers with nothing.
    fn budgets(&self) -> Vec<BudgetView> {
        Vec::new()
    }

    /// Takes in that the end of what ran on `charge` was asked for and is not proved: its units stay taken, and count
    /// as stranded until [`Capacity::release`].
    fn strand(&self, charge: &Charge) {
        let _ = charge;
    }

    /// Whether `units` could be had at all. Reserves nothing (D17).
    ///
    /// # Errors
    /// The refusal that [`Capacity::reserve`] would give however long it waited.
    fn admits(&self, units: Units) -> Result<(), CapacityRefusal>;

    /// Takes `ask.units` all at once, waiting in a fair queue until `ask.until`.
    ///
    /// Dropping the future leaves the queue; what was granted and not handed over is given back.
    ///
    /// # Errors
    /// [`CapacityRefusal`] with the reason; nothing is then taken.
    fn reserve(&self, ask: Ask) -> BoxFuture<'_, Result<Charge, CapacityRefusal>>;

    /// Gives `charge` back on proof. Repeating a success is a success.
    ///
    /// # Errors
    /// The units stay taken; the caller keeps the charge and the proof and tries again.
    fn release<'a>(&'a self, charge: &'a Charge, proof: &'a Proof)
    -> BoxFuture<'a, Result<(), ReleaseError>>;
}

/// Amounts of each budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Units {
    /// Encoder time of the processor: 1,000 is one 1080p30 encode in real time.
    pub milli_slots: u32,
    /// Encoder time of encoding devices, in the same measure. As a limit, 0 leaves it to the device to say when it is
    /// full.
    pub device_milli_slots: u32,
    /// Scratch space in MiB.
    pub scratch_mib: u32,
}

/// A look at the budgets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CapacityUsage {
    /// Taken now, whatever is still unproved included.
    pub used: Units,
    /// There is this much.
    pub limit: Units,
    /// How many wait.
    pub waiting: u32,
    /// Whether new work is taken.
    pub open: bool,
}

/// A wish for capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// For which playback.
    pub playback: PlaybackId,
    /// How much.
    pub units: Units,
    /// Since when this playback wants it: the queue is served in this order, so that one that was refused
    /// and asks again does not lose its place to a newcomer.
    pub since: Monotonic,
    /// Until when it waits.
    pub until: Monotonic,
}

/// Units taken. Not a copy of anything: one charge is one taking. Dropping it gives nothing back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "capacity comes back only through Capacity::release"]
pub struct Charge {
    /// The taking, in the words of whoever gave it.
    pub id: u64,
    /// How much was taken.
    pub units: Units,
}

/// Proof that nothing runs any more on a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The encoder that ran proved its end.
    Retired(Retirement),
    /// No encoder was ever asked.
    NeverStarted(NeverStarted),
}

/// No `Encoder::start` was called on the charge. Made only by the task that would have called it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeverStarted(());

impl NeverStarted {
    /// Said by the owner of a charge that it never used.
    pub(crate) fn attest() -> Self {
        Self(())
    }
}

/// Why capacity is not had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapacityRefusal {
    /// Every encoder is taken.
    #[error("every encoder is taken ({used} of {limit} milli-slots)")]
    Encoders {
        /// Taken now.
        used: u32,
        /// There are this many.
        limit: u32,
    },
    /// Scratch space is taken.
    #[error("scratch space is taken ({used} of {limit} MiB)")]
    Scratch {
        /// Taken now.
        used: u32,
        /// There are this many.
        limit: u32,
    },
    /// Too many wait already.
    #[error("{waiting} playbacks wait for an encoder already")]
    QueueFull {
        /// How many wait.
        waiting: u32,
    },
    /// This node takes no new work: it is stopping or draining.
    #[error("this server takes no new work: it is stopping")]
    Closed,
    /// The budget is zero: this node encodes nothing.
    #[error("this server has no encoding capacity")]
    None,
    /// The book of capacity cannot be reached or its answer is not known.
    #[error("the book of capacity cannot be reached now")]
    Unavailable,
}

impl CapacityRefusal {
    /// After how long asking again makes sense.
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Encoders { .. } | Self::Scratch { .. } | Self::QueueFull { .. } => Duration::from_secs(2),
            Self::Closed | Self::Unavailable => Duration::from_secs(5),
            Self::None => Duration::from_secs(60),
        }
    }
}

/// Why a release did not go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// The book of capacity cannot be reached, or its answer is not known.
    #[error("whether the capacity was given back is not known")]
    Unavailable,
}

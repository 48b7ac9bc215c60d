//! The library: folders of films, what is in them, and what people have seen of it.
//!
//! [`Library`] scans folders and keeps what it finds in the database: items with opaque random identities,
//! their files, facts, pictures and play positions. How it works:
//!
//! - `walk` reads directories and compares them with what is remembered; `examine` opens what is new or
//!   changed; `judge` decides, without IO, what became of it; `record` writes it down, conditionally.
//! - `keeper` is the one task that scans, driven by `marks` that `watch` (the kernel's events), the clock and
//!   the owner set. `chores` completes keyframes and makes pictures while nobody waits.
//! - `tree` is the only place that touches folders, and never follows a symbolic link out of one.
//!
//! Two rules stand above the rest: nothing is forgotten because it could not be seen, and an item follows
//! its film, not its path.

mod catalog;
mod chores;
mod examine;
mod judge;
mod keeper;
mod library;
mod marks;
mod model;
mod name;
mod open;
mod options;
mod pictures;
mod problem;
mod reader;
mod record;
mod revision;
mod scan;
mod schema;
mod shelf;
mod sidecar;
mod sieve;
mod title;
mod tree;
mod walk;
mod watch;

#[cfg(test)]
mod tests;

pub use catalog::CatalogError;
pub use library::{Library, PictureError};
pub use model::{
    Detail, FolderState, FolderStatus, InvalidPartId, InvalidViewer, Item, Kind, Listing, Opened, PartId,
    PictureState, Problem, Progress, SIDECARS_FROM, Sidecar, Status, Viewer, Watching,
};
pub use open::OpenError;
pub use options::{Options, StartError};
pub use pictures::Picture;
pub use problem::{Reason, SpecialKind};
pub use reader::{BoxFuture, ChoreFailure, MediaReader, ProbeReader, ReadFailure};
pub use revision::Revision;
pub use schema::COMPONENT;

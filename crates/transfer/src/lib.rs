//! Bytes of one state of a file over HTTP: what a request asks for, how it is answered, and how an answer that must
//! end is ended.
//!
//! Everything that hands out bytes does it by the same rules: a range is one range or the whole, a file that changed
//! breaks the answer instead of mixing two states, and a connection whose peer reads nothing can be cut off
//! ([`Cut`]), so that whoever has to prove that nobody reads any more can.

mod buffer;
mod line;
mod range;
mod reader;
mod revision;

pub use buffer::{BUFFER, Buffer};
pub use line::{Cut, HeadLimits, Line};
pub use range::{Answer, Entity, Head, answer, head, http_date};
pub use reader::{DISK_READS, FilePieces};
pub use revision::Revision;

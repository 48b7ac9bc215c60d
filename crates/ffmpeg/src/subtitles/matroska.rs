//! What FFmpeg writes when it is asked for text alone: a Matroska stream whose blocks are lines.
//!
//! One pipe carries any number of tracks, in whole milliseconds and as they are read. Of the format only the few
//! elements are known that hold lines; all others are skipped by their length.

use std::io::{self, Read};

use ether_media::Ticks;
use ether_media::subtitles::{Form, Line};

/// Largest element that is kept in memory: the header of a script, which may hold its fonts.
const LARGEST: u64 = 16 << 20;

const SEGMENT: u32 = 0x1853_8067;
const CLUSTER: u32 = 0x1F43_B675;
const CLUSTER_TIME: u32 = 0xE7;
const SIMPLE_BLOCK: u32 = 0xA3;
const BLOCK_GROUP: u32 = 0xA0;
const BLOCK: u32 = 0xA1;
const BLOCK_DURATION: u32 = 0x9B;
const TRACKS: u32 = 0x1654_AE6B;
const TRACK_ENTRY: u32 = 0xAE;
const TRACK_NUMBER: u32 = 0xD7;
const CODEC_ID: u32 = 0x86;
const CODEC_PRIVATE: u32 = 0x63A2;

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A track begins.
    Track {
        /// Its number, from one.
        number: u64,
        form: Form,
    },
    /// A line of a track.
    Line { number: u64, line: Line },
}

/// Why reading stops early.
#[derive(Debug)]
pub(super) enum Broken {
    /// The pipe.
    Io,
    /// An element is larger than anything that is text.
    TooLarge,
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Broken::Io
    }
}

/// Reads events until the stream ends. A stream that ends within an element ends there.
pub(super) fn read(
    mut input: impl Read,
    comments: impl Fn(u64) -> bool,
    mut event: impl FnMut(Event) -> bool,
) -> Result<(), Broken> {
    let input = &mut input;
    let mut cluster = 0_i64;
    while let Some((id, size)) = header(input)? {
        match id {
            SEGMENT | CLUSTER | TRACKS => {}
            TRACK_ENTRY => {
                let Some(entry) = body(input, size)? else { break };
                let (number, form) = track(&entry, &comments);
                if !event(Event::Track { number, form }) {
                    break;
                }
            }
            CLUSTER_TIME => {
                let Some(value) = body(input, size)? else { break };
                cluster = i64::try_from(unsigned(&value)).unwrap_or(0);
            }
            SIMPLE_BLOCK | BLOCK_GROUP => {
                let Some(group) = body(input, size)? else { break };
                let line = if id == SIMPLE_BLOCK {
                    line(&group, None, cluster)
                } else {
                    grouped(&group, cluster)
                };
                if let Some((number, line)) = line
                    && !event(Event::Line { number, line })
                {
                    break;
                }
            }
            _ => {
                let size = size.ok_or(Broken::TooLarge)?;
                io::copy(&mut input.take(size), &mut io::sink())?;
            }
        }
    }
    Ok(())
}

/// Identity and size of the next element; no size where the writer did not know it yet.
fn header(input: &mut impl Read) -> io::Result<Option<(u32, Option<u64>)>> {
    let Some(first) = byte(input)? else {
        return Ok(None);
    };
    let mut id = u32::from(first);
    for _ in 0..first.leading_zeros().min(3) {
        let Some(next) = byte(input)? else { return Ok(None) };
        id = id << 8 | u32::from(next);
    }
    let Some(first) = byte(input)? else {
        return Ok(None);
    };
    let more = first.leading_zeros().min(7);
    let mut size = u64::from(first) & (0x7f_u64 >> more);
    for _ in 0..more {
        let Some(next) = byte(input)? else { return Ok(None) };
        size = size << 8 | u64::from(next);
    }
    let unknown = (1_u64 << (7 * (more + 1))) - 1;
    Ok(Some((id, Some(size).filter(|size| *size != unknown))))
}

fn byte(input: &mut impl Read) -> io::Result<Option<u8>> {
    let mut byte = [0];
    match input.read_exact(&mut byte) {
        Ok(()) => Ok(Some(byte[0])),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// An element's content; `None` where the stream ends before it does.
fn body(input: &mut impl Read, size: Option<u64>) -> Result<Option<Vec<u8>>, Broken> {
    let size = size.filter(|size| *size <= LARGEST).ok_or(Broken::TooLarge)?;
    let mut body = Vec::new();
    input.take(size).read_to_end(&mut body)?;
    Ok((body.len() as u64 == size).then_some(body))
}

fn unsigned(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// The elements in `bytes`, as far as they are whole.
fn elements(bytes: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (id, size) = header(&mut rest).ok()??;
        let (body, after) = rest.split_at_checked(usize::try_from(size?).ok()?)?;
        rest = after;
        Some((id, body))
    })
}

fn track(entry: &[u8], comments: impl Fn(u64) -> bool) -> (u64, Form) {
    let mut number = 0;
    let (mut codec, mut header) = (&b""[..], &b""[..]);
    for (id, body) in elements(entry) {
        match id {
            TRACK_NUMBER => number = unsigned(body),
            CODEC_ID => codec = body,
            CODEC_PRIVATE => header = body,
            _ => {}
        }
    }
    let form = match codec {
        codec if codec.starts_with(b"D_WEBVTT") => Form::WebVtt,
        _ => Form::Ass {
            header: String::from_utf8_lossy(header).into_owned(),
            comments: comments(number),
        },
    };
    (number, form)
}

fn grouped(group: &[u8], cluster: i64) -> Option<(u64, Line)> {
    let mut block = None;
    let mut duration = None;
    for (id, body) in elements(group) {
        match id {
            BLOCK => block = Some(body),
            BLOCK_DURATION => duration = i64::try_from(unsigned(body)).ok(),
            _ => {}
        }
    }
    line(block?, duration, cluster)
}

/// A block's line and its track.
fn line(block: &[u8], duration: Option<i64>, cluster: i64) -> Option<(u64, Line)> {
    let mut rest = block;
    let first = byte(&mut rest).ok()??;
    let more = first.leading_zeros().min(7);
    let mut number = u64::from(first) & (0x7f_u64 >> more);
    for _ in 0..more {
        number = number << 8 | u64::from(byte(&mut rest).ok()??);
    }
    let (time, payload) = rest.split_first_chunk::<2>()?;
    let (_flags, payload) = payload.split_first()?;
    let start = cluster + i64::from(i16::from_be_bytes(*time));
    let millis = |millis| Ticks::from_timescale(millis, 1_000);
    let line = Line {
        start: millis(start),
        end: duration
            .filter(|length| *length > 0)
            .map(|length| millis(start + length)),
        settings: String::new(),
        body: String::from_utf8_lossy(payload).into_owned(),
    };
    Some((number, line))
}

/// The line as its track's form has it: what stands before it in a block is taken off.
pub(super) fn formed(mut line: Line, form: &Form) -> Line {
    match form {
        // Its number in the order of reading.
        Form::Ass { .. } => {
            if let Some((_, rest)) = line.body.split_once(',') {
                line.body = rest.to_owned();
            }
        }
        // The cue's name and its settings, a line each.
        Form::WebVtt => {
            let mut parts = line.body.splitn(3, '\n');
            let (_name, settings, body) = (parts.next(), parts.next(), parts.next());
            if let (Some(settings), Some(body)) = (settings, body) {
                (line.settings, line.body) = (settings.trim().to_owned(), body.to_owned());
            }
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut events = 0;
            let _ = read(&bytes[..], |_| true, |_| { events += 1; events < 50 });
        }

        #[test]
        fn any_block_is_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let group = [&[0xa0, 0x80 | bytes.len() as u8][..], &bytes].concat();
            let _ = read(&group[..], |_| true, |_| true);
        }
    }
}

//! Cover art: which picture format some bytes are, and its size.

use crate::bits::{be16, be32};
use crate::facts::Codec;

/// The picture codec by FFmpeg's name, and width and height where they could be read.
pub(crate) fn identify(data: &[u8]) -> (Codec, Option<(u32, u32)>) {
    let named = |name: &str| Codec::Other(name.into());
    if data.starts_with(b"\x89PNG\r\n\x1a\n") {
        return (named("png"), be32(data, 16).zip(be32(data, 20)));
    }
    if data.starts_with(&[0xff, 0xd8]) {
        return (named("mjpeg"), jpeg_size(data));
    }
    if data.starts_with(b"BM") {
        return (named("bmp"), None);
    }
    if data.starts_with(b"GIF8") {
        return (named("gif"), None);
    }
    if data.starts_with(b"RIFF") && data.get(8..12) == Some(b"WEBP") {
        return (named("webp"), None);
    }
    (named("unknown"), None)
}

fn jpeg_size(data: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    // Each turn passes one segment of four bytes at least.
    while at < data.len() {
        if *data.get(at)? != 0xff {
            return None;
        }
        match *data.get(at + 1)? {
            0xff => at += 1,
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                return Some((u32::from(be16(data, at + 7)?), u32::from(be16(data, at + 5)?)));
            }
            0x01 | 0xd0..=0xd7 => at += 2,
            _ => at += 2 + usize::from(be16(data, at + 2)?).max(2),
        }
    }
    None
}

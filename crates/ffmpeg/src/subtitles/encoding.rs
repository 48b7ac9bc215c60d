//! Bytes of a subtitle file as text, whatever program on whatever system wrote them.

use std::borrow::Cow;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};

/// How much of a file is looked at for its byte order.
const LOOK: usize = 4_096;

/// The text of a file: by its mark where it has one, as UTF-16 where every other byte is nothing, as UTF-8
/// where it is that, and else by the encoding that its letters suggest.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    let encoding = match Encoding::for_bom(bytes) {
        Some((encoding, _)) => encoding,
        None => utf16(bytes).unwrap_or_else(|| suggested(bytes)),
    };
    // A mark is taken off; what cannot be decoded becomes a replacement character.
    encoding.decode(bytes).0
}

fn utf16(bytes: &[u8]) -> Option<&'static Encoding> {
    let look = &bytes[..bytes.len().min(LOOK) & !1];
    let zeros = |odd: usize| {
        look.iter()
            .skip(odd)
            .step_by(2)
            .filter(|byte| **byte == 0)
            .count()
    };
    let (even, odd) = (zeros(0), zeros(1));
    // Times, numbers and line ends are ASCII in every script.
    let many = look.len() / 8;
    match () {
        () if odd > many.max(2) && even == 0 => Some(UTF_16LE),
        () if even > many.max(2) && odd == 0 => Some(UTF_16BE),
        () => None,
    }
}

fn suggested(bytes: &[u8]) -> &'static Encoding {
    if std::str::from_utf8(bytes).is_ok() {
        return UTF_8;
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(bytes, true);
    detector.guess(None, Utf8Detection::Allow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use encoding_rs::{SHIFT_JIS, WINDOWS_1250, WINDOWS_1251, WINDOWS_1252};

    fn written(said: &str, encoding: &'static Encoding) -> Vec<u8> {
        let file = format!("1\r\n00:00:01,000 --> 00:00:02,000\r\n{said}\r\n\r\n").repeat(3);
        if encoding == UTF_16LE {
            return file.encode_utf16().flat_map(u16::to_le_bytes).collect();
        }
        if encoding == UTF_16BE {
            return file.encode_utf16().flat_map(u16::to_be_bytes).collect();
        }
        let (bytes, _, lost) = encoding.encode(&file);
        assert!(!lost);
        bytes.into_owned()
    }

    #[test]
    fn files_of_every_system_are_read() {
        for (said, encoding) in [
            (
                "Où est la bibliothèque ? C’est là-bas, à côté du café.",
                WINDOWS_1252,
            ),
            ("Žluťoučký kůň úpěl ďábelské ódy, řekl můj přítel.", WINDOWS_1250),
            (
                "Съешь ещё этих мягких французских булок, да выпей чаю.",
                WINDOWS_1251,
            ),
            ("私はその人を常に先生と呼んでいた。", SHIFT_JIS),
            ("Plain and simple.", UTF_8),
            ("Grüße, 字幕 and ὕδωρ.", UTF_8),
            ("Grüße, 字幕 and ὕδωρ.", UTF_16LE),
            ("Grüße, 字幕 and ὕδωρ.", UTF_16BE),
        ] {
            let bytes = written(said, encoding);
            let read = text(&bytes);
            assert!(read.contains(said), "{}: {read}", encoding.name());
            if encoding != UTF_8 && encoding != UTF_16LE && encoding != UTF_16BE {
                continue;
            }
            let mark = match encoding {
                e if e == UTF_8 => &b"\xef\xbb\xbf"[..],
                e if e == UTF_16LE => b"\xff\xfe",
                _ => b"\xfe\xff",
            };
            let marked = [mark, &bytes].concat();
            assert_eq!(text(&marked), read);
        }
    }
}

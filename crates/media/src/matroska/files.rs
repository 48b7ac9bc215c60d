//! Attached files: fonts, and the pictures among them that FFmpeg gives a stream as covers.

use super::ebml::{ElementHeader, HEADER_MAX, text};
use super::{MAX_ELEMENTS, MAX_TRACKS, ids};
use crate::facts::{Codec, Stream, StreamKind, VideoFacts};
use crate::reader::{FactsError, Source};
use crate::still;

/// Bytes of a picture that hold its size.
const PICTURE_HEAD: u64 = 64 << 10;

/// One attached file.
pub(super) struct AttachedFile {
    codec: Codec,
    title: Option<String>,
    picture: bool,
    size: Option<(u32, u32)>,
}

/// Reads the names of the files in an `Attachments` body at `at`, and the first bytes of the pictures.
pub(super) fn read(
    source: &mut Source<'_>,
    mut at: u64,
    size: u64,
    files: &mut Vec<AttachedFile>,
) -> Result<(), FactsError> {
    let end = at.saturating_add(size).min(source.len());
    let mut file: Option<(String, String)> = None;
    for _ in 0..MAX_ELEMENTS {
        if at >= end || files.len() >= MAX_TRACKS {
            break;
        }
        let Some(header) = ElementHeader::parse(source.fetch(at, HEADER_MAX)?) else {
            break;
        };
        let body = at + header.len as u64;
        let size = header.size.unwrap_or(0);
        match header.id {
            ids::ATTACHED_FILE => {
                file = Some(Default::default());
                at = body;
                continue;
            }
            ids::FILE_NAME | ids::FILE_MEDIA_TYPE => {
                let value = text(source.fetch(body, size.min(256))?, 256);
                if let Some((name, media_type)) = &mut file {
                    *(if header.id == ids::FILE_NAME {
                        name
                    } else {
                        media_type
                    }) = value;
                }
            }
            ids::FILE_DATA => {
                let data = source.fetch(body, size.min(PICTURE_HEAD))?;
                // The name and type come first in every writer's files.
                let (name, media_type) = file.take().unwrap_or_default();
                files.push(attached(name, &media_type, data));
            }
            _ => {}
        }
        at = body.saturating_add(size);
    }
    Ok(())
}

impl AttachedFile {
    /// The stream that FFmpeg gives the self.
    pub(super) fn stream(&self, index: u32) -> Stream {
        let kind = if self.picture {
            let (width, height) = self.size.unwrap_or((0, 0));
            StreamKind::Video(VideoFacts {
                still: true,
                width,
                height,
                ..VideoFacts::default()
            })
        } else {
            StreamKind::Attachment
        };
        Stream {
            index,
            codec: self.codec.clone(),
            codec_string: None,
            language: None,
            title: self.title.clone(),
            default: false,
            forced: false,
            start: None,
            duration: None,
            bit_rate: None,
            kind,
        }
    }
}

fn attached(name: String, media_type: &str, data: &[u8]) -> AttachedFile {
    let title = Some(name).filter(|n| !n.is_empty());
    let picture = match media_type {
        "image/gif" | "image/jpeg" | "image/png" | "image/tiff" => true,
        other => other.starts_with("image/") && still::identify(data).1.is_some(),
    };
    let codec = match (picture, media_type) {
        (true, _) => still::identify(data).0,
        (_, t) if t.contains("truetype") || t == "font/ttf" => Codec::Other("ttf".into()),
        (_, t) if t.contains("opentype") || t == "font/otf" => Codec::Other("otf".into()),
        _ => Codec::Other("unknown".into()),
    };
    AttachedFile {
        codec,
        title,
        picture,
        size: picture.then(|| still::identify(data).1).flatten(),
    }
}

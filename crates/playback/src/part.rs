//! The file behind an item, as it is named in addresses.
//!
//! An address names the item and the state of its file; a path never comes from a client. Whoever holds an
//! address of an older state is told so instead of being given bytes of both.

use ether_media::Container;
use ether_types::ItemId;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::ports::{ItemDetail, ItemKind};

/// What stands unescaped in a file name in an address.
const NAME: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'.')
    .remove(b'-')
    .remove(b'_')
    .remove(b'~');

/// The file behind an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The item.
    pub item: ItemId,
    /// The state of the file, as a word.
    pub stamp: String,
    /// The file's own name.
    pub name: String,
}

impl Part {
    /// The file behind `item`.
    pub fn of(item: &ItemDetail) -> Self {
        let name = item
            .path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        Self {
            item: item.summary.id.clone(),
            stamp: item.revision.word(),
            name: name.unwrap_or_else(|| "file".to_owned()),
        }
    }

    /// Its address, without a grant.
    pub fn url(&self) -> String {
        let name = utf8_percent_encode(&self.name, NAME);
        format!("/library/parts/{}/{}/{name}", self.item, self.stamp)
    }

    /// The header that makes a browser save it, under its own name in any script.
    pub fn disposition(&self) -> String {
        let plain: String = self
            .name
            .chars()
            .map(|c| match c {
                ' '..='~' if c != '"' && c != '\\' => c,
                _ => '_',
            })
            .collect();
        let full = utf8_percent_encode(&self.name, NAME);
        format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{full}")
    }
}

/// The media type of an item's file.
pub fn content_type(container: &Container, kind: ItemKind) -> &'static str {
    match (container, kind) {
        (Container::Mp4, ItemKind::Film) => "video/mp4",
        (Container::Mp4, ItemKind::Music) => "audio/mp4",
        (Container::Matroska, ItemKind::Film) => "video/x-matroska",
        (Container::Matroska, ItemKind::Music) => "audio/x-matroska",
        (Container::Webm, ItemKind::Film) => "video/webm",
        (Container::Webm, ItemKind::Music) => "audio/webm",
        (Container::MpegTs, _) => "video/mp2t",
        (Container::Other(name), _) => match name.as_str() {
            "mp3" => "audio/mpeg",
            "flac" => "audio/flac",
            "ogg" => "audio/ogg",
            "wav" => "audio/wav",
            "aac" => "audio/aac",
            "avi" => "video/x-msvideo",
            _ => "application/octet-stream",
        },
    }
}

//! What players are told of a playback in one epoch: its address, and the text that is behind it.
//!
//! A playback begins with edition 0. When its pictures come to be described in other bytes than a player was
//! given, because another device encodes them, there is a new edition: a grant of the new epoch, and playlists
//! whose addresses carry it, so that whoever reads them from then on starts with the new description (D2). Addresses of
//! editions before it stay good, for players that read their playlist once and never again: what is made after
//! the change describes itself at every keyframe.

use std::sync::Arc;

use ether_media::decision::Protocol;
use ether_types::{PlaybackId, Timestamp};

use crate::grant::{Grant, GrantKeys, GrantScope, Surface};
use crate::part::Part;
use crate::plan::{Plan, Playlists};
use crate::ports::ItemDetail;

/// What players are told in one epoch.
#[derive(Debug)]
pub(crate) struct Edition {
    /// Which.
    pub(crate) epoch: u32,
    /// Relative address that the viewer opens, grant included.
    pub(crate) url: String,
    /// The text, where there are segments.
    pub(crate) playlists: Option<Playlists>,
}

/// Writes the editions of one playback.
#[derive(Debug)]
pub(crate) struct Editor {
    pub(crate) id: PlaybackId,
    pub(crate) keys: GrantKeys,
    pub(crate) expires_at: Timestamp,
}

impl Editor {
    /// Edition `epoch` of a playback of `item` that `plan` is for.
    pub(crate) fn write(&self, plan: &Plan, item: &ItemDetail, epoch: u32) -> Arc<Edition> {
        let id = &self.id;
        let grant = self.keys.sign(&Grant {
            playback: id.clone(),
            surface: Surface::Native,
            scope: if plan.making.is_some() {
                GrantScope::Media
            } else {
                GrantScope::File
            },
            epoch,
            expires_at: self.expires_at,
        });
        let url = match plan.decision.protocol {
            Some(Protocol::Hls) => format!("/sessions/media/{id}/index.m3u8?grant={grant}"),
            Some(Protocol::Dash) => format!("/ether/api/sessions/{id}/start.mpd?grant={grant}"),
            Some(Protocol::Http) => format!("/ether/api/sessions/{id}/start.mkv?grant={grant}"),
            None => format!("{}?grant={grant}", Part::of(item).url()),
        };
        Arc::new(Edition {
            epoch,
            playlists: plan.playlists(id.as_str(), &grant),
            url,
        })
    }
}

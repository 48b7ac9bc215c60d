//! The parts of a segment that point at other parts: seek index, cues and tags.

use super::ebml::{Elements, text, uint};
use super::ids;
use crate::ticks::Ticks;

/// More cues than any film has.
pub(super) const MAX_CUES: usize = 1 << 20;

/// One place of the cues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cue {
    pub(super) time: u64,
    pub(super) track: u64,
    /// Position of the cluster, from the segment's first byte.
    pub(super) cluster: u64,
}

pub(super) struct SeekHead;

impl SeekHead {
    /// Ids and positions, the latter from the segment's first byte.
    pub(super) fn parse(body: &[u8]) -> Vec<(u32, u64)> {
        Elements::new(body)
            .filter(|(id, _)| *id == ids::SEEK)
            .filter_map(|(_, seek)| {
                let seek = Elements::new(seek);
                let id = u32::try_from(uint(seek.body(ids::SEEK_ID)?)).ok()?;
                Some((id, uint(seek.body(ids::SEEK_POSITION)?)))
            })
            .take(64)
            .collect()
    }
}

/// Every place of every track that the cues name.
pub(super) fn cues(body: &[u8]) -> Vec<Cue> {
    let mut cues = Vec::new();
    for (id, point) in Elements::new(body) {
        if id != ids::CUE_POINT {
            continue;
        }
        let Some(time) = Elements::new(point).body(ids::CUE_TIME).map(uint) else {
            continue;
        };
        for (id, positions) in Elements::new(point) {
            if id != ids::CUE_TRACK_POSITIONS || cues.len() >= MAX_CUES {
                continue;
            }
            let positions = Elements::new(positions);
            if let (Some(track), Some(cluster)) = (
                positions.body(ids::CUE_TRACK),
                positions.body(ids::CUE_CLUSTER_POSITION),
            ) {
                cues.push(Cue {
                    time,
                    track: uint(track),
                    cluster: uint(cluster),
                });
            }
        }
    }
    cues
}

/// A writer's statistics of one track.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TrackTags {
    /// When the track ends.
    pub(super) duration: Option<Ticks>,
    pub(super) bit_rate: Option<u64>,
}

/// Statistics by track uid.
pub(super) fn tags(body: &[u8]) -> Vec<(u64, TrackTags)> {
    let mut found = Vec::new();
    for (id, tag) in Elements::new(body) {
        if id != ids::TAG || found.len() >= 256 {
            continue;
        }
        let tag = Elements::new(tag);
        let uid = tag
            .body(ids::TARGETS)
            .and_then(|targets| Elements::new(targets).body(ids::TAG_TRACK_UID))
            .map(uint);
        let Some(uid) = uid.filter(|uid| *uid != 0) else {
            continue;
        };
        let mut tags = TrackTags::default();
        for (id, simple) in tag {
            if id != ids::SIMPLE_TAG {
                continue;
            }
            let simple = Elements::new(simple);
            let (Some(name), Some(value)) = (simple.body(ids::TAG_NAME), simple.body(ids::TAG_STRING)) else {
                continue;
            };
            let value = text(value, 64);
            match text(name, 64).as_str() {
                "DURATION" => tags.duration = clock(&value),
                "BPS" => tags.bit_rate = value.parse().ok().filter(|r| *r > 0),
                _ => {}
            }
        }
        found.push((uid, tags));
    }
    found
}

/// `hh:mm:ss.fraction`.
fn clock(text: &str) -> Option<Ticks> {
    let mut parts = text.splitn(3, ':');
    let hours: u32 = parts.next()?.parse().ok()?;
    let minutes: u32 = parts.next()?.parse().ok()?;
    let seconds: f64 = parts.next()?.parse().ok()?;
    let total = f64::from(hours) * 3600.0 + f64::from(minutes) * 60.0 + seconds;
    (total > 0.0).then(|| Ticks::from_secs_f64(total))
}

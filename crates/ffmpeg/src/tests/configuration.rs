//! An encoder that describes its pictures otherwise than the initialization segment that viewers have (D2): what it
//! makes is refused, wherever that segment came from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ether_encoder::{Ended, Protocol, Request, Resource, ServeError, VideoAction};
use ether_types::SystemClock;

use super::film::{ENCODE, Film, Studio, fetch, script};

const ROOMY: u64 = 256 << 20;

/// The real FFmpeg, whose H.264 has another description and the same profile and level while there is a file `other`.
fn two_minded(dir: &Path) -> PathBuf {
    let text = format!(
        r#"[ -e {} ] || exec ffmpeg "$@"
count=$#
while [ "$count" -gt 0 ]; do
    word=$1
    shift
    count=$((count - 1))
    set -- "$@" "$word"
    case "$word" in libx264) set -- "$@" -coder 0 ;; esac
done
exec ffmpeg "$@""#,
        dir.join("other").display()
    );
    script(dir, "ffmpeg", &text)
}

/// The film in two qualities, the second of which comes apart from the first and from the sound.
pub(super) fn two_qualities(film: &Film) -> Request {
    let mut request = Request {
        protocol: Protocol::Dash,
        ..film.request(ENCODE)
    };
    if let Some(VideoAction::Encode(encode)) = request.video.as_mut().map(|video| &mut video.action) {
        let mut lower = encode.rungs[0];
        (lower.width, lower.height) = (lower.width / 4 * 2, lower.height / 4 * 2);
        encode.rungs.push(lower);
    }
    request
}

#[tokio::test]
async fn what_does_not_fit_the_pinned_initialization_segment_is_refused() {
    let film = Film::clip("ntsc.mkv");
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other");
    let studio = Studio::built(&two_minded(dir.path()), Arc::new(SystemClock::new()), 64 << 20).await;
    for (request, representation) in [(film.request(ENCODE), 0), (two_qualities(&film), 1)] {
        let init = Resource::Init { representation };
        let segment = |number| Resource::Segment {
            representation,
            number,
        };
        let changed = Err(ServeError::Ended {
            ended: Ended::ConfigurationChanged,
        });
        let first = studio.start_request(&film, request.clone(), ROOMY).await;
        let pinned = fetch(&*first, init).await.unwrap();
        fetch(&*first, segment(0)).await.unwrap();
        // Made by an earlier run of the same execution, and kept from an earlier execution.
        std::fs::write(&other, "").unwrap();
        assert_eq!(fetch(&*first, segment(15)).await.map(|made| made.len()), changed);
        assert_eq!(fetch(&*first, init).await.unwrap(), pinned);
        first.retire().await.unwrap();
        let second = studio.start_request(&film, request, ROOMY).await;
        assert_eq!(fetch(&*second, init).await.unwrap(), pinned, "it was kept");
        assert_eq!(fetch(&*second, segment(15)).await.map(|made| made.len()), changed);
        assert_eq!(second.observe().ended, Some(Ended::ConfigurationChanged));
        // The one that fits goes on.
        std::fs::remove_file(&other).unwrap();
        fetch(&*second, segment(15)).await.unwrap();
        assert_eq!(fetch(&*second, init).await.unwrap(), pinned);
        second.retire().await.unwrap();
    }
    studio.shut().await;
}

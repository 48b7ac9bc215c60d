//! Who may share an execution, and who waits for one that is being begun.

use std::collections::HashSet;
use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ether_encoder::{AudioAction, AudioTrack, Revision, SegmentContainer, VideoAction, VideoTrack};
use ether_media::{Ticks, Timeline};
use ether_types::{ManualClock, Timestamp};

use super::*;
use crate::cost::Costs;
use crate::testing::{facts, film_picture};

fn grid(target: i64) -> Arc<Timeline> {
    let seconds = |count| Ticks(count * Ticks::HZ);
    Arc::new(Timeline::grid(Ticks::ZERO, seconds(60), seconds(target), None).unwrap())
}

fn sound(stream: u32) -> AudioTrack {
    AudioTrack {
        stream,
        action: AudioAction::Copy,
    }
}

fn making() -> Making {
    let request = Request {
        facts: Arc::new(facts(film_picture(1280, 720), 60)),
        protocol: Protocol::Hls {
            container: SegmentContainer::Fmp4,
        },
        timeline: grid(6),
        video: Some(VideoTrack {
            stream: 0,
            action: VideoAction::Copy,
        }),
        audio: vec![sound(1)],
        subtitle: None,
    };
    Making {
        request: Arc::new(request),
        input: Input::File {
            path: PathBuf::from("/films/one.mkv"),
            revision: Revision {
                size: 1,
                modified_nanos: 2,
                inode: 3,
                device: 4,
            },
        },
        costs: Costs::default(),
        units: Units::default(),
        first: 0,
    }
}

/// One that differs in its request.
fn wishing(change: impl FnOnce(&mut Request)) -> Making {
    let mut making = making();
    change(Arc::make_mut(&mut making.request));
    making
}

/// One that differs in what it is made of.
fn from(change: impl FnOnce(&mut PathBuf, &mut Revision)) -> Making {
    let mut making = making();
    if let Input::File { path, revision } = &mut making.input {
        change(path, revision);
    }
    making
}

/// Two viewers who were given each other's execution would see another film, or hear another language.
#[test]
fn whatever_is_made_otherwise_has_another_identity() {
    let container = SegmentContainer::MpegTs;
    let all = [
        making(),
        wishing(|request| request.protocol = Protocol::Hls { container }),
        wishing(|request| request.protocol = Protocol::Dash),
        wishing(|request| request.timeline = grid(4)),
        wishing(|request| request.video = None),
        wishing(|request| request.audio = vec![sound(2)]),
        wishing(|request| request.audio = vec![sound(1), sound(2)]),
        wishing(|request| request.audio.clear()),
        wishing(|request| request.subtitle = Some(2)),
        wishing(|request| request.subtitle = Some(3)),
        from(|path, _| path.push("two")),
        from(|_, revision| revision.size = 9),
        from(|_, revision| revision.modified_nanos = 9),
        from(|_, revision| revision.inode = 9),
        from(|_, revision| revision.device = 9),
    ];
    let distinct: HashSet<Identity> = all.iter().filter_map(Identity::of).collect();
    assert_eq!(distinct.len(), all.len());
    assert_eq!(Identity::of(&making()), Identity::of(&making()));
    // Where a viewer begins is no part of what is made.
    let later = Making { first: 7, ..making() };
    assert_eq!(Identity::of(&later), Identity::of(&making()));
    let alone = wishing(|request| request.protocol = Protocol::Http { start: Ticks::ZERO });
    assert_eq!(Identity::of(&alone), None);
}

/// Whoever begins elsewhere in the film begins an encoder of their own at once; whoever begins beside another waits.
#[tokio::test]
async fn only_who_begins_near_waits_for_an_encoder_that_is_being_begun() {
    let works = Arc::new(Works::default());
    let clock = ManualClock::at(Timestamp::from_micros(0));
    let until = clock.monotonic().saturating_add(Duration::from_secs(8));
    let identity = Identity::of(&making());
    let place = |at| works.place(identity, (0, at), &clock, until);
    let mut asked = Context::from_waker(Waker::noop());

    let Place::Own(ticket) = place(20).await else {
        panic!("nothing is there to share");
    };
    for (at, waits) in [
        (20 - NEAR, true),
        (20 + NEAR, true),
        (20 - NEAR - 1, false),
        (21 + NEAR, false),
    ] {
        let found = pin!(place(at)).poll(&mut asked);
        assert_eq!(matches!(found, Poll::Pending), waits, "segment {at}");
    }
    drop(ticket);
}

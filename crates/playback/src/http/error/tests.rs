//! Every error that a client may see, walked: each says what is wrong and what mends it, and every word for
//! programs is in the published contract, and the other way round.

use std::collections::BTreeSet;
use std::io;

use ether_encoder::{Refusal, StartError};
use ether_media::{Ticks, TimelineError};
use ether_types::{ItemId, PlaybackId, Timestamp};

use super::*;
use crate::ports::TextError;

const CONTRACT: &str = include_str!("../../../../../docs/openapi.yaml");

/// Words that are sent by what is no route: the accept loop.
const ELSEWHERE: [&str; 1] = ["too_many_connections"];

fn constructed() -> Vec<ApiError> {
    vec![
        ApiError::field("maxHeight", "1", "a whole number from 16 to 16384"),
        ApiError::no_route(),
        ApiError::method_not_allowed(),
        ApiError::no_host(),
        ApiError::foreign_host("films.example"),
        ApiError::cross_site(),
        ApiError::too_slow(),
        ApiError::too_large(),
        ApiError::no_item("film0"),
        ApiError::no_picture(),
        ApiError::no_session(),
        ApiError::owner_only(),
        ApiError::owner_token(),
        ApiError::wrong_scope(),
        ApiError::ended("the session has ended and was forgotten"),
        ApiError::over(EndReason::Stopped),
        ApiError::no_segment(40, 10),
        ApiError::no_range(1_000),
        ApiError::no_range(0),
        ApiError::other_state(),
        ApiError::internal("the answer could not be written"),
    ]
}

fn of_requests() -> Vec<ApiError> {
    let item = || ItemId::new("film0").unwrap();
    let file = || "sub/A film.mkv".to_owned();
    let unauthorized = [
        Unauthorized::NoToken,
        Unauthorized::UnknownToken,
        Unauthorized::NoGrant,
        Unauthorized::Unavailable(TokensUnavailable),
    ];
    let sign_in = [
        SignInError::WrongCode,
        SignInError::TooMany {
            retry_after: Duration::from_secs(9),
        },
        SignInError::Unavailable(TokensUnavailable),
        SignInError::NoRandomness,
    ];
    let create = [
        CreateError::Library(LibraryError::NoSuchItem { item: item() }),
        CreateError::Library(LibraryError::Unavailable),
        CreateError::Open(OpenError::FolderMissing {
            folder: "films".into(),
        }),
        CreateError::Open(OpenError::Changed { file: file() }),
        CreateError::Open(OpenError::Gone { file: file() }),
        CreateError::Open(OpenError::Unreadable {
            file: file(),
            reason: "the disk does not answer".into(),
        }),
        CreateError::Open(OpenError::Library(LibraryError::Unavailable)),
        CreateError::OperationConflict,
        CreateError::OperationEnded {
            id: PlaybackId::new("0123").unwrap(),
            reason: EndReason::Expired,
        },
        CreateError::TooMany { live: 256 },
        CreateError::TooManyOfYours { live: 64 },
        CreateError::NoRandomness,
    ];
    let text = [
        TextError::NoSuchTrack,
        TextError::Pictures,
        TextError::Unreadable {
            format: "xsub".into(),
        },
        TextError::Changed,
        TextError::Gone,
        TextError::Failed,
        TextError::Unavailable,
    ];
    let all = unauthorized.into_iter().map(ApiError::from);
    all.chain(sign_in.into_iter().map(ApiError::from))
        .chain([GrantError::NotGenuine, GrantError::Expired].map(ApiError::from))
        .chain(create.into_iter().map(ApiError::from))
        .chain(text.into_iter().map(ApiError::from))
        .collect()
}

fn of_plans() -> Vec<ApiError> {
    let copy = |why| PlanError::CannotPlay(CannotPlay::CannotCopy { why });
    let plans = [
        PlanError::CannotPlay(CannotPlay::Nothing),
        PlanError::CannotPlay(CannotPlay::NoSuchStream {
            kind: "audio",
            stream: 9,
        }),
        copy(Reason::NoKeyframeIndex),
        copy(Reason::TooTall {
            height: 1080,
            limit: 720,
        }),
        copy(Reason::BitRateTooHigh {
            rate: 9_000_000,
            limit: 1_000_000,
        }),
        copy(Reason::SubtitleDrawn),
        PlanError::CannotPlay(CannotPlay::NothingToDrawOn),
        PlanError::OnlyDrawn { stream: 4 },
        PlanError::NeverDrawn { stream: 4 },
        PlanError::CannotPlay(CannotPlay::LengthUnknown),
        PlanError::CannotPlay(CannotPlay::Timeline(TimelineError::TooLong)),
        PlanError::StartPastEnd {
            start: Ticks(9 * Ticks::HZ),
            end: Ticks(6 * Ticks::HZ),
        },
        PlanError::Unsupported(Unsupported::Nothing),
    ];
    let capacity = [
        CapacityRefusal::Encoders { used: 2, limit: 2 },
        CapacityRefusal::Scratch { used: 2, limit: 2 },
        CapacityRefusal::QueueFull { waiting: 256 },
        CapacityRefusal::Closed,
        CapacityRefusal::None,
        CapacityRefusal::Unavailable,
    ];
    let plans = plans
        .into_iter()
        .map(|error| ApiError::from(CreateError::from(error)));
    plans.chain(capacity.map(ApiError::from)).collect()
}

fn endings() -> Vec<Ended> {
    let failed = |status, signal| Ended::Failed { status, signal };
    vec![
        Ended::SourceLost,
        Ended::ScratchFull,
        Ended::SegmentTooLarge {
            segment: 3,
            scratch: 32 << 20,
        },
        Ended::BoundViolated { segment: 4 },
        Ended::ConfigurationChanged,
        Ended::Unreadable,
        Ended::Stalled,
        failed(Some(1), None),
        failed(None, Some(9)),
        failed(None, Some(11)),
        failed(None, None),
    ]
}

fn of_media() -> Vec<ApiError> {
    let refused = |refusal| MediaError::Refused {
        refusal,
        retry_after: Duration::from_secs(2),
    };
    let segment = Resource::Segment {
        representation: 0,
        number: 7,
    };
    let mut all = vec![
        MediaError::Ended(EndReason::SourceChanged),
        MediaError::NoSuchResource { resource: segment },
        MediaError::NoSuchResource {
            resource: Resource::Init { representation: 0 },
        },
        MediaError::SourceEnded {
            film: "A film.mkv".into(),
            at: Ticks(6 * Ticks::HZ),
        },
        MediaError::NotReady,
        MediaError::NoCapacity(CapacityRefusal::None),
        refused(Refusal::Encoders),
        refused(Refusal::Scratch),
        refused(Refusal::Device),
        refused(Refusal::DeviceLost),
        MediaError::Start(StartError::Uncertain),
        MediaError::Start(StartError::Scratch {
            kind: io::ErrorKind::StorageFull,
        }),
    ];
    all.extend(endings().into_iter().map(|ended| {
        let log = ["[mov @ 0x55d0] moov atom not found".to_owned()];
        let at = Timestamp::from_micros(1);
        MediaError::Failed(Box::new(Failure::new(at, "A film.mkv", ended, &log)))
    }));
    all.into_iter().map(ApiError::from).collect()
}

fn every() -> Vec<ApiError> {
    let mut all = constructed();
    all.extend(of_requests());
    all.extend(of_plans());
    all.extend(of_media());
    all
}

/// A variant that is added to one of these has no arm here: whoever adds it adds it to the walk as well.
#[allow(dead_code, reason = "it is compiled and never run")]
fn nothing_is_missing_above(media: &MediaError, create: &CreateError, ended: &Ended, open: &OpenError) {
    match media {
        MediaError::Ended(_)
        | MediaError::NoSuchResource { .. }
        | MediaError::SourceEnded { .. }
        | MediaError::NotReady
        | MediaError::NoCapacity(_)
        | MediaError::Refused { .. }
        | MediaError::Start(_)
        | MediaError::Failed(_) => {}
    }
    match create {
        CreateError::Library(_)
        | CreateError::Open(_)
        | CreateError::Plan(_)
        | CreateError::Capacity(_)
        | CreateError::OperationConflict
        | CreateError::OperationEnded { .. }
        | CreateError::TooMany { .. }
        | CreateError::TooManyOfYours { .. }
        | CreateError::NoRandomness => {}
    }
    match ended {
        Ended::Complete
        | Ended::Stopped
        | Ended::SourceTruncated { .. }
        | Ended::SourceChanged
        | Ended::SourceLost
        | Ended::ScratchFull
        | Ended::SegmentTooLarge { .. }
        | Ended::BoundViolated { .. }
        | Ended::ConfigurationChanged
        | Ended::Unreadable
        | Ended::Stalled
        | Ended::Failed { .. } => {}
    }
    match open {
        OpenError::FolderMissing { .. }
        | OpenError::Changed { .. }
        | OpenError::Gone { .. }
        | OpenError::Unreadable { .. }
        | OpenError::Library(_) => {}
    }
}

#[test]
fn every_error_says_what_is_wrong_and_what_mends_it() {
    for error in every() {
        let told = &error.message;
        let parts: Vec<&str> = told.split([':', ';']).map(str::trim).collect();
        let halves = parts.len() >= 2 && parts.iter().all(|part| part.len() >= 3);
        assert!(halves, "{}: {told:?} is not two halves", error.code);
        assert!(told.len() >= 40, "{}: {told:?} is too short to help", error.code);
        assert!(!told.contains("::"), "{}: {told:?}", error.code);
        if error.fields.contains_key("field") {
            let allowed = error.fields.get("allowed").and_then(Value::as_str);
            assert!(allowed.is_some_and(|text| text.len() > 5), "{error:?}");
        }
        // What may pass by itself says when to come back.
        if error.status == StatusCode::SERVICE_UNAVAILABLE || error.status == StatusCode::TOO_MANY_REQUESTS {
            assert!(error.retry_after.is_some(), "{error:?}");
        }
    }
}

#[test]
fn every_word_for_programs_is_in_the_contract_and_the_other_way_round() {
    let contract: Value = serde_yaml_ng::from_str(CONTRACT).unwrap();
    let written = contract["components"]["schemas"]["Error"]["properties"]["code"]["enum"].as_array();
    let written: BTreeSet<&str> = written.unwrap().iter().filter_map(Value::as_str).collect();
    let mut sent: BTreeSet<&str> = every().iter().map(|error| error.code).collect();
    sent.extend(ELSEWHERE);
    // Only FFmpeg's own lists make one, which has no constructor here.
    sent.insert("encoder_lacks");
    assert_eq!(sent, written);
}

#[test]
fn errors_about_an_encoder_name_the_film_and_repeat_what_ffmpeg_said() {
    let failed = of_media();
    let failed = failed
        .iter()
        .find(|error| error.code == "encoder_failed")
        .unwrap();
    for word in [
        "A film.mkv",
        "exit status 1",
        "[mov] moov atom not found",
        "Asking again",
    ] {
        assert!(failed.message.contains(word), "{word}: {}", failed.message);
    }
    assert_eq!(failed.fields["film"], "A film.mkv");
    let large = of_media();
    let large = large
        .iter()
        .find(|error| error.code == "segment_too_large")
        .unwrap();
    for word in ["segment 3", "32 MiB", "--scratch", "segmentSeconds"] {
        assert!(large.message.contains(word), "{word}: {}", large.message);
    }
}

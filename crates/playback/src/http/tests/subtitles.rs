//! Text tracks as players and people get them.

use std::sync::Arc;

use ether_media::subtitles::{Form, Line, Track};
use ether_media::{Codec, Stream, StreamKind, SubtitleFacts, Ticks};
use ether_types::ItemId;
use serde_json::Value;

use super::bed::{Bed, FILM};
use crate::ports::{Sidecar, TextError};

/// The number of the file that lies beside the film.
const BESIDE: u32 = 10_007;

fn track() -> Track {
    let line = |start: i64, end: i64, said: &str| Line {
        start: Ticks(start * 90),
        end: Some(Ticks(end * 90)),
        settings: String::new(),
        body: format!("0,Default,,0,0,0,,{said}"),
    };
    Track {
        form: Form::Ass {
            header: String::new(),
            comments: false,
        },
        lines: vec![line(2_000, 4_000, "two"), line(30_000, 31_000, "thirty")],
    }
}

fn stream(index: u32, kind: StreamKind) -> Stream {
    Stream {
        index,
        codec: Codec::Other("subrip".into()),
        codec_string: None,
        language: Some("ger".into()),
        title: None,
        default: true,
        forced: index == 5,
        start: None,
        duration: None,
        bit_rate: None,
        kind,
    }
}

/// Gives the bed's film tracks that can be read and tracks that cannot, and opens a session for it.
pub(super) async fn film(bed: &Bed) -> Value {
    with(bed, "").await
}

async fn with(bed: &Bed, wish: &str) -> Value {
    {
        let mut items = bed.library.items.lock().unwrap();
        let item = items.get_mut(&ItemId::new(FILM).unwrap()).unwrap();
        let facts = Arc::make_mut(&mut item.facts);
        facts.streams.retain(|stream| stream.index < 3);
        let text = |text| {
            StreamKind::Subtitle(SubtitleFacts {
                text,
                hearing_impaired: false,
            })
        };
        facts.streams.extend([
            stream(3, text(true)),
            stream(4, text(false)),
            stream(5, text(true)),
            stream(6, text(true)),
            stream(7, StreamKind::Attachment),
        ]);
        item.sidecars = vec![Sidecar {
            stream: BESIDE,
            name: "film.en.sdh.srt".into(),
            language: Some("en".into()),
            title: None,
            forced: false,
            hearing_impaired: true,
        }];
    }
    *bed.texts.tracks.lock().unwrap() = [
        (3, Ok(track())),
        (4, Err(TextError::Pictures)),
        (5, Err(TextError::Failed)),
        (6, Err(TextError::Unavailable)),
        (7, Ok(track())),
        (BESIDE, Ok(track())),
    ]
    .into();
    bed.session(wish).await
}

fn address(session: &Value, place: &str, stream: u32) -> String {
    let url = session["url"].as_str().unwrap();
    let grant = url.split_once('?').unwrap().1;
    format!(
        "/ether/api/sessions/{}/{place}?stream={stream}&{grant}",
        session["id"].as_str().unwrap()
    )
}

#[tokio::test]
async fn a_session_lists_its_text_and_its_fonts_and_gives_them_to_whoever_may_have_them() {
    let bed = Bed::new().await;
    let session = film(&bed).await;
    let texts = session["subtitles"].as_array().unwrap();
    let told: Vec<(u64, &str)> = texts
        .iter()
        .map(|text| (text["stream"].as_u64().unwrap(), text["name"].as_str().unwrap()))
        .collect();
    assert_eq!(
        told,
        [(3, "de"), (5, "de (2)"), (6, "de (3)"), (u64::from(BESIDE), "en")]
    );
    assert!(
        texts.iter().all(|text| text["default"] == false),
        "nobody chose one"
    );
    // The addresses work as they are.
    for text in [&texts[0], &texts[3]] {
        let vtt = bed.get(text["vtt"].as_str().unwrap()).await;
        assert_eq!(vtt.header("content-type"), Some("text/vtt; charset=utf-8"));
        assert!(
            vtt.text().contains("00:00:02.000 --> 00:00:04.000\ntwo\n"),
            "{}",
            vtt.text()
        );
        let ass = bed.get(text["ass"].as_str().unwrap()).await;
        assert!(
            ass.text()
                .contains("Dialogue: 0,0:00:30.00,0:00:31.00,Default,,0,0,0,,thirty\n")
        );
    }
    let font = bed.get(session["fonts"][0]["url"].as_str().unwrap()).await;
    assert_eq!(font.body, b"a font");
    // To whoever is signed in as well, whose addresses hold no grant.
    let id = session["id"].as_str().unwrap();
    let seen = bed
        .owner("GET", &format!("/ether/api/sessions/{id}"), "")
        .await
        .json();
    let bare = seen["subtitles"][0]["vtt"].as_str().unwrap();
    assert!(!bare.contains("grant"));
    assert_eq!(bed.owner("GET", bare, "").await.status, 200);
    assert_eq!(bed.get(bare).await.code(), "unauthorized");
    assert_eq!(bed.encoder.started(), 0, "text needs no encoder");
}

#[tokio::test]
async fn what_is_no_text_says_what_to_do() {
    let bed = Bed::new().await;
    let session = film(&bed).await;
    let pictures = bed.get(&address(&session, "subtitles.vtt", 4)).await;
    assert_eq!(
        (pictures.status.as_u16(), pictures.code().as_str()),
        (415, "picture_subtitles")
    );
    assert!(
        pictures.json()["message"]
            .as_str()
            .unwrap()
            .contains("`subtitle`")
    );
    for (stream, status, code) in [
        (99, 404, "no_such_stream"),
        (5, 502, "subtitles_failed"),
        (6, 503, "unavailable"),
    ] {
        let reply = bed.get(&address(&session, "subtitles.ass", stream)).await;
        assert_eq!((reply.status.as_u16(), reply.code().as_str()), (status, code));
    }
    let playlist = bed.get(&address(&session, "subtitles.m3u8", 4)).await;
    assert_eq!(playlist.status, 404);
}

#[tokio::test]
async fn hls_finds_the_whole_track_as_one_segment_on_the_segments_clock() {
    let bed = Bed::new().await;
    for (container, zero) in [("fmp4", 0), ("ts", 900_000)] {
        let wish = format!(r#""container":"{container}","subtitle":3"#);
        let session = with(&bed, &wish).await;
        let multivariant = bed.get(session["url"].as_str().unwrap()).await.text();
        let lines: Vec<&str> = multivariant
            .lines()
            .filter(|l| l.contains("TYPE=SUBTITLES"))
            .collect();
        assert_eq!(lines.len(), 4, "{multivariant}");
        assert!(
            lines[0].contains("DEFAULT=YES") && lines[1].contains("FORCED=YES"),
            "{multivariant}"
        );
        assert!(lines[1..].iter().all(|line| line.contains("DEFAULT=NO")));
        // As a player resolves the addresses.
        let uri = lines[0]
            .split("URI=\"../../..")
            .nth(1)
            .unwrap()
            .trim_end_matches('"');
        let playlist = bed.get(uri).await.text();
        assert!(
            playlist.contains("#EXT-X-TARGETDURATION:60\n#") && playlist.contains("#EXTINF:60.000000,\n"),
            "{playlist}"
        );
        let segment = playlist.lines().find(|line| !line.starts_with('#')).unwrap();
        let base = uri.rsplit_once('/').unwrap().0;
        let text = bed.get(&format!("{base}/{segment}")).await.text();
        assert!(
            text.starts_with(&format!(
                "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:{zero}\n\n"
            )),
            "{text}"
        );
        assert!(text.contains("\n00:00:02.000 --> 00:00:04.000\ntwo\n"));
    }
}

#[tokio::test]
async fn a_chosen_track_of_pictures_is_drawn_into_a_picture_that_is_made_for_it() {
    let bed = Bed::new().await;
    let session = with(&bed, r#""subtitle":4"#).await;
    let picture = &session["decision"]["video"];
    assert_eq!(
        (&picture["action"], &picture["reasons"][0]["code"]),
        (&"encode".into(), &"subtitle_drawn".into())
    );
    let unknown = bed
        .owner("POST", "/ether/api/sessions", r#"{"item":"film0","subtitle":7}"#)
        .await;
    assert_eq!(
        (unknown.status.as_u16(), unknown.code().as_str()),
        (422, "no_such_stream")
    );
}

/// Text can be drawn in too, for players that show none (case 11); what cannot be as asked is refused by name.
#[tokio::test]
async fn a_client_says_whether_a_track_is_drawn_in() {
    let bed = Bed::new().await;
    let chosen = |session: &Value| -> Vec<u64> {
        let tracks = session["subtitles"].as_array().unwrap().iter();
        let chosen = tracks.filter(|track| track["default"] == true);
        chosen.map(|track| track["stream"].as_u64().unwrap()).collect()
    };
    let beside = with(&bed, r#""subtitle":3,"burn":false"#).await;
    assert_eq!(beside["decision"]["video"]["action"], "copy");
    assert_eq!(chosen(&beside), [3]);
    let drawn = with(&bed, r#""subtitle":3,"burn":true"#).await;
    assert_eq!(drawn["decision"]["video"]["reasons"][0]["code"], "subtitle_drawn");
    assert_eq!(chosen(&drawn), [0_u64; 0], "or a player would show it twice");
    let refused = async |more: &str| {
        let wish = format!(r#"{{"item":"{FILM}",{more}}}"#);
        let reply = bed.owner("POST", "/ether/api/sessions", &wish).await;
        let said = reply.json();
        let field = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
        (
            reply.status.as_u16(),
            field("code"),
            field("field"),
            field("allowed"),
        )
    };
    let beside_film = format!(r#""subtitle":{BESIDE},"burn":true"#);
    for (more, status, code, field, allowed) in [
        (
            r#""burn":7,"subtitle":3"#,
            400,
            "malformed",
            "burn",
            "true or false",
        ),
        (
            r#""burn":"yes","subtitle":3"#,
            400,
            "malformed",
            "burn",
            "true or false",
        ),
        (
            r#""burn":true"#,
            400,
            "malformed",
            "burn",
            "true or false, with `subtitle` saying which track",
        ),
        (
            r#""burn":true,"subtitle":-2"#,
            400,
            "malformed",
            "subtitle",
            "the index of a stream, or -1 for none",
        ),
        (
            r#""burn":false,"subtitle":4"#,
            422,
            "cannot_burn",
            "burn",
            "true, or left out",
        ),
        (&beside_film, 422, "cannot_burn", "burn", "false, or left out"),
        (r#""burn":true,"subtitle":9"#, 422, "no_such_stream", "", ""),
        (
            r#""burn":true,"subtitle":3,"video":"copy""#,
            422,
            "cannot_copy",
            "video",
            "auto, encode",
        ),
    ] {
        let (code, field, allowed) = (code.to_owned(), field.to_owned(), allowed.to_owned());
        assert_eq!(refused(more).await, (status, code, field, allowed), "{more}");
    }
}

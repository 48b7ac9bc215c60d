//! Subtitles drawn into the picture are there when they should be, from wherever a run begins, and change
//! nothing about the segments.

use ether_encoder::{Encoder, Execution, Offer, Protocol, Request, Rung, Unsupported, VideoAction};
use ether_media::StreamKind;

use super::film::{Film, INIT, Shape, Studio, fetch, segment};
use super::screening::{Pictures, film, real, record, small, studios, tool};

const SIZE: (u32, u32) = (320, 180);

/// A request for `film` with its first subtitle track drawn in.
fn burned(film: &Film) -> Request {
    let is_subtitle = |kind: &StreamKind| matches!(kind, StreamKind::Subtitle(_));
    let track = film
        .facts
        .streams
        .iter()
        .find(|s| is_subtitle(&s.kind))
        .unwrap()
        .index;
    small(film, SIZE, |encode| encode.burn = Some(track))
}

/// Whether something stands on the black of the first and of the last picture of a second.
async fn stands(studio: &Studio, execution: &dyn Execution, second: u32) -> (bool, bool) {
    let file = record(studio, execution, 0, [second]).await;
    let pictures = Pictures::of(studio, &file, SIZE, "yuv420p").await;
    assert_eq!(pictures.len(), 25);
    let written = |n| pictures.brightness(n) > 16.3;
    (written(0), written(24))
}

/// Cases 11 and 12: cues stand from 40 to 42 and from 50 to 52.
#[tokio::test]
async fn cues_stand_where_they_should_after_any_seek() {
    for studio in studios().await {
        for name in ["pgs-cues.mkv", "ass-cues.mkv"] {
            let film = Film::clip(name);
            // Done here, and for no other machine (T14).
            let only = Unsupported::LocalOnly {
                what: Offer::BurnedSubtitles,
            };
            assert_eq!(studio.encoder.supports(&burned(&film)), Ok(()));
            assert_eq!(studio.encoder.admits_remote(&burned(&film)), Err(only));
            let execution = studio.start_request(&film, burned(&film), 64 << 20).await;
            let at = async |second| stands(&studio, &*execution, second).await;
            assert_eq!(at(41).await, (true, true), "{name}: the cue that stands already");
            assert!(!at(42).await.1, "{name}: it ends");
            assert_eq!(at(38).await, (false, false), "{name}: before it");
            assert_eq!(at(39).await, (false, false), "{name}: before it");
            assert!(at(40).await.1, "{name}: it comes");
            assert_eq!(at(41).await, (true, true), "{name}: it stays");
            execution.retire().await.unwrap();
            let plain = studio
                .start_request(&film, small(&film, SIZE, |_| {}), 64 << 20)
                .await;
            let drawn = studio.start_request(&film, burned(&film), 64 << 20).await;
            for second in [0, 49] {
                let init = fetch(&*plain, INIT).await.unwrap();
                let without = Shape::read(&init, &fetch(&*plain, segment(second)).await.unwrap());
                let with = Shape::read(&init, &fetch(&*drawn, segment(second)).await.unwrap());
                let times = |shape: &Shape| {
                    let mut times: Vec<i64> = shape.pictures.iter().map(|p| p.1).collect();
                    times.sort_unstable();
                    times
                };
                assert_eq!(
                    times(&without),
                    times(&with),
                    "{name}: drawing moves second {second}"
                );
                assert_eq!(
                    without.sounds, with.sounds,
                    "{name}: drawing moves second {second}"
                );
            }
            plain.retire().await.unwrap();
            drawn.retire().await.unwrap();
        }
    }
}

/// A picture subtitle that stands already when a run begins was stored before the keyframe that the run begins to
/// read at. Matroska's index may lead back to it; a transport stream has none.
#[tokio::test]
async fn a_cue_that_began_before_the_keyframe_is_there() {
    for studio in studios().await {
        let words = format!(
            "-i {} -map 0:v -map 0:s -vf scale=320:180 -c:v libx264 -preset ultrafast -g 10 -c:s copy \
             -mpegts_m2ts_mode 1 -f mpegts",
            super::film::clip("pgs-cues.mkv").display()
        );
        let film = film(&studio, "often.m2ts", &words).await;
        let execution = studio.start_request(&film, burned(&film), 64 << 20).await;
        assert_eq!(stands(&studio, &*execution, 41).await, (true, true));
        execution.retire().await.unwrap();
    }
}

/// The pictures of DVDs, which say how long they stand, and those of broadcasts, which stand until the next, in
/// transport streams whose readers do not know where one begins.
#[tokio::test]
async fn pictures_of_discs_and_broadcasts_are_drawn() {
    for studio in studios().await {
        for (name, codec) in [("disc.mkv", "dvdsub"), ("broadcast.ts", "dvbsub")] {
            // The source's cues end where the next begins, which is empty.
            let words = format!(
                "-fix_sub_duration -i {} -map 0:v -map 0:s -vf scale=320:180 -c:v libx264 -preset ultrafast -g 50 \
                 -c:s {codec} -s:s 1280x720",
                super::film::clip("pgs-cues.mkv").display()
            );
            let film = film(&studio, name, &words).await;
            let execution = studio.start_request(&film, burned(&film), 64 << 20).await;
            let at = async |second| stands(&studio, &*execution, second).await;
            assert_eq!(at(41).await, (true, true), "{name}: the cue that stands already");
            assert!(!at(43).await.1, "{name}: it ends");
            assert_eq!(at(38).await, (false, false), "{name}: before it");
            execution.retire().await.unwrap();
        }
    }
}

/// One drawing serves all qualities.
#[tokio::test]
async fn every_quality_has_the_cue() {
    let studio = Studio::open().await;
    for name in ["pgs-cues.mkv", "ass-cues.mkv"] {
        let film = Film::clip(name);
        let mut request = burned(&film);
        request.protocol = Protocol::Dash;
        let lower = Rung {
            width: 160,
            height: 90,
            max_bit_rate: 400_000,
            level: 30,
        };
        if let Some(VideoAction::Encode(encode)) = request.video.as_mut().map(|v| &mut v.action) {
            encode.rungs.push(lower);
        }
        let execution = studio.start_request(&film, request, 128 << 20).await;
        let (best, lower) = tokio::join!(
            record(&studio, &*execution, 0, [41]),
            record(&studio, &*execution, 1, [41])
        );
        for (file, size) in [(best, SIZE), (lower, (160, 90))] {
            let pictures = Pictures::of(&studio, &file, size, "yuv420p").await;
            assert!(pictures.brightness(3) > 16.3, "{name}: nothing at {size:?}");
        }
        execution.retire().await.unwrap();
    }
}

/// Nothing in a name is taken for FFmpeg's own signs.
#[tokio::test]
async fn the_name_of_the_file_does_not_matter() {
    let studio = Studio::open().await;
    let folder = studio.dir().join("a [b], 'c'; d:e=f \\g");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join(" 100% \"it's\" ünïcode, [2].mkv ");
    std::fs::copy(super::film::clip("ass-cues.mkv"), &path).unwrap();
    let film = Film::open(path);
    let execution = studio.start_request(&film, burned(&film), 64 << 20).await;
    assert_eq!(stands(&studio, &*execution, 41).await, (true, true));
    studio.close(execution).await;
}

/// A wide range has white that is far too bright to read: lines are as bright as paper.
#[tokio::test]
async fn lines_on_a_wide_range_are_not_glaring() {
    let studio = Studio::open().await;
    let (width, height) = SIZE;
    for name in ["ass-cues.mkv", "pgs-cues.mkv"] {
        let words = format!(
            "-f lavfi -i color=black:s={width}x{height}:r=25:d=3,format=yuv420p10le -ss 39.5 -t 3 -i {} -map 0:v -map 1:s \
             -c:v libx265 -preset ultrafast -x265-params \
             log-level=error:colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc -c:s copy",
            super::film::clip(name).display()
        );
        let film = film(&studio, &format!("wide-{name}"), &words).await;
        let mut request = burned(&film);
        if let Some(VideoAction::Encode(encode)) = request.video.as_mut().map(|v| &mut v.action) {
            encode.codec = ether_encoder::VideoCodec::Hevc;
            encode.range = ether_media::MasteringKind::Pq;
            encode.rungs[0].level = 93;
        }
        let execution = studio.start_request(&film, request, 64 << 20).await;
        let file = record(&studio, &*execution, 0, [1]).await;
        let pictures = Pictures::of(&studio, &file, SIZE, "yuv420p10le").await;
        let brightest = (0..180).flat_map(|y| (0..320).map(move |x| (x, y)));
        let brightest = brightest.map(|(x, y)| pictures.luma(5, x, y)).fold(0.0, f64::max);
        // 0.58 of PQ is 203 cd/m²: 64 + 0.58 × 876.
        assert!(
            (540.0..620.0).contains(&brightest),
            "{name}: lines at {brightest}"
        );
        execution.retire().await.unwrap();
    }
}

/// Lines in a font that only the film has are drawn in it. It is one of the machine's under another name, so that what
/// it looks like is known; without the attachment the same lines look otherwise.
#[tokio::test]
async fn lines_are_drawn_in_the_font_that_is_attached() {
    let Ok(font) = std::fs::read("/usr/share/fonts/truetype/dejavu/DejaVuSerif.ttf") else {
        eprintln!("skipped: this machine has no DejaVu Serif");
        return;
    };
    let wide = |name: &str| name.bytes().flat_map(|byte| [0, byte]).collect::<Vec<u8>>();
    let renamed = replaced(font, b"DejaVu Serif", b"Nowhere Else");
    let renamed = replaced(renamed, &wide("DejaVu Serif"), &wide("Nowhere Else"));
    for studio in studios().await {
        let attached = studio.dir().join("attached.ttf");
        std::fs::write(&attached, &renamed).unwrap();
        let attach = format!(
            "-attach {} -metadata:s:t mimetype=application/x-truetype-font",
            attached.display()
        );
        let mut drawn = Vec::new();
        for (name, family, attach) in [
            ("attached.mkv", "Nowhere Else", attach.as_str()),
            ("known.mkv", "DejaVu Serif", ""),
            ("missing.mkv", "Nowhere Else", ""),
        ] {
            let script = studio.dir().join("lines.ass");
            let lines = format!(
                "[Script Info]\nScriptType: v4.00+\nPlayResX: 320\nPlayResY: 180\n\n[V4+ Styles]\n\
                 Format: Name, Fontname, Fontsize, PrimaryColour, Alignment\n\
                 Style: D,{family},60,&H00FFFFFF,5\n\n[Events]\n\
                 Format: Layer, Start, End, Style, Text\nDialogue: 0,0:00:00.00,0:00:03.00,D,Stories\n"
            );
            std::fs::write(&script, lines).unwrap();
            let words = format!(
                "-f lavfi -i color=black:s=320x180:r=25:d=3 -i {} -map 0 -map 1 -c:v libx264 -preset ultrafast \
                 -c:s ass {attach}",
                script.display()
            );
            let film = film(&studio, name, &words).await;
            let execution = studio.start_request(&film, burned(&film), 64 << 20).await;
            let file = record(&studio, &*execution, 0, [1]).await;
            execution.retire().await.unwrap();
            drawn.push(Pictures::of(&studio, &file, SIZE, "yuv420p").await);
        }
        let (same, other) = (
            drawn[0].distance(3, &drawn[1], 3),
            drawn[2].distance(3, &drawn[1], 3),
        );
        assert!(drawn[1].brightness(3) > 20.0, "nothing is drawn");
        assert!(same < 0.1, "{same} from the font that it is");
        assert!(other > 1.0, "every font looks like it: {other}");
    }
}

/// `bytes` with `new` for every `old`, which is as long.
fn replaced(mut bytes: Vec<u8>, old: &[u8], new: &[u8]) -> Vec<u8> {
    assert_eq!(old.len(), new.len());
    for at in 0..bytes.len() - old.len() {
        if bytes[at..].starts_with(old) {
            bytes[at..at + old.len()].copy_from_slice(new);
        }
    }
    bytes
}

/// A real film with eight tracks of SubRip: the second one is drawn when it is asked for.
#[tokio::test]
async fn the_track_that_was_asked_for_is_drawn() {
    let Some(path) = real("h264-2xaac-8subrip.mkv") else {
        return;
    };
    let studio = Studio::open().await;
    let film = Film::open(path.clone());
    let is_subtitle = |kind: &StreamKind| matches!(kind, StreamKind::Subtitle(_));
    let tracks = film.facts.streams.iter().filter(|s| is_subtitle(&s.kind));
    let second = tracks.map(|s| s.index).nth(1).unwrap();
    let reference = studio.dir().join("reference.mkv");
    let words = format!(
        "-v error -y -copyts -i {0} -map 0:v:0 -vf scale=320:180:flags=bicubic,setsar=1,format=yuv420p,subtitles={0}:si=1 \
         -c:v ffv1 {1}",
        path.display(),
        reference.display()
    );
    tool(&studio, "ffmpeg", &words.split(' ').collect::<Vec<_>>()).await;
    let theirs = Pictures::of(&studio, &reference, SIZE, "yuv420p").await;
    let request = small(&film, SIZE, |encode| encode.burn = Some(second));
    let execution = studio.start_request(&film, request, 64 << 20).await;
    let file = record(&studio, &*execution, 0, [1]).await;
    let ours = Pictures::of(&studio, &file, SIZE, "yuv420p").await;
    let plain = studio
        .start_request(&film, small(&film, SIZE, |_| {}), 64 << 20)
        .await;
    let file = record(&studio, &*plain, 0, [1]).await;
    let without = Pictures::of(&studio, &file, SIZE, "yuv420p").await;
    let lines = |pictures: &Pictures| {
        let places = (150..178).flat_map(|y| (95..220).map(move |x| (x, y)));
        let off = places.map(|(x, y)| (pictures.luma(6, x, y) - theirs.luma(30, x, y)).abs());
        off.sum::<f64>() / (28.0 * 125.0)
    };
    let (near, far) = (lines(&ours), lines(&without));
    assert!(near < 0.5 * far, "{near} with the lines, {far} without");
    plain.retire().await.unwrap();
    studio.close(execution).await;
}

//! What a copied picture says of itself besides its samples: how bright its mastering display was, and captions that
//! are hidden in it. A player is told the same wherever it begins.

use std::path::Path;

use ether_encoder::{Protocol, SegmentContainer};

use super::film::{COPY, Film, INIT, Major, Make, Studio, fetch};
use super::screening::{film, real, record, studios, tags, tool};

/// The display of `hdr10.mkv` and its levels, as boxes of MP4 have them (ISO/IEC 23001-8): primaries as green, blue
/// and red, the white point, the most and the least light, and the levels of the brightest picture and on average.
const DISPLAY: [u16; 8] = [13_250, 34_500, 7_500, 3_000, 34_000, 16_000, 15_635, 16_450];
const LIGHT: [u32; 2] = [10_000_000, 1];
const LEVELS: [u16; 2] = [1_000, 400];

const COPIED: Make = Make { target: 1, ..COPY };

fn mastering() -> (Vec<u8>, Vec<u8>) {
    let display = DISPLAY.iter().flat_map(|n| n.to_be_bytes());
    let light = LIGHT.iter().flat_map(|n| n.to_be_bytes());
    let levels = LEVELS.iter().flat_map(|n| n.to_be_bytes());
    let whole = |kind: &[u8], body: Vec<u8>| [kind, &body].concat();
    (
        whole(b"mdcv", display.chain(light).collect()),
        whole(b"clli", levels.collect()),
    )
}

/// What a decoder says beside the pictures of a file: these `entries`, one line each.
async fn said(studio: &Studio, file: &Path, entries: &str, more: &[&str]) -> String {
    let mut args = "-v error -select_streams v -of csv=p=0 -show_entries"
        .split(' ')
        .collect::<Vec<_>>();
    args.push(entries);
    args.extend(more);
    args.push(file.to_str().unwrap());
    String::from_utf8(tool(studio, "ffprobe", &args).await).unwrap()
}

/// What the first picture of a file is said to be like.
async fn beside(studio: &Studio, file: &Path) -> Vec<String> {
    let entries = "frame_side_data=side_data_type,max_luminance,max_content";
    let text = said(studio, file, entries, &["-read_intervals", "%+#1"]).await;
    text.lines().map(str::to_owned).collect()
}

/// Case 10 for a player of HDR that gets the source's own pictures: from a segment amid the film, in either container.
#[tokio::test]
async fn a_copy_says_how_bright_it_was_mastered_wherever_a_player_begins() {
    let film = Film::clip("hdr10.mkv");
    let told = |said: &[String]| {
        let tells = |what: &str, value: &str| said.iter().any(|l| l.contains(what) && l.contains(value));
        tells("Mastering display", "10000000/10000") && tells("Content light level", "1000")
    };
    for studio in studios().await {
        let execution = studio.start(&film, COPIED, 64 << 20).await;
        let middle = film.request(COPIED).timeline.len() as u32 / 2;
        let file = record(&studio, &*execution, 0, [middle]).await;
        execution.retire().await.unwrap();
        assert_eq!(tags(&studio, &file).await, "tv,bt2020nc,smpte2084,bt2020");
        let said = beside(&studio, &file).await;
        assert!(told(&said), "{said:?}");

        let streams = Make {
            container: SegmentContainer::MpegTs,
            ..COPIED
        };
        let execution = studio.start(&film, streams, 64 << 20).await;
        let bytes = fetch(&*execution, super::film::segment(middle)).await.unwrap();
        execution.retire().await.unwrap();
        let file = studio.dir().join("middle.ts");
        std::fs::write(&file, bytes).unwrap();
        let said = beside(&studio, &file).await;
        assert!(told(&said), "{said:?}");
    }
}

/// Films whose containers alone say it: so does the initialization segment.
#[tokio::test]
async fn what_only_the_container_says_of_the_display_stands_in_the_initialization_segment() {
    let Some(current) = Major::Current.program() else {
        return;
    };
    let current = current.to_str().unwrap();
    let maker = Studio::open().await;
    // Only the current FFmpeg writes what its encoder knows into the container.
    let encoded = maker.dir().join("encoded.mp4");
    let words = "-v error -y -t 3 -i".split(' ');
    let clip = super::film::clip("hdr10.mkv");
    let words = words.chain([
        clip.to_str().unwrap(),
        "-map",
        "0:v",
        "-vf",
        "scale=256:144",
        "-c:v",
        "libx265",
    ]);
    let words = words.chain("-preset ultrafast -x265-params log-level=error:keyint=24".split(' '));
    let words = words.chain([encoded.to_str().unwrap()]).collect::<Vec<_>>();
    tool(&maker, current, &words).await;
    let (display, levels) = mastering();
    let holds = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    for name in ["silent.mp4", "silent.mkv"] {
        let words = format!(
            "-i {} -c copy -bsf:v filter_units=remove_types=39",
            encoded.display()
        );
        let film = film(&maker, name, &words).await;
        for studio in studios().await {
            let execution = studio.start(&film, COPIED, 64 << 20).await;
            let init = fetch(&*execution, INIT).await.unwrap();
            execution.retire().await.unwrap();
            assert!(holds(&init, &display), "{name}: the display is not described");
            assert!(holds(&init, &levels), "{name}: the levels are not stated");
        }
    }
}

/// A real broadcast with captions in its pictures: a copy has as many as the source, in every protocol.
#[tokio::test]
async fn captions_that_are_hidden_in_the_picture_stay() {
    let Some(path) = real("h264-aac-cea608.ts") else {
        return;
    };
    let captions = async |studio: &Studio, file: &Path| {
        said(studio, file, "frame_side_data=side_data_type", &[])
            .await
            .matches("Closed Captions")
            .count()
    };
    let film = Film::open(path);
    for studio in studios().await {
        let expected = captions(&studio, &film.path).await;
        assert!(expected > 0, "the film has none");
        let request = film.request(COPIED);
        let count = request.timeline.len() as u32;
        for protocol in [request.protocol, Protocol::Dash] {
            let request = ether_encoder::Request {
                protocol,
                ..request.clone()
            };
            let execution = studio.start_request(&film, request, 64 << 20).await;
            let file = record(&studio, &*execution, 0, 0..count).await;
            execution.retire().await.unwrap();
            let found = captions(&studio, &file).await;
            assert_eq!(found, expected, "{protocol:?}");
        }
    }
}

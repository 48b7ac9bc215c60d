//! Shapes, fields and times of pictures: upright once, woven once, the right shape, and never out of order.

use super::film::{Film, INIT, Shape, Studio, fetch, segment};
use super::screening::{Pictures, film, record, small, studios, tool};

/// Case 18: a film that is to be turned looks like the same film that never had to be.
#[tokio::test]
async fn rotated_films_come_out_upright_once() {
    for studio in studios().await {
        let (turned, plain) = (Film::clip("rotated.mp4"), Film::clip("upright.mp4"));
        let shown = async |film: &Film, size| {
            let execution = studio
                .start_request(film, small(film, size, |_| {}), 64 << 20)
                .await;
            let file = record(&studio, &*execution, 0, [0]).await;
            execution.retire().await.unwrap();
            file
        };
        let turned = shown(&turned, (180, 320)).await;
        let turned = Pictures::of(&studio, &turned, (180, 320), "yuv420p").await;
        let plain = shown(&plain, (320, 180)).await;
        let plain = Pictures::of(&studio, &plain, (320, 180), "yuv420p").await;
        // The matrix turns a quarter against the clock: what was at the right is at the top.
        let mut off = 0.0;
        for (x, y) in [(20, 20), (100, 40), (290, 30), (30, 150), (160, 90), (300, 160)] {
            off += (plain.luma(5, x, y) - turned.luma(5, y, 319 - x)).abs();
        }
        assert!(off < 60.0, "six places are {off} apart");
    }
}

/// A real film whose matrix turns and mirrors.
#[tokio::test]
async fn a_mirrored_film_is_shown_as_other_players_show_it() {
    let Some(path) = super::screening::real("h264-aac-rot90.mp4") else {
        return;
    };
    let film = Film::open(path.clone());
    for studio in studios().await {
        let size = (360, 540);
        let execution = studio
            .start_request(&film, small(&film, size, |_| {}), 64 << 20)
            .await;
        let file = record(&studio, &*execution, 0, [0]).await;
        execution.retire().await.unwrap();
        let ours = Pictures::of(&studio, &file, size, "yuv420p").await;
        let reference = studio.dir().join("reference.mkv");
        let words = format!(
            "-v error -y -i {} -map 0:v -vf scale=360:540 -c:v ffv1 -pix_fmt yuv420p {}",
            path.display(),
            reference.display()
        );
        tool(&studio, "ffmpeg", &words.split(' ').collect::<Vec<_>>()).await;
        let theirs = Pictures::of(&studio, &reference, size, "yuv420p").await;
        let off = ours.distance(3, &theirs, 3);
        assert!(off < 6.0, "{off} apart from what FFmpeg shows");
    }
}

/// How much each line differs from both of its neighbours, where fields of two moments are woven.
fn comb(pictures: &Pictures, n: usize) -> f64 {
    let mut sum = 0.0;
    for y in 1..pictures.height - 1 {
        for x in (0..pictures.width).step_by(2) {
            let line = pictures.luma(n, x, y);
            let (above, below) = (pictures.luma(n, x, y - 1), pictures.luma(n, x, y + 1));
            if (line - above) * (line - below) > 0.0 {
                sum += (line - above).abs().min((line - below).abs());
            }
        }
    }
    sum / (pictures.width * pictures.height) as f64
}

/// Case 7, and the other order of fields, which no header but the pictures themselves tell.
#[tokio::test]
async fn fields_are_woven_into_whole_pictures_of_the_right_shape() {
    let studio = Studio::open().await;
    let words = "-f lavfi -i testsrc2=size=720x576:rate=50:duration=3 -vf tinterlace=interleave_bottom,\
                 fieldorder=bff,setsar=64/45 -c:v mpeg2video -flags +ildct+ilme -top 0 -b:v 8M -f mpegts";
    let bottom = film(&studio, "bottom.ts", words).await;
    for film in [Film::clip("interlaced.ts"), bottom] {
        let video = film.facts.main_video().and_then(|s| s.video()).unwrap();
        assert_eq!(
            video
                .sample_aspect
                .map(|a| a.as_f64() * f64::from(video.width) / f64::from(video.height)),
            Some(16.0 / 9.0)
        );
        let size = (1024, 576);
        let mut found = Vec::new();
        for deinterlace in [false, true] {
            let request = small(&film, size, |encode| encode.deinterlace = deinterlace);
            let execution = studio.start_request(&film, request, 64 << 20).await;
            let file = record(&studio, &*execution, 0, [1]).await;
            execution.retire().await.unwrap();
            let pictures = Pictures::of(&studio, &file, size, "yuv420p").await;
            assert_eq!(pictures.len(), 25);
            found.push((comb(&pictures, 0) + comb(&pictures, 12)) / 2.0);
        }
        assert!(found[1] < found[0] * 0.5, "combs {found:.3?} without and with");
    }
}

/// Case 9: an odd size in 4:4:4 becomes an even one in 4:2:0 whose edges have the colours of the film.
#[tokio::test]
async fn odd_sizes_lose_no_colour_at_the_edges() {
    let film = Film::clip("odd-size.mkv");
    for studio in studios().await {
        let size = (852, 478);
        let execution = studio
            .start_request(&film, small(&film, size, |_| {}), 64 << 20)
            .await;
        let file = record(&studio, &*execution, 0, [0]).await;
        execution.retire().await.unwrap();
        let ours = Pictures::of(&studio, &file, size, "yuv420p").await;
        let reference = studio.dir().join("reference.mkv");
        let words = format!(
            "-v error -y -i {} -map 0:v -frames:v 3 -vf crop=852:478:0:0,zscale=852:478,format=yuv420p -c:v ffv1 {}",
            film.path.display(),
            reference.display()
        );
        tool(&studio, "ffmpeg", &words.split(' ').collect::<Vec<_>>()).await;
        let theirs = Pictures::of(&studio, &reference, size, "yuv420p").await;
        for (x, y) in [(847, 100), (847, 300), (400, 473), (847, 473), (100, 473), (4, 4)] {
            let (a, b) = (ours.around(2, x, y), theirs.around(2, x, y));
            let off = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(off < 14.0, "at {x}, {y}: {a:.0?} instead of {b:.0?}");
        }
    }
}

/// Every second of `film`, of which `seconds` are made: pictures in order, none crammed into another, and sound
/// on its grid.
async fn in_order(studio: &Studio, film: &Film, size: (u32, u32), seconds: u32) -> Vec<Shape> {
    let execution = studio
        .start_request(film, small(film, size, |_| {}), 64 << 20)
        .await;
    let init = fetch(&*execution, INIT).await.unwrap();
    let mut shapes = Vec::new();
    for n in 0..seconds {
        shapes.push(Shape::read(&init, &fetch(&*execution, segment(n)).await.unwrap()));
    }
    let mut shown: Vec<i64> = shapes
        .iter()
        .flat_map(|s| s.pictures.iter().map(|p| p.1))
        .collect();
    shown.sort_unstable();
    let least = shown.windows(2).map(|pair| pair[1] - pair[0]).min();
    assert!(least > Some(900), "two pictures are {least:?} ticks apart");
    let sounds: Vec<(i64, u32)> = shapes.iter().flat_map(|s| s.sounds.iter().copied()).collect();
    for pair in sounds.windows(2) {
        let end = pair[0].0 + i64::from(pair[0].1);
        assert_eq!(end, pair[1].0, "sound breaks, or comes twice");
    }
    execution.retire().await.unwrap();
    shapes
}

/// A muxer wrote times that go back: what was shown already is not shown again, and the rest is where it belongs.
#[tokio::test]
async fn times_that_go_back_are_not_crammed_in() {
    for studio in studios().await {
        let words = "-f lavfi -i testsrc2=s=160x90:r=25:d=6 -f lavfi -i sine=d=6 -c:v libx264 -preset ultrafast \
             -bf 0 -g 25 -c:a aac -strict -2 \
             -bsf:v setts=pts=PTS-if(between(N\\,60\\,69)\\,300\\,0)-if(between(N\\,100\\,119)\\,1000\\,0):dts=DTS-2000";
        let film = film(&studio, "back.mkv", words).await;
        let shapes = in_order(&studio, &film, (160, 90), 5).await;
        let counts: Vec<usize> = shapes.iter().map(|s| s.pictures.len()).collect();
        assert_eq!((counts[0], counts[1]), (25, 25), "{counts:?}");
        assert!(counts[2] < 25 && counts[2] > 10, "{counts:?}");
    }
}

/// A recording in which the picture grows and the sound gets more channels, as between a film and its breaks.
#[tokio::test]
async fn a_film_that_changes_its_size_and_its_channels_plays_on() {
    for studio in studios().await {
        let x264 = "-c:v libx264 -preset ultrafast -g 25 -c:a ac3 -f mpegts";
        let before =
            format!("-f lavfi -i testsrc2=s=160x90:r=25:d=3 -f lavfi -i sine=r=48000:d=3 -ac 2 {x264}");
        let six = "sin(880*PI*t)|sin(880*PI*t)|0|0|0|0:c=5.1(side):s=48000:d=3";
        let after = format!(
            "-f lavfi -i testsrc2=s=320x180:r=25:d=3 -f lavfi -i aevalsrc={six} -output_ts_offset 3 {x264}"
        );
        let first = film(&studio, "before.ts", &before).await.path;
        let second = film(&studio, "after.ts", &after).await.path;
        let joined = [std::fs::read(first).unwrap(), std::fs::read(second).unwrap()].concat();
        let path = studio.dir().join("joined.ts");
        std::fs::write(&path, joined).unwrap();
        let film = Film::open(path);
        let shapes = in_order(&studio, &film, (160, 90), 5).await;
        assert!(shapes.iter().all(|s| s.pictures.len() >= 24), "pictures are lost");
        let counts: Vec<usize> = shapes.iter().map(|s| s.sounds.len()).collect();
        assert!(
            counts.iter().all(|n| (46..=48).contains(n)),
            "pieces of sound a second: {counts:?}"
        );
    }
}

/// Pictures before zero: an edit list of MP4 hides them; in Matroska, whose times FFmpeg does not read there, they
/// are lost and nothing else is.
#[tokio::test]
async fn a_film_that_begins_before_zero_plays() {
    let studio = Studio::open().await;
    for (name, whole) in [("before.mp4", 0..2), ("before.mkv", 1..2)] {
        let words = "-f lavfi -i testsrc2=s=160x90:r=25:d=3 -f lavfi -i sine=d=3 -c:v libx264 -preset ultrafast \
                     -c:a aac -output_ts_offset -0.9 -avoid_negative_ts disabled";
        let film = film(&studio, name, words).await;
        let shapes = in_order(&studio, &film, (160, 90), 2).await;
        let counts: Vec<usize> = shapes.iter().map(|s| s.pictures.len()).collect();
        assert!(
            counts[whole].iter().all(|n| (24..=26).contains(n)),
            "{name}: {counts:?}"
        );
    }
}

/// A still picture beside the film is not the film.
#[tokio::test]
async fn a_cover_is_not_what_is_encoded() {
    let film = Film::clip("cover-first.mkv");
    let studio = Studio::open().await;
    let shapes = in_order(&studio, &film, (320, 180), 2).await;
    assert!(shapes.iter().all(|s| s.pictures.len() == 25));
}

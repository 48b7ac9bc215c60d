//! Pictures show something, upright, in the right shape, whatever the film is like.

use std::path::{Path, PathBuf};

use ether_media::Ticks;

use super::{House, clips, house, named, open, real_files, tool};
use crate::PictureError;

async fn picture(house: &House, path: &Path, at: Ticks) -> Vec<u8> {
    let file = open(path);
    let facts = house.prober.facts(file.clone()).await.unwrap();
    let picture = house.prober.still_picture(file, &facts, at, 320).await;
    picture
        .unwrap_or_else(|e| panic!("{}: {e:?}", path.display()))
        .to_vec()
}

/// Width and height in the frame header, which FFmpeg writes as the baseline one.
fn size(jpeg: &[u8]) -> (u32, u32) {
    let at = jpeg.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    let number = |at: usize| u32::from(jpeg[at]) << 8 | u32::from(jpeg[at + 1]);
    (number(at + 7), number(at + 5))
}

/// Mean brightness, by FFmpeg's own reading of the JPEG.
async fn brightness(house: &House, jpeg: &[u8]) -> u8 {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("picture.jpg");
    std::fs::write(&path, jpeg).unwrap();
    let path = path.to_str().unwrap();
    let filter = "scale=1:1:flags=area,format=gray";
    let args = ["-v", "error", "-i", path, "-vf", filter, "-f", "rawvideo", "-"];
    tool(house, "ffmpeg", &args).await[0]
}

/// How far brightness goes from its mean, by FFmpeg's own reading of the JPEG.
async fn spread(house: &House, jpeg: &[u8]) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("picture.jpg");
    std::fs::write(&path, jpeg).unwrap();
    let path = path.to_str().unwrap();
    let args = [
        "-v",
        "error",
        "-i",
        path,
        "-vf",
        "format=gray",
        "-f",
        "rawvideo",
        "-",
    ];
    let samples = tool(house, "ffmpeg", &args).await;
    let count = samples.len() as f64;
    let mean = samples.iter().map(|s| f64::from(*s)).sum::<f64>() / count;
    let squares = samples
        .iter()
        .map(|s| (f64::from(*s) - mean).powi(2))
        .sum::<f64>();
    (squares / count).sqrt()
}

#[tokio::test]
async fn every_file_with_a_film_or_a_cover_has_a_picture() {
    let house = house();
    // The long ones are tried for what is particular to them below.
    let small = |path: &&PathBuf| path.metadata().is_ok_and(|m| m.len() < 3 << 20);
    for path in real_files().iter().chain(&clips()).filter(small) {
        let file = open(path);
        let facts = house.prober.facts(file.clone()).await.unwrap();
        let at = Ticks(facts.duration.unwrap_or_default().0 / 10);
        match house.prober.still_picture(file, &facts, at, 320).await {
            Ok(jpeg) => {
                let (w, h) = size(&jpeg);
                assert_eq!(w, 320, "{}", path.display());
                assert!((32..=1000).contains(&h), "{}: {w}x{h}", path.display());
            }
            Err(PictureError::NoPicture) => {
                assert!(
                    facts.streams.iter().all(|s| s.video().is_none()),
                    "{}",
                    path.display()
                );
            }
            Err(error) => panic!("{}: {error:?}", path.display()),
        }
    }
    house.processes.shutdown().await;
}

#[tokio::test]
async fn a_black_opening_is_passed_over() {
    let Some(path) = named(&clips(), "flash-beep.mkv") else {
        return;
    };
    let house = house();
    // Black but for a white flash at every tenth second; keyframes stand on the flashes.
    let jpeg = picture(&house, &path, Ticks::from_secs_f64(12.0)).await;
    let grey = brightness(&house, &jpeg).await;
    assert!(grey > 128, "brightness {grey}");
    house.processes.shutdown().await;
}

/// A film of two plain stretches with something to see between them.
async fn mostly_plain(house: &House, dir: &Path, colour: &str, lengths: [u32; 3]) -> PathBuf {
    let path = dir.join(format!("{colour}.mp4"));
    let plain = |seconds: u32| format!("color={colour}:s=160x90:r=5:d={seconds}[p{seconds}]");
    let [before, between, after] = lengths;
    let graph = format!(
        "{};{};testsrc2=s=160x90:r=5:d={between}[x];[p{before}][x][p{after}]concat=n=3",
        plain(before),
        plain(after)
    );
    let out = path.to_str().unwrap();
    let encode = ["-c:v", "libx264", "-preset", "ultrafast", "-g", "10", "-y", out];
    let args = [&["-v", "error", "-filter_complex", &graph][..], &encode].concat();
    tool(house, "ffmpeg", &args).await;
    path
}

#[tokio::test]
async fn plain_stretches_are_passed_over_wherever_they_are() {
    let house = house();
    let dir = tempfile::tempdir().unwrap();
    // Where the look begins it is plain: within its reach there is more to see; out of its reach; before it.
    for (colour, at, lengths) in [
        ("white", 12.0, [30, 8, 22]),
        ("gray", 40.0, [300, 100, 101]),
        ("black", 30.0, [4, 8, 48]),
    ] {
        let path = mostly_plain(&house, dir.path(), colour, lengths).await;
        let jpeg = picture(&house, &path, Ticks::from_secs_f64(at)).await;
        let spread = spread(&house, &jpeg).await;
        assert!(spread > 20.0, "{colour}: brightness varies by {spread}");
    }
    house.processes.shutdown().await;
}

#[tokio::test]
async fn a_turned_and_an_anamorphic_film_have_the_shape_they_are_shown_in() {
    let house = house();
    if let Some(path) = named(&clips(), "rotated.mp4") {
        let (w, h) = size(&picture(&house, &path, Ticks::ZERO).await);
        assert!(h > w, "{w}x{h}");
    }
    if let Some(path) = named(&clips(), "anamorphic.mkv") {
        let (w, h) = size(&picture(&house, &path, Ticks::ZERO).await);
        assert_eq!((w, h), (320, 180));
    }
    house.processes.shutdown().await;
}

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

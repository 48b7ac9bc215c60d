//! Every channel comes out where it belongs and as loud as the published rules say, at the right time.

use ether_encoder::{AudioAction, AudioCodec};

use super::film::{Film, INIT, Shape, Studio, fetch, segment};
use super::screening::{film, heard, record, sound, studios, tone, tool};

/// The tones of a source's channels, in hertz.
const TONES: [f64; 8] = [440.0, 550.0, 660.0, 60.0, 770.0, 880.0, 990.0, 1_100.0];

/// How strong each tone is in each channel of what comes out, over the second second.
async fn mixed(studio: &Studio, film: &Film, codec: AudioCodec, channels: u16) -> Vec<[f64; 8]> {
    let execution = studio
        .start_request(film, heard(film, codec, channels), 64 << 20)
        .await;
    let file = record(studio, &*execution, 0, [0, 1]).await;
    execution.retire().await.unwrap();
    let sound = sound(studio, &file, usize::from(channels)).await;
    let second: Vec<&[f64]> = sound.iter().map(|channel| &channel[48_000..91_200]).collect();
    let loudest = second
        .iter()
        .copied()
        .flatten()
        .fold(0.0_f64, |most, s| most.max(s.abs()));
    assert!(loudest < 1.03, "clipped at {loudest}");
    second
        .into_iter()
        .map(|channel| TONES.map(|hertz| tone(channel, hertz)))
        .collect()
}

/// Sound of a tone in each channel, each with this amplitude.
async fn tones(studio: &Studio, name: &str, layout: &str, channels: usize, amplitude: f64) -> Film {
    let parts = TONES[..channels]
        .iter()
        .map(|hertz| format!("{amplitude}*sin({hertz}*2*PI*t)"));
    let parts = parts.collect::<Vec<_>>().join("|");
    let words = format!("-f lavfi -i aevalsrc={parts}:c={layout}:s=48000:d=3 -c:a pcm_s16le -f matroska");
    film(studio, name, &words).await
}

#[track_caller]
fn mix(what: &str, got: &[[f64; 8]], expected: &[&[(usize, f64)]], within: f64) {
    assert_eq!(got.len(), expected.len());
    for (n, (tones, expected)) in got.iter().zip(expected).enumerate() {
        for (tone, level) in tones.iter().enumerate() {
            let wanted = expected
                .iter()
                .find(|(t, _)| *t == tone)
                .map_or(0.0, |(_, level)| *level);
            assert!(
                (level - wanted).abs() <= within,
                "{what}: channel {n} has {:.0} Hz at {level:.3} instead of {wanted:.3}",
                TONES[tone]
            );
        }
    }
}

/// Case 15. The film's channels are as loud as can be, so what is added up has to be turned down.
#[tokio::test]
async fn side_speakers_come_out_where_they_belong() {
    for studio in studios().await {
        let film = Film::clip("surround-side.mkv");
        // The clip's encoder left a third of the effects.
        let each: [&[(usize, f64)]; 6] = [
            &[(0, 1.0)],
            &[(1, 1.0)],
            &[(2, 1.0)],
            &[(3, 0.32)],
            &[(4, 1.0)],
            &[(5, 1.0)],
        ];
        for codec in [AudioCodec::Aac, AudioCodec::Opus] {
            let got = mixed(&studio, &film, codec, 6).await;
            mix(&format!("{codec:?} 5.1"), &got, &each, 0.1);
        }
        let stereo = mixed(&studio, &film, AudioCodec::Aac, 2).await;
        for (own, other, front) in [(0, 1, &stereo[0]), (1, 0, &stereo[1])] {
            let surround = 4 + own;
            assert!(front[other] < 0.03 && front[3] < 0.03, "{front:.3?}");
            assert!(
                (front[2] / front[own] - 0.707).abs() < 0.05,
                "the centre in {front:.3?}"
            );
            assert!(
                (front[surround] / front[own] - 0.707).abs() < 0.05,
                "the surround in {front:.3?}"
            );
        }
    }
}

/// What fits without being turned down has exactly the published levels.
#[tokio::test]
async fn channels_are_mixed_as_published() {
    let studio = Studio::open().await;
    let half = std::f64::consts::FRAC_1_SQRT_2 * 0.25;
    let surround = tones(&studio, "side.mkv", "5.1(side)", 6, 0.25).await;
    let got = mixed(&studio, &surround, AudioCodec::Aac, 2).await;
    let stereo: [&[(usize, f64)]; 2] = [
        &[(0, 0.25), (2, half), (4, half)],
        &[(1, 0.25), (2, half), (5, half)],
    ];
    mix("5.1 to stereo", &got, &stereo, 0.015);

    // FFmpeg's order of 7.1: fronts, centre, effects, backs, sides.
    let wide = tones(&studio, "wide.mkv", "7.1", 8, 0.25).await;
    let got = mixed(&studio, &wide, AudioCodec::Aac, 6).await;
    let six: [&[(usize, f64)]; 6] = [
        &[(0, 0.25)],
        &[(1, 0.25)],
        &[(2, 0.25)],
        &[(3, 0.25)],
        &[(4, 0.25), (6, half)],
        &[(5, 0.25), (7, half)],
    ];
    mix("7.1 to 5.1", &got, &six, 0.02);

    let mono = tones(&studio, "mono.mkv", "mono", 1, 0.25).await;
    let got = mixed(&studio, &mono, AudioCodec::Aac, 2).await;
    mix("mono to stereo", &got, &[&[(0, half)], &[(0, half)]], 0.015);
    let got = mixed(&studio, &mono, AudioCodec::Aac, 1).await;
    mix("mono", &got, &[&[(0, 0.25)]], 0.015);
}

/// When sound that was silent first is heard, in seconds.
fn onset(samples: &[f64], from: f64) -> f64 {
    let first = (from * 48_000.0) as usize;
    let heard = samples[first..].iter().position(|s| s.abs() > 0.1).unwrap();
    (first + heard) as f64 / 48_000.0
}

/// Beeps at half past each second are heard then, in the first segment and after a seek, whatever an encoder
/// puts before its sound; rates that codecs do not know, late sound and early ends included.
#[tokio::test]
async fn sound_is_heard_when_it_should_be() {
    for studio in studios().await {
        let beep = "if(between(mod(t,1),0.5,0.6),sin(2*PI*1000*t),0)";
        let picture = "-f lavfi -i color=black:s=64x36:r=25:d=4";
        let x264 = "-c:v libx264 -preset ultrafast -g 25";
        let cases = [
            (
                "plain.mkv",
                format!("{picture} -f lavfi -i aevalsrc={beep}:s=48000:d=4 {x264} -c:a flac"),
                0.0,
            ),
            (
                "odd.mkv",
                format!("{picture} -f lavfi -i aevalsrc={beep}:s=37800:d=4 {x264} -c:a flac"),
                0.0,
            ),
            (
                "late.mkv",
                format!("{picture} -itsoffset 0.82 -f lavfi -i aevalsrc={beep}:s=44100:d=2 {x264} -c:a ac3"),
                0.82,
            ),
        ];
        for (name, words, later) in cases {
            let words = words.replace(',', "\\,").replace("\\,d=", ",d=");
            let film = film(&studio, name, &words).await;
            for codec in [AudioCodec::Aac, AudioCodec::Opus] {
                let mut request = film.request(super::film::Make {
                    target: 1,
                    ..super::film::ENCODE
                });
                request.audio = heard(&film, codec, 2).audio;
                let execution = studio.start_request(&film, request, 64 << 20).await;
                let origin = film.facts.main_video().and_then(|v| v.start).unwrap();
                let begin = film.facts.start.min(origin).as_secs_f64();
                for segments in [vec![2, 3], vec![0, 1, 2, 3]] {
                    let from = f64::from(segments[0]);
                    let file = record(&studio, &*execution, 0, segments).await;
                    let heard = &sound(&studio, &file, 2).await[0];
                    let wanted = if from > 0.0 {
                        1.5 + later + if later > 0.0 { 0.0 } else { 1.0 }
                    } else {
                        0.5 + later
                    };
                    let at = onset(heard, from);
                    assert!(
                        (at + begin - wanted).abs() < 0.005,
                        "{name}, {codec:?}: from {from} the beep of {wanted} is heard at {at}"
                    );
                }
                execution.retire().await.unwrap();
            }
        }
    }
}

/// Each segment is made by a run of its own, and a tone goes through all of them as if one had made it: a run that
/// began at the seam would fade in there. Of the film's first frame of sound a decoder lacks the half that lies
/// before the film.
#[tokio::test]
async fn a_tone_goes_on_through_every_seam() {
    const COUNT: u32 = 4;
    for studio in studios().await {
        let source = format!("-f lavfi -i aevalsrc=0.5*cos(440*2*PI*t):c=mono:s=48000:d={COUNT}");
        let films = [
            film(&studio, "plain.mov", &format!("{source} -c:a pcm_s16le")).await,
            // Of what is compressed, a decoder needs the frame before, too.
            film(
                &studio,
                "compressed.mp4",
                &format!("{source} -c:a aac -aac_coder fast -b:a 256k"),
            )
            .await,
        ];
        for film in films {
            // Opus predicts loudness from what it made before, and two runs made different things of it.
            for (codec, begin, within) in [(AudioCodec::Aac, 1_440, 0.1), (AudioCodec::Opus, 4_800, 0.2)] {
                let mut request = heard(&film, codec, 1);
                if let AudioAction::Encode(encode) = &mut request.audio[0].action {
                    // With fewer bits FFmpeg's AAC leaves holes in pure tones, wherever it begins.
                    encode.bit_rate = 160_000;
                }
                let execution = studio.start_request(&film, request, 64 << 20).await;
                for number in (0..COUNT).rev() {
                    fetch(&*execution, segment(number)).await.unwrap();
                }
                assert_eq!(execution.observe().runs, COUNT, "{codec:?}: runs");
                let file = record(&studio, &*execution, 0, 0..COUNT).await;
                execution.retire().await.unwrap();
                let heard = &sound(&studio, &file, 1).await[0];
                let end = COUNT as usize * 48_000 - 2_400;
                assert!(heard.len() > end, "{codec:?}: {} samples", heard.len());
                for (n, got) in heard.iter().enumerate().take(end).skip(begin) {
                    let wanted = 0.5 * (440.0 * std::f64::consts::TAU * n as f64 / 48_000.0).cos();
                    assert!(
                        (got - wanted).abs() < within,
                        "{}, {codec:?}: sample {n} is {got:.3} instead of {wanted:.3}",
                        film.path.display()
                    );
                }
            }
        }
        studio.shut().await;
    }
}

/// Whoever chose the film's second sound hears that one, wherever a run begins.
#[tokio::test]
async fn the_chosen_sound_is_heard_after_a_seek_too() {
    let studio = Studio::open().await;
    let tone_of = |hertz: u32| format!("-f lavfi -i sine=f={hertz}:r=48000:d=4");
    let words = format!("{} {} -map 0 -map 1 -c:a flac", tone_of(440), tone_of(770));
    let film = film(&studio, "two.mkv", &words).await;
    let mut request = heard(&film, AudioCodec::Aac, 1);
    request.audio[0].stream = 1;
    let execution = studio.start_request(&film, request, 64 << 20).await;
    for number in [2, 0] {
        fetch(&*execution, segment(number)).await.unwrap();
        let file = record(&studio, &*execution, 0, [number]).await;
        let heard = &sound(&studio, &file, 1).await[0];
        let amid = number as usize * 48_000 + 14_400;
        let second = &heard[amid..amid + 24_000];
        let (first, chosen) = (tone(second, 440.0), tone(second, 770.0));
        assert!(
            chosen > 0.05 && first < 0.01,
            "segment {number}: {first:.3} of the first, {chosen:.3} of the chosen"
        );
    }
    studio.close(execution).await;
}

/// A broadcast goes from six channels to two and back. FFmpeg then gives once more what it gave already; viewers get
/// every piece once, each where the one before it ends. Newer versions end what they had with half a frame, and one
/// may be missing after a long film: what is given once more has stamps that the next pieces would need.
#[tokio::test]
async fn sound_whose_channels_change_goes_on_without_a_break() {
    for studio in studios().await {
        let mut bytes = Vec::new();
        for (layout, length) in [("5.1", 15), ("stereo", 2), ("5.1", 2)] {
            let path = studio.dir().join(format!("{layout}.ac3"));
            let source = format!("anullsrc=r=48000:cl={layout}:d={length}");
            let args = ["-v", "error", "-y", "-f", "lavfi", "-i", &source, "-c:a", "ac3"];
            let args = args.into_iter().chain([path.to_str().unwrap()]);
            tool(&studio, "ffmpeg", &args.collect::<Vec<_>>()).await;
            bytes.extend(std::fs::read(path).unwrap());
        }
        let joined = studio.dir().join("joined.ac3");
        std::fs::write(&joined, bytes).unwrap();
        let words = format!("-i {} -c copy", joined.display());
        let film = film(&studio, "changing.mkv", &words).await;
        for (codec, frame) in [(AudioCodec::Aac, 1_024), (AudioCodec::Opus, 960)] {
            let request = heard(&film, codec, 2);
            let count = request.timeline.len() as u32;
            assert!(count >= 19, "only {count} segments");
            let execution = studio.start_request(&film, request, 64 << 20).await;
            let init = fetch(&*execution, INIT).await.unwrap();
            let mut end = None;
            for number in 0..count {
                let made = fetch(&*execution, segment(number)).await.unwrap();
                for (start, length) in Shape::read(&init, &made).sounds {
                    let length = i64::from(length);
                    let before = end.replace(start + length).unwrap_or(start);
                    assert!(
                        start == before && length <= 2 * frame && length >= frame / 4,
                        "{codec:?}: {length} samples in segment {number} at {start} after {before}"
                    );
                }
            }
            execution.retire().await.unwrap();
        }
        studio.shut().await;
    }
}

//! The ways in which FFmpeg writes files, made here and compared with what its own `ffprobe` reads from them.

use std::path::Path;

use super::oracle::{facts_agree, keyframes_agree};
use super::{House, house, open, tool};

const FILM: &[&str] = &["-f", "lavfi", "-i", "testsrc2=s=160x90:r=25:d=4"];
const SOUND: &[&str] = &["-f", "lavfi", "-i", "sine=f=440:r=48000:d=4"];
const H264: &[&str] = &[
    "-c:v", "libx264", "-preset", "veryfast", "-g", "20", "-bf", "3", "-pix_fmt", "yuv420p",
];

/// Runs FFmpeg in `dir`, its words put together from `parts`, into `out`.
async fn make(house: &House, dir: &Path, out: &str, parts: &[&[&str]]) {
    let target = dir.join(out);
    let mut args = vec!["-v", "error", "-y", "-nostdin"];
    args.extend(parts.iter().flat_map(|part| part.iter().copied()));
    args.push(target.to_str().unwrap());
    tool(house, "ffmpeg", &args).await;
}

async fn agree(house: &House, path: &Path) {
    assert!(
        facts_agree(house, path).await,
        "{}: not read natively",
        path.display()
    );
    keyframes_agree(house, path).await;
}

#[tokio::test]
async fn every_way_of_writing_one_film_reads_as_ffprobe_reads_it() {
    let house = house();
    let dir = tempfile::tempdir().unwrap();
    make(
        &house,
        dir.path(),
        "base.mp4",
        &[FILM, SOUND, H264, &["-c:a", "aac"]],
    )
    .await;
    let base = dir.path().join("base.mp4");
    let base = base.to_str().unwrap();
    let copies: &[(&str, &[&str])] = &[
        (
            "keyframe-fragments.mp4",
            &["-movflags", "frag_keyframe+empty_moov"],
        ),
        (
            "negative-offsets.mp4",
            &["-movflags", "frag_keyframe+empty_moov+negative_cts_offsets"],
        ),
        ("late-moov.mp4", &["-movflags", "frag_keyframe+delay_moov"]),
        ("half-fragmented.mp4", &["-movflags", "frag_keyframe"]),
        ("single-frames.mp4", &["-movflags", "frag_every_frame+empty_moov"]),
        (
            "dash.mp4",
            &["-movflags", "dash+global_sidx", "-frag_duration", "1000000"],
        ),
        ("faststart.mp4", &["-movflags", "faststart"]),
        ("no-edits.mp4", &["-use_editlist", "0"]),
        ("negative.mp4", &["-movflags", "negative_cts_offsets"]),
        ("plain.mov", &["-f", "mov"]),
        ("plain.mkv", &[]),
        ("live.mkv", &["-live", "1"]),
        ("plain.ts", &[]),
        ("plain.m2ts", &["-mpegts_m2ts_mode", "1", "-f", "mpegts"]),
        ("wraps.ts", &["-output_ts_offset", "95440"]),
        ("starts-at-the-wrap.ts", &["-output_ts_offset", "95442.2"]),
    ];
    for (out, options) in copies {
        make(&house, dir.path(), out, &[&["-i", base, "-c", "copy"], options]).await;
        agree(&house, &dir.path().join(out)).await;
    }
    for out in ["cut.mp4", "cut.mkv", "cut.ts"] {
        make(
            &house,
            dir.path(),
            out,
            &[&["-ss", "1.3", "-i", base, "-c", "copy"]],
        )
        .await;
        agree(&house, &dir.path().join(out)).await;
    }
    let copied: &[&str] = &["-map", "0:v", "-map", "1:a", "-c", "copy"];
    let (plain, delayed) = (["-i", base], ["-itsoffset", "1.5", "-i", base]);
    for out in ["late.mp4", "late.mkv", "late.ts"] {
        for inputs in [[&plain[..], &delayed[..]], [&delayed[..], &plain[..]]] {
            make(&house, dir.path(), out, &[inputs[0], inputs[1], copied]).await;
            agree(&house, &dir.path().join(out)).await;
        }
    }
    house.processes.shutdown().await;
}

#[tokio::test]
async fn every_codec_that_people_own_reads_as_ffprobe_reads_it() {
    let house = house();
    let dir = tempfile::tempdir().unwrap();
    let open_gop: &[&str] = &[
        "-c:v",
        "libx264",
        "-preset",
        "veryfast",
        "-x264-params",
        "open-gop=1:keyint=20:bframes=3",
    ];
    let hevc: &[&str] = &[
        "-c:v",
        "libx265",
        "-preset",
        "ultrafast",
        "-tag:v",
        "hvc1",
        "-pix_fmt",
        "yuv420p10le",
        "-x265-params",
        "open-gop=1:keyint=20:bframes=4:log-level=error",
    ];
    let interlaced: &[&str] = &[
        "-vf",
        "scale=720:576,interlace,setsar=16/15",
        "-c:v",
        "mpeg2video",
        "-flags",
        "+ildct+ilme",
        "-bf",
        "2",
        "-g",
        "12",
    ];
    let vpx: &[&str] = &["-deadline", "realtime", "-cpu-used", "8", "-g", "20"];
    let surround: &[&str] = &["-af", "pan=5.1|c0=c0|c1=c0|c2=c0|c3=c0|c4=c0|c5=c0"];
    let made: &[(&str, &[&[&str]])] = &[
        ("open-gop.mkv", &[FILM, SOUND, open_gop, &["-c:a", "ac3"]]),
        ("open-gop.mp4", &[FILM, SOUND, open_gop, &["-c:a", "eac3"]]),
        (
            "open-gop.ts",
            &[FILM, SOUND, open_gop, surround, &["-c:a", "eac3"]],
        ),
        ("hevc.mp4", &[FILM, SOUND, hevc, &["-c:a", "mp3"]]),
        ("hevc.ts", &[FILM, SOUND, hevc, &["-c:a", "mp2"]]),
        ("hevc.mkv", &[FILM, SOUND, hevc, surround, &["-c:a", "flac"]]),
        (
            "vp9.webm",
            &[FILM, SOUND, &["-c:v", "libvpx-vp9"], vpx, &["-c:a", "libopus"]],
        ),
        (
            "vp9.mp4",
            &[
                FILM,
                SOUND,
                surround,
                &["-c:v", "libvpx-vp9"],
                vpx,
                &["-c:a", "libopus"],
            ],
        ),
        (
            "vp8.webm",
            &[FILM, SOUND, &["-c:v", "libvpx"], vpx, &["-c:a", "libvorbis"]],
        ),
        ("interlaced.ts", &[FILM, SOUND, interlaced, &["-c:a", "ac3"]]),
        (
            "interlaced.mkv",
            &[FILM, SOUND, interlaced, &["-c:a", "pcm_s24le"]],
        ),
        ("mpeg1.ts", &[FILM, SOUND, &["-c:v", "mpeg1video", "-c:a", "mp2"]]),
        ("dts.ts", &[FILM, SOUND, H264, &["-c:a", "dca", "-strict", "-2"]]),
        ("opus.ts", &[FILM, SOUND, H264, &["-c:a", "libopus"]]),
        (
            "dts.mkv",
            &[FILM, SOUND, H264, surround, &["-c:a", "dca", "-strict", "-2"]],
        ),
        ("pcm.mov", &[FILM, SOUND, H264, &["-c:a", "pcm_s16le"]]),
        (
            "422.mp4",
            &[
                FILM,
                &[
                    "-c:v",
                    "libx264",
                    "-preset",
                    "ultrafast",
                    "-pix_fmt",
                    "yuv422p10le",
                ],
            ],
        ),
        (
            "three-tongues.ts",
            &[
                FILM,
                SOUND,
                H264,
                &[
                    "-map",
                    "0",
                    "-map",
                    "1",
                    "-map",
                    "1",
                    "-c:a",
                    "aac",
                    "-metadata:s:a:0",
                    "language=eng",
                    "-metadata:s:a:1",
                    "language=fra",
                ],
            ],
        ),
    ];
    for (out, parts) in made {
        make(&house, dir.path(), out, parts).await;
        agree(&house, &dir.path().join(out)).await;
    }
    house.processes.shutdown().await;
}

#[tokio::test]
async fn covers_and_fonts_keep_ffmpegs_order_and_are_no_films() {
    let house = house();
    let dir = tempfile::tempdir().unwrap();
    make(&house, dir.path(), "cover.jpg", &[FILM, &["-frames:v", "1"]]).await;
    make(
        &house,
        dir.path(),
        "base.mp4",
        &[FILM, SOUND, H264, &["-c:a", "aac"]],
    )
    .await;
    let (cover, base) = (dir.path().join("cover.jpg"), dir.path().join("base.mp4"));
    let (cover, base) = (cover.to_str().unwrap(), base.to_str().unwrap());
    let both: &[&str] = &["-i", base, "-i", cover, "-c", "copy"];
    let attached: &[&str] = &["-i", base, "-c", "copy", "-attach", cover, "-metadata:s:t"];
    let made: &[(&str, &[&[&str]])] = &[
        (
            "cover.mp4",
            &[
                both,
                &["-map", "0", "-map", "1", "-disposition:2", "attached_pic"],
            ],
        ),
        (
            "cover.m4a",
            &[
                both,
                &["-map", "0:a", "-map", "1", "-disposition:1", "attached_pic"],
            ],
        ),
        ("cover.mkv", &[attached, &["mimetype=image/jpeg"]]),
        ("font.mkv", &[attached, &["mimetype=application/x-truetype-font"]]),
        ("first.mkv", &[both, &["-map", "1", "-map", "0"]]),
    ];
    for (out, args) in made {
        make(&house, dir.path(), out, args).await;
        let path = dir.path().join(out);
        agree(&house, &path).await;
        let facts = house.prober.facts(open(&path)).await.unwrap();
        let film = facts.main_video().map(|s| s.codec.as_str().to_owned());
        let expected = (*out != "cover.m4a").then(|| "h264".to_owned());
        assert_eq!(film, expected, "{out}");
    }
    house.processes.shutdown().await;
}

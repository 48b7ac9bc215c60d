//! Where the work of one run meets that of another: whatever is done to a picture, its segments made in any order by
//! many runs hold what one run from the beginning makes of them. The same pieces at the same times, the same pictures
//! by their structural similarity, the same sound by its samples, and no decoder that stumbles from one to the next.
//!
//! The orders are random ones of a seed. The short tier takes one order of each film and plan, alternating between
//! the FFmpegs; `ETHER_SOAK=1` takes ten of each with each FFmpeg, and every real film besides.

mod made;

use std::path::Path;
use std::sync::Arc;

use ether_encoder::{
    AudioAction, AudioCodec, AudioEncode, Protocol, Request, Rung, SegmentContainer, VideoAction, VideoCodec,
    VideoEncode,
};
use ether_media::{MasteringKind, StreamKind};

use super::film::{ENCODE, Film, Make, Studio};
use super::screening::{film, real, small, studios};
use made::Made;

/// How alike each picture must be to that of the straight run, by its structural similarity. Two encodes of one are
/// 0.973 alike at least, a picture of these films and the next 0.9 at most.
const ALIKE: f64 = 0.965;
/// The same where a field or a line of text is all that may be missing.
const VERY_ALIKE: f64 = 0.978;
/// Most segments in one order.
const MOST: usize = 15;
/// Orders of each film and plan in the long tier.
const ORDERS: u64 = 10;

const SIZE: (u32, u32) = (256, 144);
/// A moving picture and a tone, for five seconds.
const MOVING: &str = "-f lavfi -i testsrc2=s=256x144:r=25:d=5 -f lavfi -i sine=f=440:r=44100:d=5";
const H264: &str = "-c:v libx264 -preset veryfast -g 45 -bf 3 -pix_fmt yuv420p -c:a aac";
const WIDE: &str = "-c:v libx265 -preset ultrafast -pix_fmt yuv420p10le -color_primaries bt2020 -colorspace bt2020nc -c:a aac \
     -x265-params log-level=error:keyint=10:colorprim=bt2020:colormatrix=bt2020nc";

/// A film and what is made of it.
struct Case {
    name: String,
    film: Film,
    request: Request,
    alike: f64,
}

impl Case {
    fn new(name: &str, film: &Film, request: Request) -> Self {
        Self {
            name: name.to_owned(),
            film: Film {
                path: film.path.clone(),
                facts: film.facts.clone(),
            },
            request,
            alike: ALIKE,
        }
    }

    fn streams(&self) -> bool {
        let container = SegmentContainer::MpegTs;
        self.request.protocol == Protocol::Hls { container }
    }

    fn copies(&self) -> bool {
        let action = self.request.video.as_ref().map(|video| &video.action);
        action == Some(&VideoAction::Copy)
    }

    fn very_alike(self) -> Self {
        let alike = VERY_ALIKE;
        Self { alike, ..self }
    }
}

fn soaks() -> bool {
    std::env::var_os("ETHER_SOAK").is_some()
}

/// The FFmpegs that make the cases of a story: all of them in the long tier, else the one whose turn it is.
async fn turn(number: usize) -> Vec<Studio> {
    let mut studios = studios().await;
    if soaks() {
        return studios;
    }
    let mine = studios.swap_remove(number % studios.len());
    vec![mine]
}

fn encode(request: &mut Request) -> &mut VideoEncode {
    match request.video.as_mut().map(|video| &mut video.action) {
        Some(VideoAction::Encode(encode)) => encode,
        _ => panic!("the picture is not encoded"),
    }
}

/// HEVC that keeps a wide range.
fn keeping(film: &Film, range: MasteringKind) -> Request {
    small(film, SIZE, |encode| {
        (encode.codec, encode.range, encode.rungs[0].level) = (VideoCodec::Hevc, range, 93);
    })
}

/// Draws the first subtitle track of `film`.
fn drawing(film: &Film, mut request: Request) -> Request {
    let is_subtitle = |kind: &StreamKind| matches!(kind, StreamKind::Subtitle(_));
    let track = film.facts.streams.iter().find(|s| is_subtitle(&s.kind)).unwrap();
    encode(&mut request).burn = Some(track.index);
    request
}

/// A second, smaller quality.
fn two_qualities(mut request: Request) -> Request {
    let encode = encode(&mut request);
    let best = encode.rungs[0];
    encode.rungs.push(Rung {
        width: best.width / 4 * 2,
        height: best.height / 4 * 2,
        ..best
    });
    request
}

/// Every sound of `film` in AAC and once more in Opus.
fn with_sounds(film: &Film, mut request: Request) -> Request {
    let main = request.audio[0].clone();
    let streams = film.facts.streams.iter().filter(|s| s.audio().is_some());
    request.audio = streams
        .flat_map(|stream| {
            [AudioCodec::Aac, AudioCodec::Opus].map(|codec| ether_encoder::AudioTrack {
                stream: stream.index,
                action: AudioAction::Encode(AudioEncode {
                    codec,
                    channels: 2,
                    sample_rate: 48_000,
                    bit_rate: 128_000,
                }),
            })
        })
        .collect();
    assert!(main.stream == request.audio[0].stream);
    request
}

fn as_dash(request: Request) -> Request {
    Request {
        protocol: Protocol::Dash,
        ..request
    }
}

fn as_streams(request: Request) -> Request {
    let container = SegmentContainer::MpegTs;
    Request {
        protocol: Protocol::Hls { container },
        ..request
    }
}

/// Case 10 at every seam: both wide ranges, mapped and kept.
#[tokio::test]
async fn wide_ranges_are_mapped_and_kept_alike_from_anywhere() {
    for studio in turn(0).await {
        let display = "master-display=G(13250,34500)B(7500,3000)R(34000,16000)WP(15635,16450)L(10000000,1)";
        let words = format!(
            "{MOVING} {WIDE}:transfer=smpte2084:hdr10=1:{display}:max-cll=1000,400 -color_trc smpte2084"
        );
        let pq = film(&studio, "pq.mkv", &words).await;
        let words = format!("{MOVING} {WIDE}:transfer=arib-std-b67 -color_trc arib-std-b67");
        let hlg = film(&studio, "hlg.mp4", &words).await;
        let mut cases = Vec::new();
        for (name, film, range) in [("PQ", &pq, MasteringKind::Pq), ("HLG", &hlg, MasteringKind::Hlg)] {
            let mapped = two_qualities(small(film, SIZE, |_| {}));
            cases.push(Case::new(&format!("{name} mapped"), film, as_dash(mapped)));
            if range == MasteringKind::Hlg || soaks() {
                cases.push(Case::new(&format!("{name} kept"), film, keeping(film, range)));
            }
        }
        seamless(&studio, &cases).await;
    }
}

/// Case 7 at every seam: fields of either order, in MPEG-2 whose samples are not square and in H.264.
#[tokio::test]
async fn fields_are_woven_alike_from_anywhere() {
    for studio in turn(1).await {
        let words = "-f lavfi -i testsrc2=s=180x144:r=50:d=5,scroll=h=0.01:v=0.007 -f lavfi -i sine=r=48000:d=5 \
                     -vf interlace=scan=tff,setsar=64/45 -c:v mpeg2video -flags +ildct+ilme -top 1 -b:v 2M -g 12 \
                     -bf 2 -c:a mp2 -f mpegts";
        let top = film(&studio, "top.ts", words).await;
        let words = format!(
            "-f lavfi -i testsrc2=s=256x144:r=50:d=5,scroll=h=0.01:v=0.007 -f lavfi -i sine=r=48000:d=5 -vf tinterlace=interleave_bottom,\
             fieldorder=bff {H264} -flags +ildct+ilme -x264-params bff=1:interlaced=1"
        );
        let bottom = film(&studio, "bottom.mkv", &words).await;
        let woven = |film: &Film, size| small(film, size, |encode| encode.deinterlace = true);
        let cases = [
            Case::new("MPEG-2 fields", &top, as_streams(woven(&top, (256, 144)))).very_alike(),
            Case::new("H.264 fields", &bottom, woven(&bottom, SIZE)).very_alike(),
        ];
        seamless(&studio, &cases).await;
    }
}

/// Cases 11 and 12 at every seam: lines that stand while one run ends and another begins.
#[tokio::test]
async fn subtitles_are_drawn_alike_from_anywhere() {
    for studio in turn(0).await {
        let mut cases = Vec::new();
        for (name, clip) in [("text", "ass-cues.mkv"), ("pictures", "pgs-cues.mkv")] {
            let clip = super::film::clip(clip);
            // On dark pictures a line that is not there shows.
            let inputs = format!(
                "{MOVING} -ss 37.5 -t 5 -i {} -map 0:v -map 1:a -map 2:s -vf lutyuv=y=val/8+14",
                clip.display()
            );
            let plain = film(
                &studio,
                &format!("{name}.mkv"),
                &format!("{inputs} {H264} -g 10 -c:s copy"),
            )
            .await;
            let words = format!("{inputs} {WIDE}:transfer=smpte2084 -color_trc smpte2084 -g 10 -c:s copy");
            let wide = film(&studio, &format!("{name}-wide.mkv"), &words).await;
            let drawn = two_qualities(drawing(&plain, small(&plain, SIZE, |_| {})));
            let what = format!("{name} in two qualities");
            cases.push(Case::new(&what, &plain, as_dash(drawn)).very_alike());
            let kept = drawing(&wide, keeping(&wide, MasteringKind::Pq));
            if name == "pictures" || soaks() {
                cases.push(Case::new(&format!("{name} on a wide range"), &wide, kept).very_alike());
            }
        }
        seamless(&studio, &cases).await;
    }
}

/// Cases 8, 9 and 18 at every seam, and a picture that is turned and mirrored besides.
#[tokio::test]
async fn shapes_are_made_alike_from_anywhere() {
    for studio in turn(0).await {
        let words = format!("-i {} -c copy -t 5", super::film::clip("rotated.mp4").display());
        let turned = film(&studio, "turned.mp4", &words).await;
        let mut mirrored = Film::open(turned.path.clone());
        for stream in &mut Arc::make_mut(&mut mirrored.facts).streams {
            if let StreamKind::Video(video) = &mut stream.kind {
                video.rotation.mirrored = true;
            }
        }
        let words = format!("{MOVING} -vf setsar=64/45 {H264}");
        let wide = film(&studio, "anamorphic.mkv", &words).await;
        let words = "-f lavfi -i testsrc2=s=258x146:r=25:d=5,format=yuv444p,crop=w=255:h=143:x=0:y=0:exact=1 \
                     -f lavfi -i sine=d=5 -c:v libx264 -preset veryfast -g 45 -pix_fmt yuv444p -c:a aac";
        let odd = film(&studio, "odd.mkv", words).await;
        let cases = [
            Case::new("turned", &turned, small(&turned, (144, 256), |_| {})),
            Case::new(
                "turned and mirrored",
                &mirrored,
                small(&mirrored, (144, 256), |_| {}),
            ),
            Case::new("anamorphic", &wide, small(&wide, (364, 144), |_| {})),
            Case::new("odd", &odd, small(&odd, (254, 142), |_| {})),
        ];
        seamless(&studio, &cases).await;
    }
}

/// Qualities and sounds apart, sound alone, either of picture and sound copied, and encoders that describe themselves.
#[tokio::test]
async fn everything_apart_is_made_alike_from_anywhere() {
    for studio in turn(1).await {
        let sounds = "-f lavfi -i aevalsrc=0.1*sin(2000*t)|0.1*sin(2600*t)|0.1*sin(900*t)|0|0.1*sin(700*t)|0:c=5.1:s=48000:d=5 \
                      -map 0:v -map 1:a -map 2:a";
        let plain = film(&studio, "plain.mkv", &format!("{MOVING} {sounds} {H264}")).await;
        let rate = "-f lavfi -i testsrc2=s=256x144:r=60:d=5 -f lavfi -i sine=d=5 \
                    -vf select='lt(mod(t\\,4)\\,2)+not(mod(n\\,5))' -fps_mode vfr";
        let uneven = film(&studio, "uneven.mkv", &format!("{rate} {H264}")).await;
        let words = "-c:v libx265 -preset ultrafast -x265-params open-gop=1:keyint=40:bframes=4:log-level=error -c:a aac";
        let open = film(&studio, "open.mkv", &format!("{MOVING} {words}")).await;
        let request = |film: &Film| small(film, SIZE, |_| {});
        let mut alone = with_sounds(&plain, request(&plain));
        alone.video = None;
        let mut described = request(&open);
        encode(&mut described).self_describing = true;
        let mixed = |copy_video| {
            let make = Make {
                copy_video,
                copy_audio: !copy_video,
                target: 1,
                ..ENCODE
            };
            Case::new(&format!("{make:?}"), &plain, plain.request(make))
        };
        let cases = [
            Case::new(
                "DASH",
                &plain,
                as_dash(with_sounds(&plain, two_qualities(request(&plain)))),
            ),
            Case::new("uneven times", &uneven, as_dash(two_qualities(request(&uneven)))),
            Case::new("sound alone", &plain, alone),
            Case::new("open groups", &open, described),
            mixed(true),
            mixed(false),
        ];
        seamless(&studio, &cases).await;
    }
}

/// Transport streams out of one whose clock begins late, and out of a film whose sound begins late.
#[tokio::test]
async fn transport_streams_are_made_alike_from_anywhere() {
    for studio in turn(1).await {
        let words = format!("{MOVING} {H264} -output_ts_offset 40000 -f mpegts");
        let late = film(&studio, "late.ts", &words).await;
        let words = format!(
            "-f lavfi -i testsrc2=s=256x144:r=30000/1001:d=5 -itsoffset 0.6 -f lavfi -i sine=d=5 {H264}"
        );
        let short = film(&studio, "short-sound.mkv", &words).await;
        let request = |film: &Film| as_streams(small(film, SIZE, |_| {}));
        let cases = [
            Case::new("late clock", &late, request(&late)),
            Case::new("late sound that ends early", &short, request(&short)),
        ];
        seamless(&studio, &cases).await;
    }
}

/// A recording amid which the picture changes its size, its sampling and the shape of its samples, and the sound its
/// rate and its channels: an encode goes on as it began, and one that begins after the change is the same.
#[tokio::test]
async fn what_changes_on_the_way_is_made_alike_from_anywhere() {
    for (n, studio) in studios().await.into_iter().enumerate() {
        let parts = [
            (
                "before",
                "s=256x144:r=25:d=2.4",
                "yuv420p -c:a ac3",
                "sine=f=440:r=48000:d=2.4",
                0.0,
            ),
            (
                "after",
                "s=384x144:r=25:d=2.6,setsar=2/3",
                "yuv422p10le -c:a ac3 -ac 6",
                "sine=f=440:r=44100:d=2.6",
                2.4,
            ),
        ];
        let mut bytes = Vec::new();
        for (name, picture, kind, sound, offset) in parts {
            let words = format!(
                "-f lavfi -i testsrc2={picture} -f lavfi -i {sound} -c:v libx264 -preset veryfast -g 20 \
                 -pix_fmt {kind} -muxdelay 0 -output_ts_offset {offset} -f mpegts"
            );
            let part = film(&studio, &format!("{name}.ts"), &words).await;
            bytes.extend(std::fs::read(part.path).unwrap());
        }
        let path = studio.dir().join("changing.ts");
        std::fs::write(&path, bytes).unwrap();
        let film = Film::open(path);
        let mut request = small(&film, SIZE, |_| {});
        if n > 0 {
            // FFmpeg 9 sets sound up to half a frame off its grid from there on.
            request.audio.clear();
        }
        let cases = [
            Case::new("changing", &film, request.clone()),
            Case::new("changing, apart", &film, as_dash(two_qualities(request))),
        ];
        seamless(&studio, &cases).await;
    }
}

/// Every real film, mapped and deinterlaced as a player of SDR has it.
#[tokio::test]
async fn heavy_real_films_are_made_alike_from_anywhere() {
    if !soaks() {
        return;
    }
    let Some(folder) = real("SOURCES.md").and_then(|path| path.parent().map(Path::to_owned)) else {
        return;
    };
    for studio in studios().await {
        let mut cases = Vec::new();
        for entry in std::fs::read_dir(&folder).unwrap() {
            let Ok(film) = Film::try_open(entry.unwrap().path()) else {
                continue;
            };
            let Some(video) = film.facts.main_video().and_then(|s| s.video()).cloned() else {
                continue;
            };
            let name = film.path.file_name().unwrap().to_str().unwrap().to_owned();
            let mut request = film.request(Make { target: 5, ..ENCODE });
            let encode = encode(&mut request);
            let turned = matches!(video.rotation.degrees, 90 | 270);
            (encode.rungs[0].width, encode.rungs[0].height) = if turned { (180, 320) } else { (320, 180) };
            encode.deinterlace = true;
            cases.push(Case::new(&name, &film, request));
        }
        assert!(cases.len() > 10, "only {} real films", cases.len());
        seamless(&studio, &cases).await;
    }
}

/// Makes every case straight and in orders of their own, and compares. Everything that differs is told at once.
async fn seamless(studio: &Studio, cases: &[Case]) {
    let orders = if soaks() { ORDERS } else { 1 };
    let mut different = Vec::new();
    for (case, n) in cases.iter().zip(0..) {
        let count = case.request.timeline.len() as u32;
        let forward: Vec<u32> = (0..count).collect();
        let (straight, runs) = Made::by(studio, case, &forward).await;
        let strands = match case.request.apart() {
            true => case.request.audio.len() as u32 + u32::from(case.request.video.is_some()),
            false => 1,
        };
        assert_eq!(runs, strands, "{}: the straight run restarted", case.name);
        if let Err(what) = straight.tiles(case) {
            different.push(format!("{}: {what}", case.name));
        }
        for seed in (0..orders).map(|seed| seed * cases.len() as u64 + n) {
            let order = order(count, seed);
            let (jumping, runs) = Made::by(studio, case, &order).await;
            let least = strands * restarts(&order);
            assert!(runs >= least, "{}: {runs} runs of at least {least}", case.name);
            if let Err(what) = straight.compare(studio, &jumping, case, &order).await {
                different.push(format!("{}, {order:?}: {what}", case.name));
            }
        }
    }
    assert!(different.is_empty(), "{different:#?}");
}

/// Segments once each, all or [`MOST`], in an order of `seed`. Two thirds of it lead back, so that each of them
/// needs a run of its own.
fn order(count: u32, seed: u64) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |end: u32| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as u32 % end.max(1)
    };
    let mut order: Vec<u32> = (0..count).collect();
    for n in (1..count).rev() {
        order.swap(n as usize, below(n + 1) as usize);
    }
    order.truncate(MOST);
    let back = order.len().div_ceil(3) * 2;
    let back = back.min(order.len());
    order[..back].sort_unstable_by(|a, b| b.cmp(a));
    order
}

/// How many of `order` no run before can have made: those before all that was asked for until then.
fn restarts(order: &[u32]) -> u32 {
    let mut lowest = u32::MAX;
    let mut count = 0;
    for number in order {
        if *number < lowest {
            (lowest, count) = (*number, count + 1);
        }
    }
    count
}

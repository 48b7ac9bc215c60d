//! Colours come out as they are meant: levels against a computation of our own, and tags that say what the
//! numbers mean.

use ether_encoder::VideoCodec;
use ether_media::MasteringKind;

use super::film::{Film, Studio};
use super::screening::{Pictures, film, record, small, studios, tags};

/// Side of a patch of one colour.
const PATCH: usize = 32;

/// Red, green and blue as they are coded, of one, from dark to brighter than SDR can show, and some colours
/// that BT.709 has.
const PATCHES: [[f64; 3]; 8] = [
    [0.15; 3],
    [0.3; 3],
    [0.45; 3],
    [0.58; 3],
    [0.75; 3],
    [0.9; 3],
    [0.5, 0.42, 0.4],
    [0.35, 0.42, 0.5],
];

/// How luma is made of red and of blue.
#[derive(Clone, Copy)]
struct Matrix(f64, f64);

const BT601: Matrix = Matrix(0.299, 0.114);
const BT709: Matrix = Matrix(0.212_6, 0.072_2);
const BT2020: Matrix = Matrix(0.262_7, 0.059_3);

impl Matrix {
    /// Luma and chroma of limited range in `bits` bits.
    fn coded(self, [r, g, b]: [f64; 3], bits: u32) -> [f64; 3] {
        let y = self.0 * r + (1.0 - self.0 - self.1) * g + self.1 * b;
        let scale = f64::from(1 << (bits - 8));
        let chroma = |c: f64, weight: f64| scale * (128.0 + 224.0 * (c - y) / (2.0 * (1.0 - weight)));
        [scale * (16.0 + 219.0 * y), chroma(b, self.1), chroma(r, self.0)]
    }
}

/// A second of the patches side by side as ten-bit samples of `matrix`; full range stretches them.
fn raw(studio: &Studio, matrix: Matrix, full_range: bool) -> String {
    let (width, height) = (PATCH * PATCHES.len(), PATCH * 2);
    let coded = PATCHES.map(|rgb| matrix.coded(rgb, 10));
    let coded = coded.map(|[y, u, v]| {
        let chroma = |c: f64| (c - 512.0) * 1023.0 / 896.0 + 512.0;
        match full_range {
            true => [(y - 64.0) * 1023.0 / 876.0, chroma(u), chroma(v)],
            false => [y, u, v],
        }
    });
    let mut frame = Vec::new();
    for (plane, side) in [(0, PATCH), (1, PATCH / 2), (2, PATCH / 2)] {
        for _ in 0..height * side / PATCH {
            for patch in &coded {
                let sample = patch[plane].round() as u16;
                frame.extend(std::iter::repeat_n(sample.to_le_bytes(), side).flatten());
            }
        }
    }
    let path = studio.dir().join("patches.yuv");
    std::fs::write(&path, frame.repeat(5)).unwrap();
    format!(
        "-f rawvideo -pix_fmt yuv420p10le -video_size {width}x{height} -framerate 5 -i {}",
        path.display()
    )
}

/// A film of the patches that says nothing false about them.
async fn patches(studio: &Studio, name: &str, matrix: Matrix, tags: [&str; 3]) -> Film {
    let [primaries, transfer, colors] = tags;
    let words = format!(
        "{} -c:v libx265 -preset ultrafast -pix_fmt yuv420p10le -x265-params \
         lossless=1:log-level=error:colorprim={primaries}:transfer={transfer}:colormatrix={colors}:range=limited \
         -color_primaries {primaries} -color_trc {transfer} -colorspace {colors}",
        raw(studio, matrix, false)
    );
    film(studio, name, &words).await
}

/// The eight patches as they came out, luma and chroma.
async fn shown(studio: &Studio, film: &Film, change: Change) -> (Vec<[f64; 3]>, String, Vec<u8>) {
    let size = ((PATCH * PATCHES.len()) as u32, PATCH as u32 * 2);
    let request = small(film, size, |encode| match change {
        Change::ToSdr => encode.range = MasteringKind::Sdr,
        Change::Keep(range) => {
            (encode.codec, encode.range, encode.rungs[0].level) = (VideoCodec::Hevc, range, 93)
        }
    });
    let format = match change {
        Change::ToSdr => "yuv420p",
        Change::Keep(_) => "yuv420p10le",
    };
    let execution = studio.start_request(film, request, 64 << 20).await;
    let file = record(studio, &*execution, 0, [0]).await;
    let pictures = Pictures::of(studio, &file, size, format).await;
    let place = |n: usize| pictures.around(2, n * PATCH + PATCH / 2, PATCH);
    let levels = (0..PATCHES.len()).map(place).collect();
    let said = tags(studio, &file).await;
    execution.retire().await.unwrap();
    (levels, said, std::fs::read(file).unwrap())
}

#[derive(Clone, Copy)]
enum Change {
    ToSdr,
    Keep(MasteringKind),
}

/// Light of PQ in cd/m² (SMPTE ST 2084).
fn pq(code: f64) -> f64 {
    let (m1, m2) = (2_610.0 / 16_384.0, 2_523.0 / 32.0);
    let (c1, c2, c3) = (3_424.0 / 4_096.0, 2_413.0 / 128.0, 2_392.0 / 128.0);
    let root = code.powf(1.0 / m2);
    10_000.0 * ((root - c1).max(0.0) / (c2 - c3 * root)).powf(1.0 / m1)
}

/// Light of HLG on a display of 1,000 cd/m² (ITU-R BT.2100).
fn hlg(rgb: [f64; 3]) -> [f64; 3] {
    let scene = rgb.map(|code| {
        let (a, b, c) = (0.178_832_77, 0.284_668_92, 0.559_910_73);
        if code <= 0.5 {
            code * code / 3.0
        } else {
            (((code - c) / a).exp() + b) / 12.0
        }
    });
    let luminance = 0.262_7 * scene[0] + 0.678 * scene[1] + 0.059_3 * scene[2];
    scene.map(|light| 1_000.0 * light * luminance.powf(0.2))
}

/// BT.709's share of light that is given in BT.2020's primaries (ITU-R BT.2087, reversed).
fn narrowed([r, g, b]: [f64; 3]) -> [f64; 3] {
    [
        1.660_491 * r - 0.587_641 * g - 0.072_850 * b,
        -0.124_550 * r + 1.132_900 * g - 0.008_349 * b,
        -0.018_151 * r - 0.100_579 * g + 1.118_730 * b,
    ]
}

/// What light of so many cd/m² becomes in SDR: as it is up to 0.3 of paper white, then bent so that `peak` is 1.
fn mapped(light: [f64; 3], peak: f64) -> [f64; 3] {
    let (knee, peak) = (0.3_f64, peak / 203.0);
    let light = narrowed(light).map(|c| c / 203.0);
    let brightest = light.iter().copied().fold(1e-6, f64::max);
    let a = -knee * knee * (peak - 1.0) / (knee * knee - 2.0 * knee + peak);
    let b = (knee * knee - 2.0 * knee * peak + peak) / (peak - 1.0);
    let bent = if brightest <= knee {
        brightest
    } else {
        (b * b + 2.0 * b * knee + knee * knee) / (b - a) * (brightest + a) / (brightest + b)
    };
    light.map(|c| (c * bent / brightest).clamp(0.0, 1.0).powf(1.0 / 2.4))
}

#[track_caller]
fn near(what: &str, levels: &[[f64; 3]], expected: impl Fn([f64; 3]) -> [f64; 3], within: f64) {
    for (rgb, level) in PATCHES.iter().zip(levels) {
        let expected = expected(*rgb);
        for (got, wanted) in level.iter().zip(expected) {
            assert!(
                (got - wanted).abs() <= within,
                "{what}: {rgb:?} came out as {level:.1?} instead of {expected:.1?}"
            );
        }
    }
}

/// Whether the initialization segment says primaries, transfer and matrix too, for players that read no further.
fn says(init: &[u8], numbers: [u8; 3]) -> bool {
    let wanted = [b"colrnclx".as_slice(), &numbers.map(|n| [0, n]).concat()].concat();
    init.windows(wanted.len()).any(|part| part == wanted)
}

/// Case 10 for a player of SDR.
#[tokio::test]
async fn wide_ranges_are_mapped_to_the_levels_of_an_own_computation() {
    for studio in studios().await {
        let film = patches(&studio, "pq.mkv", BT2020, ["bt2020", "smpte2084", "bt2020nc"]).await;
        let (levels, said, bytes) = shown(&studio, &film, Change::ToSdr).await;
        near(
            "PQ",
            &levels,
            |rgb| BT709.coded(mapped(rgb.map(pq), 10_000.0), 8),
            3.0,
        );
        assert_eq!(said, "tv,bt709,bt709,bt709");
        assert!(says(&bytes, [1, 1, 1]));

        let film = patches(&studio, "hlg.mkv", BT2020, ["bt2020", "arib-std-b67", "bt2020nc"]).await;
        let (levels, said, _) = shown(&studio, &film, Change::ToSdr).await;
        near(
            "HLG",
            &levels,
            |rgb| BT709.coded(mapped(hlg(rgb), 1_000.0), 8),
            4.0,
        );
        assert_eq!(said, "tv,bt709,bt709,bt709");
    }
}

/// Case 10 for a player of HDR.
#[tokio::test]
async fn wide_ranges_are_kept_where_a_player_shows_them() {
    let kinds = [
        (MasteringKind::Pq, "smpte2084", 16),
        (MasteringKind::Hlg, "arib-std-b67", 18),
    ];
    for studio in studios().await {
        for (range, transfer, number) in kinds {
            let film = patches(&studio, "wide.mkv", BT2020, ["bt2020", transfer, "bt2020nc"]).await;
            let (levels, said, bytes) = shown(&studio, &film, Change::Keep(range)).await;
            near(transfer, &levels, |rgb| BT2020.coded(rgb, 10), 8.0);
            assert_eq!(said, format!("tv,bt2020nc,{transfer},bt2020"));
            assert!(says(&bytes, [9, number, 9]));
        }
    }
}

#[tokio::test]
async fn standard_ranges_come_out_as_they_are_meant_and_say_so() {
    for studio in studios().await {
        let x264 = "-c:v libx264 -preset ultrafast -crf 1 -pix_fmt";
        let plain = |rgb: [f64; 3]| BT601.coded(rgb, 8);

        // BT.601 is kept, and full range becomes limited.
        let words = format!(
            "{} -vf setparams=range=full:colorspace=smpte170m,format=yuvj420p {x264} yuvj420p -color_range pc \
             -color_primaries smpte170m -color_trc smpte170m -colorspace smpte170m",
            raw(&studio, BT601, true)
        );
        let full = film(&studio, "full.mkv", &words).await;
        let (levels, said, _) = shown(&studio, &full, Change::ToSdr).await;
        near("full range", &levels, plain, 3.0);
        assert_eq!(said, "tv,smpte170m,smpte170m,smpte170m");

        // What says nothing is small and so BT.601.
        let words = format!("{} {x264} yuv420p", raw(&studio, BT601, false));
        let untagged = film(&studio, "untagged.mkv", &words).await;
        let (levels, said, _) = shown(&studio, &untagged, Change::ToSdr).await;
        near("untagged", &levels, plain, 3.0);
        assert_eq!(said, "tv,smpte170m,bt709,smpte170m");

        // BT.2020 without a wide range has colours that no player of SDR expects.
        let wide = patches(
            &studio,
            "sdr2020.mkv",
            BT2020,
            ["bt2020", "bt2020-10", "bt2020nc"],
        )
        .await;
        let (levels, said, _) = shown(&studio, &wide, Change::ToSdr).await;
        let narrow =
            |rgb: [f64; 3]| narrowed(rgb.map(|c| c.powf(2.4))).map(|c| c.clamp(0.0, 1.0).powf(1.0 / 2.4));
        near("BT.2020", &levels, |rgb| BT709.coded(narrow(rgb), 8), 3.0);
        assert_eq!(said, "tv,bt709,bt709,bt709");

        // RGB becomes BT.709.
        let words = format!(
            "{} -vf scale=in_color_matrix=bt709,format=gbrp -c:v libx264rgb -preset ultrafast -crf 1 -pix_fmt rgb24",
            raw(&studio, BT709, false)
        );
        let rgb = film(&studio, "rgb.mkv", &words).await;
        let (levels, said, _) = shown(&studio, &rgb, Change::ToSdr).await;
        near("RGB", &levels, |rgb| BT709.coded(rgb, 8), 3.0);
        assert_eq!(said, "tv,bt709,bt709,bt709");
    }
}

/// Its pictures would come out in purple and green: it is refused before anything starts.
#[tokio::test]
async fn dolby_vision_without_a_base_layer_is_refused() {
    let studio = Studio::open().await;
    let mut film = Film::clip("upright.mp4");
    let facts = std::sync::Arc::make_mut(&mut film.facts);
    for stream in &mut facts.streams {
        if let ether_media::StreamKind::Video(video) = &mut stream.kind {
            video.dolby_vision = Some(5);
        }
    }
    let request = small(&film, (320, 180), |_| {});
    let refused = ether_encoder::Encoder::supports(&studio.encoder, &request);
    assert!(
        matches!(refused, Err(ether_encoder::Unsupported::Missing { .. })),
        "{refused:?}"
    );
}

/// Films of phones: one whose container calls it SDR, one of HLG that is turned, with an edit list.
#[tokio::test]
async fn wide_films_of_phones_are_mapped_and_upright() {
    let films = [
        ("hevc-main10-hdr10-vfr.mp4", (320, 180)),
        ("hevc-main10-hlg-dovi-vfr-rot90-editlist.mp4", (180, 320)),
    ];
    for (name, size) in films {
        let Some(path) = super::screening::real(name) else {
            return;
        };
        let film = Film::open(path.clone());
        let source = film.facts.main_video().and_then(|stream| stream.video()).unwrap();
        assert_ne!(source.color.mastering(), MasteringKind::Sdr, "{name}");
        for studio in studios().await {
            let execution = studio
                .start_request(&film, small(&film, size, |_| {}), 64 << 20)
                .await;
            let file = record(&studio, &*execution, 0, [0]).await;
            execution.retire().await.unwrap();
            assert_eq!(tags(&studio, &file).await, "tv,bt709,bt709,bt709", "{name}");
            let ours = Pictures::of(&studio, &file, size, "yuv420p").await;
            // FFmpeg's own turning, no mapping: the same things at the same places.
            let reference = studio.dir().join("reference.mkv");
            let words = format!(
                "-v error -y -i {} -map 0:v -frames:v 6 -vf scale={}:{} -c:v ffv1 -pix_fmt yuv420p {}",
                path.display(),
                size.0,
                size.1,
                reference.display()
            );
            super::screening::tool(&studio, "ffmpeg", &words.split(' ').collect::<Vec<_>>()).await;
            let theirs = Pictures::of(&studio, &reference, size, "yuv420p").await;
            let places: Vec<(usize, usize)> = (1..9)
                .flat_map(|x| (1..9).map(move |y| (x * size.0 as usize / 9, y * size.1 as usize / 9)))
                .collect();
            let luma = |pictures: &Pictures| -> Vec<f64> {
                places
                    .iter()
                    .map(|(x, y)| pictures.around(4, *x, *y)[0])
                    .collect()
            };
            let likeness = correlation(&luma(&ours), &luma(&theirs));
            assert!(likeness > 0.85, "{name}: {likeness} like the source");
        }
    }
}

/// How alike two rows of numbers rise and fall: 1 where they do alike.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |row: &[f64]| row.iter().sum::<f64>() / row.len() as f64;
    let (ma, mb) = (mean(a), mean(b));
    let sum = |f: &dyn Fn(f64, f64) -> f64| a.iter().zip(b).map(|(x, y)| f(x - ma, y - mb)).sum::<f64>();
    sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt()
}

//! What an execution made of a case, and how two of these compare.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ether_encoder::Resource;
use ether_media::Ticks;

use super::Case;
use crate::tests::film::{Shape, Studio, fetch};
use crate::tests::screening::tool;

/// The largest difference of two samples of sound that were encoded twice, of one.
const HEARD: f32 = 0.06;

/// What an execution made of a case, representation by representation.
pub(super) struct Made(Vec<Part>);

struct Part {
    /// Empty where segments are transport streams.
    init: Vec<u8>,
    /// By number, each with what it holds.
    segments: BTreeMap<u32, (Vec<u8>, Shape)>,
}

impl Made {
    /// Asks an execution for segments in `order`, all representations of each at once. Also how many runs it took.
    pub(super) async fn by(studio: &Studio, case: &Case, order: &[u32]) -> (Self, u32) {
        let request = case.request.clone();
        let execution = studio.start_request(&case.film, request, 512 << 20).await;
        let count = case.request.representations().len() as u32;
        let mut made: Vec<BTreeMap<u32, Vec<u8>>> = vec![BTreeMap::new(); count as usize];
        for number in order.iter().copied() {
            let mut asked = tokio::task::JoinSet::new();
            for representation in 0..count {
                let resource = Resource::Segment {
                    representation,
                    number,
                };
                let execution = execution.clone();
                asked.spawn(async move { (representation, fetch(&*execution, resource).await) });
            }
            while let Some(answer) = asked.join_next().await {
                let (representation, bytes) = answer.unwrap();
                let bytes =
                    bytes.unwrap_or_else(|e| panic!("{}, segment {number} of {order:?}: {e:?}", case.name));
                made[representation as usize].insert(number, bytes);
            }
        }
        let mut parts = Vec::new();
        for (representation, made) in (0..).zip(made) {
            let mut init = Vec::new();
            if !case.streams() {
                let resource = Resource::Init { representation };
                init = fetch(&*execution, resource).await.unwrap();
            }
            let mut segments = BTreeMap::new();
            for (number, bytes) in made {
                let shape = match case.streams() {
                    true => packets(studio, &bytes).await,
                    false => Shape::read(&init, &bytes),
                };
                segments.insert(number, (bytes, shape));
            }
            parts.push(Part { init, segments });
        }
        let runs = execution.observe().runs;
        execution.retire().await.unwrap();
        (Self(parts), runs)
    }

    /// Each segment that has pictures begins with a keyframe, where it is declared to; sound fits in between.
    pub(super) fn tiles(&self, case: &Case) -> Result<(), String> {
        let timeline = &case.request.timeline;
        let slack = match case.copies() {
            true => Ticks(180),
            false => Ticks(Ticks::HZ / 12),
        };
        for part in &self.0 {
            let shapes = part.segments.values().map(|(_, shape)| shape);
            let mut zero = None;
            let mut end: Option<i64> = None;
            for (n, shape) in shapes.enumerate() {
                if let Some((first, shown)) = shape.pictures.first().zip(shape.first_shown()) {
                    let start = Ticks(shown - *zero.get_or_insert(shown));
                    if !first.3 {
                        return Err(format!("segment {n} begins without a keyframe"));
                    }
                    if (start - timeline.start(n)).abs() >= slack {
                        return Err(format!("segment {n} of {} begins at {start}", timeline.start(n)));
                    }
                }
                for (at, duration) in &shape.sounds {
                    if end.is_some_and(|end| end != *at) && !case.streams() {
                        return Err(format!("sound of segment {n} is at {at} and not at {end:?}"));
                    }
                    end = Some(at + i64::from(*duration));
                }
            }
        }
        Ok(())
    }

    /// What of the segments `order` differs in `other`.
    pub(super) async fn compare(
        &self,
        studio: &Studio,
        other: &Self,
        case: &Case,
        order: &[u32],
    ) -> Result<(), String> {
        let representations = case.request.representations();
        for (n, (a, b)) in self.0.iter().zip(&other.0).enumerate() {
            let said = |what: String| format!("representation {n}: {what}");
            let mut pictures = 0;
            for (number, (_, again)) in &b.segments {
                let (_, once) = &a.segments[number];
                pictures += once.pictures.len();
                let differs = times(once).difference(&but_one_sample(times(again), once));
                differs.map_or(Ok(()), |what| Err(said(format!("segment {number}: {what}"))))?;
            }
            if a.init != b.init {
                return Err(said("another initialization segment".to_owned()));
            }
            let files = (a.joined(studio, "a", order), b.joined(studio, "b", order));
            if representations[n].video.is_some() {
                let alike = alikeness(studio, &files).await;
                let least = alike
                    .iter()
                    .copied()
                    .enumerate()
                    .min_by(|a, b| a.1.total_cmp(&b.1));
                match least {
                    _ if alike.len() != pictures => {
                        return Err(said(format!("{} pictures are shown of {pictures}", alike.len())));
                    }
                    Some((at, least)) if least < case.alike => {
                        return Err(said(format!("picture {at} is only {least} alike")));
                    }
                    _ => {}
                }
            }
            if representations[n].audio.is_some() {
                sounds_alike(studio, &files).await.map_err(said)?;
            }
        }
        Ok(())
    }
}

impl Part {
    /// The segments `order`, in theirs, as a file.
    fn joined(&self, studio: &Studio, name: &str, order: &[u32]) -> PathBuf {
        let path = studio.dir().join(format!("joined-{name}"));
        let wanted = self.segments.iter().filter(|(number, _)| order.contains(number));
        let mut bytes = self.init.clone();
        bytes.extend(wanted.flat_map(|(_, (bytes, _))| bytes));
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

/// How alike each picture of one file is to that of another, by a decoder that stumbles over neither.
async fn alikeness(studio: &Studio, (a, b): &(PathBuf, PathBuf)) -> Vec<f64> {
    let graph = "[0:v]setpts=N[a];[1:v]setpts=N[b];[a][b]ssim=stats_file=-:shortest=1:repeatlast=0[o]";
    let args = "-hide_banner -loglevel error -nostdin -xerror -i".split(' ');
    let args = args.chain([a.to_str().unwrap(), "-i", b.to_str().unwrap()]);
    let args = args.chain(["-lavfi", graph, "-map", "[o]", "-f", "null", "-"]);
    let text = tool(studio, "ffmpeg", &args.collect::<Vec<_>>()).await;
    let text = String::from_utf8(text).unwrap();
    let likeness = |line: &str| line.split("All:").nth(1)?.split(' ').next()?.parse().ok();
    text.lines().filter_map(likeness).collect()
}

/// Whether every sample of sound of one file is that of another.
async fn sounds_alike(studio: &Studio, (a, b): &(PathBuf, PathBuf)) -> Result<(), String> {
    let (a, b) = (samples(studio, a).await, samples(studio, b).await);
    if a.len().abs_diff(b.len()) > 1 {
        return Err(format!("{} samples of sound became {}", a.len(), b.len()));
    }
    let off = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).enumerate();
    match off.max_by(|a, b| a.1.total_cmp(&b.1)) {
        Some((at, off)) if off > HEARD => Err(format!("sample {at} of the sound is {off} off")),
        _ => Ok(()),
    }
}

/// The sound of a file as one channel, whatever there is between its pieces.
async fn samples(studio: &Studio, file: &Path) -> Vec<f32> {
    let args = "-hide_banner -loglevel error -nostdin -i".split(' ');
    let args = args.chain([file.to_str().unwrap()]);
    let args = args.chain("-map 0:a -ac 1 -ar 48000 -f f32le -".split(' '));
    let bytes = tool(studio, "ffmpeg", &args.collect::<Vec<_>>()).await;
    let sample = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    bytes.chunks_exact(4).map(sample).collect()
}

/// What is shown and heard when. In which order a picture's encoder sends them is its own affair.
fn times(shape: &Shape) -> Shape {
    let mut shown: Vec<i64> = shape.pictures.iter().map(|p| p.1).collect();
    shown.sort_unstable();
    let pictures = shape.pictures.iter().zip(shown).enumerate();
    Shape {
        pictures: pictures
            .map(|(n, (p, shown))| (p.0, shown, p.2, p.3 && n == 0))
            .collect(),
        sounds: shape.sounds.clone(),
    }
}

/// `again`, but for the length of its last sound, which is that of `once` where one sample is all that differs: where
/// a film whose rate was changed ends is rounded once in each run.
fn but_one_sample(mut again: Shape, once: &Shape) -> Shape {
    if let (Some(last), Some(wanted)) = (again.sounds.last_mut(), once.sounds.last())
        && last.1.abs_diff(wanted.1) <= 1
    {
        last.1 = wanted.1;
    }
    again
}

/// What a segment of a transport stream holds, by an FFmpeg that has nothing to complain about.
async fn packets(studio: &Studio, segment: &[u8]) -> Shape {
    let path = studio.dir().join("segment.ts");
    std::fs::write(&path, segment).unwrap();
    let entries = "packet=codec_type,dts,pts,duration,flags";
    let args = [
        "-v",
        "error",
        "-show_entries",
        entries,
        "-of",
        "csv=p=0",
        path.to_str().unwrap(),
    ];
    let text = String::from_utf8(tool(studio, "ffprobe", &args).await).unwrap();
    let mut shape = Shape::default();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |n: usize| fields[n].parse::<i64>().unwrap_or(0);
        if fields[0] == "video" {
            shape
                .pictures
                .push((number(2), number(1), 0, fields[4].starts_with('K')));
        } else if fields[0] == "audio" {
            shape.sounds.push((number(1), 0));
        }
    }
    shape
}

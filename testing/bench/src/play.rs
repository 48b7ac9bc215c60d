//! What a single server's playback costs: the time to the first picture, copying, probing, memory and start.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ether_media::{FactsError, FileReader, Gap, Limits, read_facts, scan_keyframes};
use serde_json::{Value, json};

use crate::harness::{Bar, BenchError, Context, Report, alternate, pause, time};
use crate::machine::{Cost, cpu_seconds, ffmpeg_children, resident_mib, run_tool, run_until_file};
use crate::server::{Playback, Server, data_dir};

/// A minute of 720p at 12 Mbit/s: long enough that an encoder is still at work when its first segment is out.
pub(crate) const CLIP: &str = "moov-at-end.mp4";
/// How often the clip is looped into the film that is copied: at least 1 GB.
const LOOPS: u32 = 12;
/// Where a cold seek goes: the start of a segment of six seconds.
pub(crate) const SEEK_SECONDS: u32 = 30;
/// How many playbacks share the growth of memory.
const PLAYBACKS: u32 = 8;
const KNOWN_ITEMS: u32 = 10_000;

pub(crate) const FIRST_SEGMENT: Bar = Bar {
    most: 1.15,
    slack: 0.015,
};

/// Measures the group.
pub(crate) fn run(context: &Context, report: &mut Report) -> Result<(), BenchError> {
    if context.wants("play/first-segment") {
        segment_time(context, report, "play/first-segment", 0)?;
    }
    if context.wants("play/cold-seek") {
        segment_time(context, report, "play/cold-seek", SEEK_SECONDS)?;
    }
    if context.wants("play/copy-film") {
        copy_film(context, report)?;
    }
    if context.wants("play/probe") {
        probe(context, report)?;
    }
    if context.wants("play/idle-rss") {
        idle_memory(context, report)?;
    }
    if context.wants("play/playback-rss") {
        playback_memory(context, report)?;
    }
    if context.wants("play/start-10k") {
        start(context, report)?;
    }
    Ok(())
}

/// From asking for a playback to the last byte of the first segment at `from` seconds, against the very same FFmpeg
/// command with FFmpeg's own HLS muxer at its end, from its start to that muxer's first finished segment.
fn segment_time(context: &Context, report: &mut Report, name: &str, from: u32) -> Result<(), BenchError> {
    let data = data_dir(context)?;
    let folder = folder_of(context, "clip", &context.clips.join(CLIP))?;
    let mut server = Server::start(context, &folder, &data)?;
    server.sign_in(&data)?;
    let item = server.item(CLIP)?;
    let wishes =
        json!({ "video": "encode", "container": "fmp4", "segmentSeconds": 6, "offsetMs": from * 1_000 });
    let number = from / 6;

    let mut command = one_segment_command(&mut server, &item, &wishes, number)?;
    let output = command
        .windows(2)
        .position(|pair| pair[0] == "-f" && pair[1] == "mp4");
    command.truncate(output.ok_or_else(|| BenchError::Other("the server's FFmpeg writes no MP4".into()))?);
    let program = command.remove(0).to_string_lossy().into_owned();
    // The muxer renames a segment into place when it is finished.
    let muxer = "-f hls -hls_segment_type fmp4 -hls_time 6 -hls_list_size 0 -hls_flags temp_file";
    command.extend(muxer.split(' ').map(Into::into));

    let (ours, plain) = alternate(
        context.runs,
        || {
            until_fetched(&mut server, &item, &wishes, |server, started| {
                let segments = server.segments(started)?;
                fetch_segment(server, &segments, number)
            })
        },
        || {
            let dir = context.scratch("plain")?;
            let mut args = command.clone();
            args.push(dir.join("out.m3u8").into());
            let seconds = run_until_file(&program, args, &dir.join("out0.m4s"));
            context.scratch("plain")?;
            seconds
        },
    )?;
    report.compare(name, "s", FIRST_SEGMENT, &ours, &plain);
    server.stop()
}

/// Seconds from asking for a session until `fetch` has what it wants of it. Then the session is ended, and nothing of it
/// runs any more.
pub(crate) fn until_fetched(
    server: &mut Server,
    item: &str,
    wishes: &Value,
    fetch: impl FnOnce(&mut Server, &Playback) -> Result<(), BenchError>,
) -> Result<f64, BenchError> {
    let mut playback = None;
    let seconds = time(|| {
        let started = playback.insert(server.play(item, wishes)?);
        fetch(server, started)
    });
    if let Some(playback) = playback {
        server.end(&playback)?;
    }
    wait_for_no_ffmpeg(server);
    seconds
}

/// The command line of the FFmpeg that a playback starts, read off the running process.
fn one_segment_command(
    server: &mut Server,
    item: &str,
    wishes: &Value,
    number: u32,
) -> Result<Vec<OsString>, BenchError> {
    let playback = server.play(item, wishes)?;
    let segments = server.segments(&playback)?;
    fetch_segment(server, &segments, number)?;
    let command = ffmpeg_children(server.pid()).pop();
    server.end(&playback)?;
    wait_for_no_ffmpeg(server);
    command.ok_or_else(|| BenchError::Other("the server's FFmpeg could not be seen at work".into()))
}

/// The init segment, which is the first of the list, and one segment of media.
fn fetch_segment(server: &mut Server, segments: &[String], number: u32) -> Result<(), BenchError> {
    let at = usize::try_from(number).unwrap_or(usize::MAX).saturating_add(1);
    for target in [segments.first(), segments.get(at)] {
        let target = target.ok_or_else(|| BenchError::Other(format!("there is no segment {number}")))?;
        server.get(target)?;
    }
    Ok(())
}

pub(crate) fn wait_for_no_ffmpeg(server: &Server) {
    while !ffmpeg_children(server.pid()).is_empty() {
        pause(5);
    }
}

/// A whole film copied to segments and fetched, against FFmpeg's own HLS muxer copying it to files.
fn copy_film(context: &Context, report: &mut Report) -> Result<(), BenchError> {
    let film = film(context)?;
    let data = data_dir(context)?;
    let mut server = Server::start(context, folder(&film), &data)?;
    server.sign_in(&data)?;
    let item = server.item("film.mp4")?;
    let wishes = json!({ "video": "copy", "container": "fmp4", "segmentSeconds": 6 });
    let pid = server.pid();
    let (ours, plain) = alternate(
        context.runs,
        || {
            let before = cpu_seconds(pid)?;
            let mut playback = None;
            let wall = time(|| {
                let started = server.play(&item, &wishes)?;
                for segment in server.segments(&started)? {
                    server.get(&segment)?;
                }
                playback = Some(started);
                Ok(())
            })?;
            if let Some(playback) = playback {
                server.end(&playback)?;
            }
            // Its CPU counts once it is reaped.
            wait_for_no_ffmpeg(&server);
            let cpu = cpu_seconds(pid)? - before;
            Ok(Cost { wall, cpu })
        },
        || {
            let dir = context.scratch("plain")?;
            let mut args: Vec<OsString> = "-hide_banner -loglevel error -nostdin -i"
                .split(' ')
                .map(Into::into)
                .collect();
            args.push(film.clone().into());
            args.extend(
                "-c copy -f hls -hls_time 6 -hls_playlist_type vod -hls_segment_type fmp4"
                    .split(' ')
                    .map(Into::into),
            );
            args.push(dir.join("index.m3u8").into());
            let cost = run_tool("ffmpeg", args);
            context.scratch("plain")?;
            cost
        },
    )?;
    let bar = Bar {
        most: 1.10,
        slack: 0.0,
    };
    let part = |costs: &[Cost], part: fn(&Cost) -> f64| costs.iter().map(part).collect::<Vec<f64>>();
    report.compare(
        "play/copy-film",
        "s",
        bar,
        &part(&ours, |c| c.wall),
        &part(&plain, |c| c.wall),
    );
    report.compare(
        "play/copy-film-cpu",
        "cpu s",
        bar,
        &part(&ours, |c| c.cpu),
        &part(&plain, |c| c.cpu),
    );
    server.stop()
}

/// The clip looped until it is a film of more than a gigabyte. Kept from run to run.
fn film(context: &Context) -> Result<PathBuf, BenchError> {
    let dir = context.data.join("film");
    let film = dir.join("film.mp4");
    if film.metadata().is_ok_and(|film| film.len() > 1_000_000_000) {
        return Ok(film);
    }
    let dir = context.scratch("film")?;
    let part = dir.join("part.mp4");
    let mut args: Vec<OsString> = vec![
        "-hide_banner".into(),
        "-loglevel".into(),
        "error".into(),
        "-nostdin".into(),
    ];
    args.extend(["-stream_loop".into(), (LOOPS - 1).to_string().into(), "-i".into()]);
    args.push(context.clips.join(CLIP).into());
    args.extend(["-c".into(), "copy".into(), part.clone().into()]);
    run_tool("ffmpeg", args)?;
    std::fs::rename(&part, &film).map_err(BenchError::io(film.display().to_string()))?;
    Ok(film)
}

/// The native readers on the real films, keyframes included, against ffprobe on the same ones.
fn probe(context: &Context, report: &mut Report) -> Result<(), BenchError> {
    let Some(films) = &context.films else {
        report.skip("play/probe", "there are no real films (set ETHER_MEDIA)");
        return Ok(());
    };
    // What goes to ffprobe in any case cannot be compared with it.
    let mut native = Vec::new();
    for file in files(films)? {
        match read_natively(&file) {
            Ok(true) => native.push(file),
            Ok(false) => {}
            Err(error) => return Err(error),
        }
    }
    if native.is_empty() {
        report.skip("play/probe", "none of the real films can be read natively");
        return Ok(());
    }
    eprintln!("play/probe: {} files", native.len());
    let (ours, plain) = alternate(
        context.runs,
        || {
            time(|| {
                for file in &native {
                    read_natively(file)?;
                }
                Ok(())
            })
        },
        || {
            let mut seconds = 0.0;
            for file in &native {
                let mut args: Vec<OsString> = "-v error -of json -show_format -show_streams -show_entries packet=stream_index,pts,flags -i"
                    .split(' ')
                    .map(Into::into)
                    .collect();
                args.push(file.into());
                seconds += run_tool("ffprobe", args)?.wall;
            }
            Ok(seconds)
        },
    )?;
    let bar = Bar {
        most: 0.05,
        slack: 0.0,
    };
    report.compare("play/probe", "s", bar, &ours, &plain);
    Ok(())
}

/// Reads one file's facts; false where the native readers leave it to ffprobe.
fn read_natively(file: &Path) -> Result<bool, BenchError> {
    let what = || file.display().to_string();
    let open = Arc::new(std::fs::File::open(file).map_err(BenchError::io(what()))?);
    let mut reader = FileReader::new(open).map_err(BenchError::io(what()))?;
    let limits = Limits::default();
    let facts = match read_facts(&mut reader, &limits) {
        Ok(facts) => facts,
        Err(FactsError::Unrecognized) => return Ok(false),
        Err(error) => return Err(BenchError::Other(format!("{}: {error}", what()))),
    };
    let mut complete = true;
    for gap in &facts.gaps {
        match gap {
            Gap::Keyframes { .. } => {
                complete &= scan_keyframes(&mut reader, &facts, &limits, &mut |_| {}).is_ok();
            }
            Gap::Truncated { .. } | Gap::Times { .. } => {}
            Gap::Duration | Gap::CodecConfig { .. } => complete = false,
        }
    }
    Ok(complete)
}

/// Resident memory of a server that knows a library and does nothing.
fn idle_memory(context: &Context, report: &mut Report) -> Result<(), BenchError> {
    let media = context.films.as_deref().unwrap_or(&context.clips);
    let mut samples = Vec::new();
    for _ in 0..context.runs {
        let data = data_dir(context)?;
        let mut server = Server::start(context, media, &data)?;
        server.sign_in(&data)?;
        server.library(1)?;
        // What the scan started may still be at work.
        wait_for_no_ffmpeg(&server);
        pause(1_000);
        samples.push(resident_mib(server.pid())?);
        server.stop()?;
    }
    report.absolute("play/idle-rss", "MiB", 40.0, &samples);
    Ok(())
}

/// What one more playback adds to the server's resident memory.
fn playback_memory(context: &Context, report: &mut Report) -> Result<(), BenchError> {
    let film = film(context)?;
    let wishes = json!({ "video": "copy", "container": "fmp4", "segmentSeconds": 6 });
    let mut samples = Vec::new();
    for _ in 0..context.runs {
        let data = data_dir(context)?;
        let mut server = Server::start(context, folder(&film), &data)?;
        server.sign_in(&data)?;
        let item = server.item("film.mp4")?;
        // One playback first: what the first one of all sets up is not what each costs.
        let mut held = vec![begin(&mut server, &item, &wishes)?];
        pause(500);
        let before = resident_mib(server.pid())?;
        for _ in 0..PLAYBACKS {
            held.push(begin(&mut server, &item, &wishes)?);
        }
        pause(500);
        let after = resident_mib(server.pid())?;
        samples.push((after - before).max(0.0) / f64::from(PLAYBACKS));
        for playback in &held {
            server.end(playback)?;
        }
        server.stop()?;
    }
    report.absolute("play/playback-rss", "MiB", 2.0, &samples);
    Ok(())
}

/// A playback that has fetched a few segments and is held back there.
fn begin(server: &mut Server, item: &str, wishes: &Value) -> Result<crate::server::Playback, BenchError> {
    let playback = server.play(item, wishes)?;
    for segment in server.segments(&playback)?.iter().take(4) {
        server.get(segment)?;
    }
    Ok(playback)
}

/// From starting the process to its word that it is ready, with ten thousand items in its library.
fn start(context: &Context, report: &mut Report) -> Result<(), BenchError> {
    let media = many_films(context)?;
    let data = data_dir(context)?;
    let mut server = Server::start(context, &media, &data)?;
    server.sign_in(&data)?;
    server.library(usize::try_from(KNOWN_ITEMS).unwrap_or(usize::MAX))?;
    wait_for_no_ffmpeg(&server);
    server.stop()?;
    let mut samples = Vec::new();
    for _ in 0..context.runs {
        let mut server = None;
        let seconds = time(|| {
            server = Some(Server::start(context, &media, &data)?);
            Ok(())
        })?;
        samples.push(seconds * 1_000.0);
        if let Some(server) = server {
            server.stop()?;
        }
    }
    report.absolute("play/start-10k", "ms", 100.0, &samples);
    Ok(())
}

/// Ten thousand small films. Kept from run to run.
fn many_films(context: &Context) -> Result<PathBuf, BenchError> {
    let dir = context.data.join("many");
    let done = dir.join("complete");
    let media = dir.join("media");
    if done.exists() {
        return Ok(media);
    }
    context.scratch("many")?;
    let one = dir.join("one.mp4");
    let mut args: Vec<OsString> =
        "-hide_banner -loglevel error -nostdin -f lavfi -i testsrc2=s=64x64:r=10:d=2 -c:v libx264"
            .split(' ')
            .map(Into::into)
            .collect();
    args.push(one.clone().into());
    run_tool("ffmpeg", args)?;
    for number in 0..KNOWN_ITEMS {
        let folder = media.join(format!("Shelf {:03}", number / 100));
        std::fs::create_dir_all(&folder).map_err(BenchError::io(folder.display().to_string()))?;
        let film = folder.join(format!("Film {number:05}.mp4"));
        std::fs::copy(&one, &film).map_err(BenchError::io(film.display().to_string()))?;
    }
    std::fs::write(&done, "").map_err(BenchError::io(done.display().to_string()))?;
    Ok(media)
}

/// A folder that holds one file and nothing else: a link to it, which costs no space.
pub(crate) fn folder_of(context: &Context, name: &str, file: &Path) -> Result<PathBuf, BenchError> {
    let dir = context.scratch(name)?;
    let target = dir.join(file.file_name().unwrap_or_default());
    std::fs::hard_link(file, &target)
        .or_else(|_| std::fs::copy(file, &target).map(|_| ()))
        .map_err(BenchError::io(target.display().to_string()))?;
    Ok(dir)
}

fn folder(file: &Path) -> &Path {
    file.parent().unwrap_or(file)
}

fn files(dir: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(BenchError::io(dir.display().to_string()))? {
        let path = entry.map_err(BenchError::io(dir.display().to_string()))?.path();
        if path.is_file() && path.extension().is_none_or(|ext| ext != "md") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

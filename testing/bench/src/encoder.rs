//! What encoding for every player costs: the time to the first picture in each protocol, the server's own share of
//! the work, and serving what is finished.

use std::ffi::OsString;

use serde_json::{Value, json};

use crate::harness::{Bar, BenchError, Context, Report, alternate, time};
use crate::machine::{ffmpeg_children, own_and_children_cpu, run_until_bytes, run_until_file};
use crate::nginx::{Nginx, free_port};
use crate::play::{CLIP, FIRST_SEGMENT, SEEK_SECONDS, folder_of, until_fetched, wait_for_no_ffmpeg};
use crate::server::{Client, Playback, Server, data_dir};

/// Bytes of a progressive stream after which a player has something to show.
const BEGINNING: u64 = 256 << 10;
/// How many sessions watch one film.
const VIEWERS: usize = 10;
/// How often every segment is fetched by each client.
const ROUNDS: usize = 6;
const SERVE: Bar = Bar {
    most: 1.25,
    slack: 0.0,
};

/// What the first picture is asked for by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Encode,
    Copy,
    Dash,
    Progressive,
}

impl Way {
    const ALL: [(&'static str, Self); 4] = [
        ("encode", Self::Encode),
        ("copy", Self::Copy),
        ("dash", Self::Dash),
        ("progressive", Self::Progressive),
    ];

    fn wishes(self, from: u32) -> Value {
        let (protocol, video) = match self {
            Self::Encode => ("hls", "encode"),
            Self::Copy => ("hls", "copy"),
            Self::Dash => ("dash", "encode"),
            Self::Progressive => ("http", "encode"),
        };
        let mut wishes = json!({ "protocol": protocol, "video": video, "offsetMs": from * 1_000 });
        if self != Self::Progressive {
            wishes["segmentSeconds"] = 6.into();
        }
        wishes
    }
}

/// Measures the group.
pub(crate) fn run(context: &Context, report: &mut Report) -> Result<(), BenchError> {
    for (what, from) in [("first-segment", 0), ("cold-seek", SEEK_SECONDS)] {
        for (way, kind) in Way::ALL {
            let name = format!("encoder/{what}-{way}");
            if context.wants(&name) {
                beginning(context, report, &name, kind, from)?;
            }
        }
    }
    if context.wants("encoder/own-cpu") {
        own_share(context, report, "encoder/own-cpu", 0.03, 1)?;
    }
    if context.wants("encoder/shared-cpu") {
        own_share(context, report, "encoder/shared-cpu", 0.05, VIEWERS)?;
    }
    for clients in [1, 64] {
        let name = format!("encoder/serve-{clients}");
        if context.wants(&name) {
            serve(context, report, &name, clients)?;
        }
    }
    Ok(())
}

/// From asking for a session to the last byte of its first segment, of picture and of sound, at `from` seconds.
fn beginning(
    context: &Context,
    report: &mut Report,
    name: &str,
    way: Way,
    from: u32,
) -> Result<(), BenchError> {
    let data = data_dir(context)?;
    let folder = folder_of(context, "clip", &context.clips.join(CLIP))?;
    let mut server = Server::start(context, &folder, &data)?;
    server.sign_in(&data)?;
    let item = server.item(CLIP)?;
    let wishes = way.wishes(from);
    // The library's pictures are made first.
    wait_for_no_ffmpeg(&server);

    let playback = server.play(&item, &wishes)?;
    let mut held = None;
    if way == Way::Progressive {
        // Half a beginning, and the encoder waits for the rest.
        held = Some(server.another_client().hold(&playback.url)?);
    } else {
        fetch(&mut server, &playback, way, from)?;
    }
    let seen = ffmpeg_children(server.pid());
    drop(held);
    server.end(&playback)?;
    wait_for_no_ffmpeg(&server);
    let command = plain(seen, way)?;

    let (ours, plain) = alternate(
        context.runs,
        || {
            until_fetched(&mut server, &item, &wishes, |server, started| {
                fetch(server, started, way, from)
            })
        },
        || {
            let dir = context.scratch("plain")?;
            let (program, mut args) = command.clone();
            let seconds = match way {
                Way::Progressive => {
                    args.push("pipe:1".into());
                    run_until_bytes(&program, args, BEGINNING)
                }
                Way::Dash => {
                    args.push(dir.join("out.mpd").into());
                    run_until_file(&program, args, &dir.join("chunk-stream0-00001.m4s"))
                }
                Way::Encode | Way::Copy => {
                    args.push(dir.join("out.m3u8").into());
                    run_until_file(&program, args, &dir.join("out0.m4s"))
                }
            };
            context.scratch("plain")?;
            seconds
        },
    )?;
    report.compare(name, "s", FIRST_SEGMENT, &ours, &plain);
    server.stop()
}

fn fetch(server: &mut Server, playback: &Playback, way: Way, from: u32) -> Result<(), BenchError> {
    match way {
        Way::Progressive => server.another_client().beginning(&playback.url, BEGINNING),
        Way::Encode | Way::Copy => {
            let segments = server.segments(playback)?;
            let at = first_at(way, from);
            for target in [segments.first(), segments.get(at + 1)].into_iter().flatten() {
                server.get(target)?;
            }
            Ok(())
        }
        Way::Dash => {
            server.get(&playback.url)?;
            let grant = playback.url.split_once('?').map_or("", |(_, query)| query);
            let number = first_at(way, from);
            // Players fetch picture and sound at once.
            let mut sound = server.another_client();
            let target = |representation: usize, name: &str| {
                format!("/sessions/media/{}/{representation}/{name}?{grant}", playback.id)
            };
            let (init, segment) = (target(1, "header"), target(1, &format!("{number}.m4s")));
            let sound = std::thread::spawn(move || sound.get(&init).and_then(|_| sound.get(&segment)));
            server.get(&target(0, "header"))?;
            server.get(&target(0, &format!("{number}.m4s")))?;
            let joined = sound.join();
            joined
                .map_err(|_| BenchError::Other("the sound's client panicked".into()))?
                .map(|_| ())
        }
    }
}

/// The number of the segment at `from` seconds: copies of the clip are cut where its keyframes are, every 10 s.
fn first_at(way: Way, from: u32) -> usize {
    let step = if way == Way::Copy { 10 } else { 6 };
    usize::try_from(from / step).unwrap_or(0)
}

/// The command that the server's FFmpeg was seen with, writing with FFmpeg's own muxer instead.
fn plain(seen: Vec<Vec<OsString>>, way: Way) -> Result<(String, Vec<OsString>), BenchError> {
    let muxer = if way == Way::Progressive {
        "matroska"
    } else {
        "mp4"
    };
    // Others may be at work too: sound apart from the picture, or the library's still pictures.
    let output = |command: &[OsString]| {
        command
            .windows(2)
            .position(|pair| pair[0] == "-f" && pair[1] == muxer)
    };
    let picture = |command: &Vec<OsString>| command.iter().any(|word| word == "-c:v");
    let (mut command, output) = seen
        .into_iter()
        .filter(picture)
        .find_map(|command| output(&command).map(|at| (command, at)))
        .ok_or_else(|| BenchError::Other(format!("no FFmpeg of the server was seen to write {muxer}")))?;
    command.truncate(output);
    let program = command.remove(0).to_string_lossy().into_owned();
    // The muxers rename a segment into place when it is finished.
    let end = match way {
        Way::Encode | Way::Copy => {
            "-f hls -hls_segment_type fmp4 -hls_time 6 -hls_list_size 0 -hls_flags temp_file"
        }
        Way::Dash => {
            "-map 0:a:0 -c:a aac -b:a 160000 -f dash -seg_duration 6 -use_template 1 -use_timeline 1"
        }
        Way::Progressive => "-flush_packets 1 -f matroska",
    };
    command.extend(end.split(' ').map(Into::into));
    Ok((program, command))
}

/// The server's own CPU time against that of its FFmpeg in the same run: a ladder whose every quality is fetched
/// by a viewer of its own, or one quality that many sessions watch.
fn own_share(
    context: &Context,
    report: &mut Report,
    name: &str,
    most: f64,
    viewers: usize,
) -> Result<(), BenchError> {
    let folder = folder_of(context, "clip", &context.clips.join(CLIP))?;
    let wishes = match viewers {
        1 => json!({ "video": "encode", "container": "fmp4", "ladder": true }),
        _ => json!({ "video": "encode", "container": "fmp4" }),
    };
    let (mut own, mut encoders) = (Vec::new(), Vec::new());
    for _ in 0..context.runs {
        let data = data_dir(context)?;
        let mut server = Server::start(context, &folder, &data)?;
        server.sign_in(&data)?;
        let item = server.item(CLIP)?;
        wait_for_no_ffmpeg(&server);
        let before = own_and_children_cpu(server.pid())?;
        let mut playbacks = Vec::new();
        let mut lists = Vec::new();
        for _ in 0..viewers {
            let playback = server.play(&item, &wishes)?;
            for list in server.playlists(&playback)? {
                lists.push(server.listed(&list)?);
            }
            playbacks.push(playback);
        }
        if viewers == 1 && lists.len() < 5 {
            let count = lists.len();
            return Err(BenchError::Other(format!(
                "{count} lists are no ladder of four and its sound"
            )));
        }
        together(&server, lists)?;
        for playback in &playbacks {
            server.end(playback)?;
        }
        // Its CPU counts once it is reaped.
        wait_for_no_ffmpeg(&server);
        let after = own_and_children_cpu(server.pid())?;
        own.push(after.0 - before.0);
        encoders.push(after.1 - before.1);
        server.stop()?;
    }
    report.compare(name, "cpu s", Bar { most, slack: 0.0 }, &own, &encoders);
    Ok(())
}

/// Each list is fetched from its first address to its last, all lists at once.
fn together(server: &Server, lists: Vec<Vec<String>>) -> Result<(), BenchError> {
    let fetchers: Vec<_> = lists
        .into_iter()
        .map(|list| {
            let mut client = server.another_client();
            std::thread::spawn(move || list.iter().try_for_each(|target| client.get(target).map(|_| ())))
        })
        .collect();
    for fetcher in fetchers {
        let joined = fetcher.join();
        joined.map_err(|_| BenchError::Other("a client panicked".into()))??;
    }
    Ok(())
}

/// Finished segments to so many clients at once, against nginx with the same bytes in files.
fn serve(context: &Context, report: &mut Report, name: &str, clients: usize) -> Result<(), BenchError> {
    let data = data_dir(context)?;
    let folder = folder_of(context, "clip", &context.clips.join(CLIP))?;
    let mut server = Server::start_keeping(context, &folder, &data, 1_024)?;
    server.sign_in(&data)?;
    let item = server.item(CLIP)?;
    let playback = server.play(&item, &json!({ "video": "encode", "container": "fmp4" }))?;
    let segments = server.segments(&playback)?;
    let files = context.scratch("served")?;
    let mut names = Vec::new();
    for (n, target) in segments.iter().enumerate() {
        let bytes = server.get(target)?;
        let path = files.join(format!("{n}.m4s"));
        std::fs::write(&path, bytes).map_err(BenchError::io(path.display().to_string()))?;
        names.push(format!("/{n}.m4s"));
    }
    let port = free_port()?;
    let served = format!("server {{ listen 127.0.0.1:{port}; root {}; }}", files.display());
    let nginx = Nginx::start(context, "nginx", port, &served, "/0.m4s")?;
    // One client alone asks more often, so that there is something to time.
    let rounds = if clients == 1 { ROUNDS * 8 } else { ROUNDS };
    let fetch_all = |client: &dyn Fn() -> Client, targets: &[String]| {
        time(|| {
            let fetchers: Vec<_> = (0..clients)
                .map(|_| {
                    let (mut client, targets) = (client(), targets.to_vec());
                    std::thread::spawn(move || {
                        for _ in 0..rounds {
                            for target in &targets {
                                client.get(target)?;
                            }
                        }
                        Ok::<_, BenchError>(())
                    })
                })
                .collect();
            for fetcher in fetchers {
                let joined = fetcher.join();
                joined.map_err(|_| BenchError::Other("a client panicked".into()))??;
            }
            Ok(())
        })
    };
    let (ours, plain) = alternate(
        context.runs,
        || fetch_all(&|| server.another_client(), &segments),
        || fetch_all(&|| Client::new(nginx.authority()), &names),
    )?;
    report.compare(name, "s", SERVE, &ours, &plain);
    drop(nginx);
    server.stop()
}

//! An encoder and the film that it reads on two nodes: nothing between them but a grant, mutual TLS and a gateway.
//!
//! Real FFmpeg reads real clips through the real gateway, and what it makes is compared with what the same encoder makes
//! of the same file.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ether_encoder::{
    AudioAction, AudioCodec, AudioEncode, AudioTrack, BoxFuture, Device, Encoder, Ended, Execution, Gateway,
    Input, Protocol, Request, Resource, Revision, Rung, SegmentContainer, ServeError, Start, VideoAction,
    VideoCodec, VideoEncode, VideoTrack,
};
use ether_ffmpeg::{HardwareWish, Inventory, LocalEncoder, LocalOptions};
use ether_media::{Facts, FileReader, Limits as ReadLimits, MasteringKind, Ticks, Timeline, read_facts};
use ether_peer::{Dialer, DialerLimits, Listener, ListenerLimits, Peer, bind};
use ether_process::{Config, Processes};
use ether_source::wire::{Boot, NotOpened, Prepare, PrepareAnswer, Retire, RetirementAnswer};
use ether_source::{
    Assignments, Films, Gateway as SourceGateway, GatewayInput, GatewayLimits, Granted, Limits, NotLive,
    Owner, OwnerClient, Terms,
};
use ether_testkit::house::{House, member};
use ether_types::{Clock, FenceHash, Generation, ItemId, NodeId, OperationId, SessionId, SystemClock};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

fn clip(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/clips")
        .join(name);
    assert!(path.exists(), "{} is missing: run `make clips`", path.display());
    path
}

/// A folder on the owner's node.
struct Folder(PathBuf);

impl Films for Folder {
    fn open<'a>(&'a self, item: &'a ItemId) -> BoxFuture<'a, Result<File, NotOpened>> {
        Box::pin(async { File::open(self.0.join(item.as_str())).map_err(|_| NotOpened::NoItem) })
    }
}

/// The ledger is not what these stories are about.
struct Assigned;

impl Assignments for Assigned {
    fn live<'a>(&'a self, _: &'a Terms) -> BoxFuture<'a, Result<(), NotLive>> {
        Box::pin(async { Ok(()) })
    }
}

/// Two nodes, and an encoder on one of them.
struct World {
    place: tempfile::TempDir,
    clock: Arc<dyn Clock>,
    house: House,
    owner: Peer,
    gateway: SourceGateway,
    encoder: LocalEncoder,
    processes: Processes,
    stop: CancellationToken,
    running: Vec<JoinHandle<()>>,
}

impl World {
    async fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let house = House::new(Arc::clone(&clock));
        let boot = member("attic", "a1");
        let folder = Arc::new(Folder(place.path().to_owned()));
        let owner = Owner::new(Limits::default(), folder, Arc::new(Assigned), Arc::clone(&clock));
        let socket = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = socket.local_addr().unwrap();
        let listener = Listener::new(
            house.published(&boot),
            owner.routes(),
            ListenerLimits::default(),
            Arc::clone(&clock),
        );
        let dialer = Dialer::new(
            house.published(&member("gpu", "g1")),
            DialerLimits::default(),
            Arc::clone(&clock),
        );
        let gateway = SourceGateway::bind(dialer, GatewayLimits::default(), Arc::clone(&clock))
            .await
            .unwrap();
        let stop = CancellationToken::new();
        let (a, b, c) = (stop.clone(), stop.clone(), stop.clone());
        let giving = gateway.clone();
        let running = vec![
            tokio::spawn(async move { owner.run(a).await }),
            tokio::spawn(async move { giving.run(b).await }),
            tokio::spawn(async move {
                listener.serve(socket, c).await;
            }),
        ];
        let processes = Processes::start(Config::unguarded(Arc::clone(&clock))).unwrap();
        let cache = place.path().join("inventory.json");
        let ffmpeg = Path::new("ffmpeg");
        let encoder = LocalEncoder::new(LocalOptions {
            inventory: Inventory::load(&processes.spawner(), &*clock, ffmpeg, &cache)
                .await
                .unwrap(),
            scratch: place.path().to_owned(),
            kept: 0,
            spawner: processes.spawner(),
            clock: Arc::clone(&clock),
            hardware: HardwareWish::Auto,
        });
        Self {
            place,
            clock,
            house,
            owner: Peer {
                member: boot,
                address,
            },
            gateway,
            encoder,
            processes,
            stop,
            running,
        }
    }

    /// A clip in the owner's folder, and what the library knows of it.
    fn film(&self, name: &str) -> (PathBuf, Arc<Facts>, Revision) {
        let path = self.place.path().join("film");
        std::fs::copy(clip(name), &path).unwrap();
        let file = File::open(&path).unwrap();
        let revision = Revision::of(&file).unwrap();
        let mut reader = FileReader::new(file.into()).unwrap();
        let mut facts = read_facts(&mut reader, &ReadLimits::default()).unwrap();
        if facts.keyframes.is_none() {
            let index = ether_media::scan_keyframes(&mut reader, &facts, &ReadLimits::default(), &mut |_| {});
            facts.keyframes = index.ok();
        }
        (path, Arc::new(facts), revision)
    }

    /// The film, granted to the worker.
    async fn granted(&self, operation: &str, revision: Revision) -> Arc<GatewayInput> {
        let asked = Prepare {
            operation: OperationId::new(operation).unwrap(),
            session: SessionId::new(NodeId::new("front").unwrap(), 1),
            generation: Generation::new(1).unwrap(),
            fence: fence(),
            worker: Boot::from(&member("gpu", "g1")),
            item: ItemId::new("film").unwrap(),
            revision,
            until: self.clock.now().checked_add(Duration::from_secs(300)).unwrap(),
        };
        let prepared = self.front().prepare(&asked).await.unwrap();
        let PrepareAnswer::Granted { handle, .. } = prepared else {
            panic!("{prepared:?}");
        };
        let granted = Granted {
            owner: self.owner.clone(),
            handle,
            fence: asked.fence,
            revision,
        };
        Arc::new(self.gateway.open(granted).await.unwrap())
    }

    fn front(&self) -> OwnerClient {
        let published = self.house.published(&member("front", "f1"));
        let dialer = Dialer::new(published, DialerLimits::default(), Arc::clone(&self.clock));
        OwnerClient::new(dialer, self.owner.clone())
    }

    async fn execution(&self, request: &Request, input: Input) -> Arc<dyn Execution> {
        let started = self
            .encoder
            .start(Start {
                request: Arc::new(request.clone()),
                input,
                scratch: 64 << 20,
                first: 0,
            })
            .await;
        started.outcome.unwrap();
        started.execution
    }

    async fn end(self) {
        self.encoder.join().await;
        self.processes.shutdown().await;
        self.stop.cancel();
        for running in self.running {
            running.await.unwrap();
        }
    }
}

fn fence() -> FenceHash {
    "07".repeat(32).parse().unwrap()
}

fn behind(input: &Arc<GatewayInput>) -> Input {
    Input::Gateway(Gateway::new(Arc::<GatewayInput>::clone(input)).unwrap())
}

fn request(facts: &Arc<Facts>, copy: bool) -> Request {
    let video = facts.main_video().unwrap();
    let picture = video.video().unwrap();
    let origin = video.start.unwrap_or(facts.start);
    let length = video
        .duration
        .or(facts.duration.map(|d| d + facts.start - origin))
        .unwrap();
    let target = Ticks(4 * Ticks::HZ);
    let timeline = match copy {
        true => Timeline::keyframes(origin, length, target, &facts.keyframes.as_ref().unwrap().times),
        false => Timeline::grid(origin, length, target, picture.frame_rate),
    };
    let sound = facts.main_audio().and_then(|a| a.start).unwrap_or(origin);
    let action = match copy {
        true => VideoAction::Copy,
        false => VideoAction::Encode(VideoEncode {
            codec: VideoCodec::H264,
            device: Device::Software,
            rungs: vec![Rung {
                width: (picture.width / 4) & !1,
                height: (picture.height / 4) & !1,
                max_bit_rate: 2_000_000,
                level: 40,
            }],
            frame_rate: picture.frame_rate.map(Into::into),
            deinterlace: false,
            range: MasteringKind::Sdr,
            burn: None,
            self_describing: false,
        }),
    };
    let aac = AudioEncode {
        codec: AudioCodec::Aac,
        channels: 2,
        sample_rate: 48_000,
        bit_rate: 128_000,
    };
    Request {
        facts: Arc::clone(facts),
        protocol: Protocol::Hls {
            container: SegmentContainer::Fmp4,
        },
        timeline: Arc::new(timeline.unwrap().with_sound_from(sound)),
        video: Some(VideoTrack {
            stream: video.index,
            action,
        }),
        audio: Vec::from_iter(facts.main_audio().map(|audio| AudioTrack {
            stream: audio.index,
            // What is copied is the same byte for byte; encoded sound depends on where its encoder began.
            action: if copy {
                AudioAction::Copy
            } else {
                AudioAction::Encode(aac)
            },
        })),
        subtitle: None,
    }
}

async fn fetch(execution: &dyn Execution, resource: Resource) -> Result<Vec<u8>, ServeError> {
    let served = execution.serve(resource).await?;
    let mut stream = served.media.stream(0..served.len);
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next_piece().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    Ok(bytes)
}

fn segment(number: u32) -> Resource {
    Resource::Segment {
        representation: 0,
        number,
    }
}

#[tokio::test]
async fn a_granted_film_is_encoded_and_copied_as_the_same_file_is() {
    let world = World::new().await;
    for (name, copy) in [
        ("moov-at-end.mp4", true),
        ("moov-at-end.mp4", false),
        ("ntsc.mkv", false),
        ("irregular-keyframes.mkv", true),
        ("late-clock.ts", true),
    ] {
        let (path, facts, revision) = world.film(name);
        let request = request(&facts, copy);
        let here = world
            .execution(
                &request,
                Input::File {
                    path: path.clone(),
                    revision,
                },
            )
            .await;
        let operation = format!("{}-{copy}", name.replace('.', "-"));
        let input = world.granted(&operation, revision).await;
        let there = world.execution(&request, behind(&input)).await;
        let init = Resource::Init { representation: 0 };
        let last = u32::try_from(request.timeline.len() - 1).unwrap();
        // Forward, far ahead, and back: each jump is a run of its own that opens its input anew.
        for resource in [init, segment(0), segment(1), segment(last), segment(2.min(last))] {
            let ours = fetch(&*here, resource).await.unwrap();
            let theirs = fetch(&*there, resource).await.unwrap();
            assert!(!ours.is_empty() && !theirs.is_empty());
            // What an encoder makes depends on where its run began, and whether the first run comes as far as a later
            // segment before another begins there is a matter of moments.
            if copy || [init, segment(0), segment(1)].contains(&resource) {
                assert!(ours == theirs, "{name} copy={copy} {resource}: other bytes");
            }
        }
        there.retire().await.unwrap();
        here.retire().await.unwrap();
        input.seal();
        assert!(
            input.done().await.answers() > 0,
            "FFmpeg read through the gateway"
        );
        let asked = Retire {
            operation: OperationId::new(&operation).unwrap(),
            fence: fence(),
        };
        let front = world.front();
        while let RetirementAnswer::Pending { .. } = front.retire(&asked).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    world.end().await;
}

#[tokio::test]
async fn what_happens_to_a_granted_film_is_told_for_what_it_is() {
    let world = World::new().await;
    let (path, facts, revision) = world.film("ntsc.mkv");
    let request = request(&facts, false);
    let last = u32::try_from(request.timeline.len() - 1).unwrap();

    let input = world.granted("changed", revision).await;
    let execution = world.execution(&request, behind(&input)).await;
    fetch(&*execution, segment(0)).await.unwrap();
    std::io::Write::write_all(&mut File::options().append(true).open(&path).unwrap(), b"more").unwrap();
    let changed = fetch(&*execution, segment(last)).await.unwrap_err();
    let ended = Ended::SourceChanged;
    assert_eq!(changed, ServeError::Ended { ended });
    execution.retire().await.unwrap();

    let (_, _, revision) = world.film("ntsc.mkv");
    let input = world.granted("ended", revision).await;
    let execution = world.execution(&request, behind(&input)).await;
    fetch(&*execution, segment(0)).await.unwrap();
    let asked = Retire {
        operation: OperationId::new("ended").unwrap(),
        fence: fence(),
    };
    world.front().retire(&asked).await.unwrap();
    let lost = fetch(&*execution, segment(last)).await.unwrap_err();
    let ended = Ended::SourceLost;
    assert_eq!(lost, ServeError::Ended { ended });
    let log = execution.observe();
    let said = format!("{log:?}");
    let secret = input.url().rsplit_once('/').unwrap().1;
    assert!(!said.contains(secret) && !said.contains("127.0.0.1"), "{said}");
    execution.retire().await.unwrap();
    world.end().await;
}

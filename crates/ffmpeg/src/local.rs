//! The local encoder behind the port.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use ether_encoder::{
    BoxFuture, Capabilities, Choice, DeviceCounts, Encoder, Execution, Input, Protocol, Request, Resource,
    Served, Start, StartError, Started, Unsupported, supports_request,
};
use ether_media::{StreamKind, Ticks};
use ether_process::Spawner;
use ether_types::Clock;
use tokio::task::JoinSet;

use crate::devices::{Devices, HardwareWish};
use crate::execution::LocalExecution;
use crate::inventory::Inventory;
use crate::kept::{self, Keeper, Key};
use crate::plan;
use crate::progressive;
use crate::scratch::{CHUNK, Scratch};
use crate::store::Store;
use crate::strand::Strand;
use crate::subtitles::{Film, SubtitleError, Subtitles};
use crate::supervisor::{Supervisor, Tools};
use crate::text::Text;

/// The least scratch space an execution can work in: one segment being made and one being sent.
pub const MIN_SCRATCH: u64 = 64 * CHUNK;
/// Least and most scratch space of a sound that comes apart from the picture.
const MIN_SOUND: u64 = 32 * CHUNK;
const MOST_SOUND: u64 = 256 * CHUNK;

/// What the local encoder is made of.
#[derive(Clone)]
pub struct LocalOptions {
    /// What FFmpeg can do, and which FFmpeg.
    pub inventory: Inventory,
    /// A directory on a local file system for scratch files; they have no names in it.
    pub scratch: PathBuf,
    /// Bytes of encoded segments that are kept for later viewers, in the same directory; zero keeps none.
    pub kept: u64,
    /// Starts processes.
    pub spawner: Spawner,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Which devices may encode.
    pub hardware: HardwareWish,
}

/// FFmpeg on this machine.
pub struct LocalEncoder {
    scratch: PathBuf,
    tools: Tools,
    keeper: Arc<Keeper>,
    supervisors: Mutex<JoinSet<()>>,
    subtitles: Subtitles,
}

impl LocalEncoder {
    /// An encoder that has nothing to do yet.
    pub fn new(options: LocalOptions) -> Self {
        let LocalOptions {
            inventory,
            scratch,
            spawner,
            clock,
            hardware,
            kept,
        } = options;
        let keeper = Keeper::new(&scratch, kept).unwrap_or_else(|error| {
            tracing::warn!(%error, "finished segments are not kept");
            Keeper::default()
        });
        let devices = Devices::new(inventory, spawner.clone(), clock.clone(), hardware);
        let subtitles = Subtitles::new(devices.program(), spawner.clone(), clock.clone());
        Self {
            scratch,
            tools: Tools {
                ffmpeg: devices.program(),
                spawner,
                clock,
                devices,
            },
            keeper: Arc::new(keeper),
            supervisors: Mutex::default(),
            subtitles,
        }
    }

    /// What reads text tracks for this encoder's executions, and for whoever gives text to viewers itself.
    pub fn subtitles(&self) -> &Subtitles {
        &self.subtitles
    }

    /// Waits until every execution has ended. Executions end when they are retired or dropped, not by this.
    /// Cancelling stops the waiting and nothing else.
    pub async fn join(&self) {
        loop {
            let mut running =
                std::mem::take(&mut *self.supervisors.lock().unwrap_or_else(PoisonError::into_inner));
            if running.is_empty() {
                break;
            }
            while running.join_next().await.is_some() {}
        }
        self.tools.devices.join().await;
    }

    /// Whether `request` may be taken from another machine: it is something that may cross (T14), and everything
    /// that it needs is known to be there (T22). Pure, like [`Encoder::supports`].
    ///
    /// # Errors
    /// The first thing that is missing, else the first that is not known.
    pub fn admits_remote(&self, request: &Request) -> Result<(), Unsupported> {
        ether_encoder::admits_remote(request, self.capabilities())?;
        self.supports(request)?;
        let inventory = self.tools.devices.inventory();
        inventory.admits_remote(request)?;
        inventory.reads_gateways()
    }

    /// An execution that needs no scratch.
    fn create_stream(&self, start: &Start, from: Ticks) -> Result<Arc<dyn Execution>, StartError> {
        // A stream has one picture and one sound, which are never apart.
        let strand = Strand::all(&start.request).into_iter().next();
        let strand = strand.ok_or(StartError::Uncertain)?;
        let (request, input, tools) = (start.request.clone(), start.input.clone(), self.tools.clone());
        let (execution, supervisor) = progressive::create(request, strand, from, input, tools);
        let mut supervisors = self.supervisors.lock().unwrap_or_else(PoisonError::into_inner);
        while supervisors.try_join_next().is_some() {}
        supervisors.spawn(supervisor.supervise());
        Ok(Arc::new(execution))
    }

    fn create(&self, start: &Start) -> Result<Arc<dyn Execution>, StartError> {
        if let Protocol::Http { start: from } = start.request.protocol {
            return self.create_stream(start, from);
        }
        let strands = Strand::all(&start.request);
        let shares = shares(start.scratch, &strands);
        let scratch = Scratch::create(&self.scratch, &shares);
        let scratch = scratch.map_err(|error| StartError::Scratch { kind: error.kind() })?;
        let mut stores = Vec::with_capacity(strands.len());
        let mut supervisors = self.supervisors.lock().unwrap_or_else(PoisonError::into_inner);
        while supervisors.try_join_next().is_some() {}
        for (strand, scratch) in strands.into_iter().zip(scratch) {
            let tag = ether_types::id::random_hex().map_err(|_| StartError::Uncertain)?;
            let program = self.tools.devices.inventory().identity();
            let keys = (0..strand.representations.len()).map(|rung| match &start.input {
                Input::File { revision, .. } => Key::of(&strand, rung, *revision, program),
                // What was made of another node's film is made again when it is granted again (D20).
                Input::Gateway(_) => None,
            });
            let keys = keys.collect();
            let kept = (self.keeper.clone(), keys);
            let store = Arc::new(Store::new(strand, scratch, kept, tag, start.first));
            let supervisor = Supervisor::new(
                store.clone(),
                self.tools.clone(),
                start.input.clone(),
                start.first,
            );
            supervisors.spawn(supervisor.supervise());
            stores.push(store);
        }
        let text = match start.request.subtitle {
            None => None,
            Some(stream) => {
                let film = Film {
                    input: start.input.clone(),
                    facts: start.request.facts.clone(),
                };
                let tag = ether_types::id::random_hex().map_err(|_| StartError::Uncertain)?;
                let timeline = start.request.timeline.clone();
                Some(Text::new(self.subtitles.clone(), film, stream, timeline, tag))
            }
        };
        Ok(Arc::new(LocalExecution::new(
            stores,
            text,
            &start.request,
            &self.tools,
        )))
    }
}

/// What of `booked` bytes of scratch each strand may take: the picture's most of it, the sounds equal parts of
/// the rest.
fn shares(booked: u64, strands: &[Strand]) -> Vec<u64> {
    let booked = booked.max(MIN_SCRATCH);
    let sounds = strands.iter().filter(|strand| strand.video.is_none()).count() as u64;
    if sounds == strands.len() as u64 {
        return vec![booked / sounds.max(1); strands.len()];
    }
    // Sound of a few hundred kilobits takes little; a share of it is never so small that nothing fits.
    let each = (booked / 4 / sounds.max(1)).clamp(MIN_SOUND.min(booked / 2 / sounds.max(1)), MOST_SOUND);
    let share = |strand: &Strand| match strand.video {
        Some(_) => booked - each * sounds,
        None => each,
    };
    strands.iter().map(share).collect()
}

impl Encoder for LocalEncoder {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            controls: true,
            observations: true,
            keyframes: true,
            abr: true,
            dash: true,
            http: true,
            burned_subtitles: true,
            soft_subtitles: true,
        }
    }

    fn supports(&self, request: &Request) -> Result<(), Unsupported> {
        supports_request(request, self.capabilities())?;
        let is_text = |stream: &u32| {
            let stream = request.facts.stream(*stream);
            stream.is_some_and(|s| matches!(&s.kind, StreamKind::Subtitle(subtitle) if subtitle.text))
        };
        // Whoever draws text reads it as whoever gives it out does.
        let drawn = request.drawn().filter(is_text);
        for stream in request.subtitle.into_iter().chain(drawn) {
            Subtitles::offers(&request.facts, stream).map_err(|error| match error {
                SubtitleError::Unreadable { codec } => Unsupported::Missing {
                    what: format!("a reader of {codec} subtitles"),
                },
                _ => Unsupported::NoSuchStream {
                    kind: "text subtitle",
                    stream,
                },
            })?;
        }
        let stream = matches!(request.protocol, Protocol::Http { .. });
        let strand = Strand::all(request).into_iter().next().filter(|_| stream);
        if let Some(what) = strand.and_then(|strand| plan::obstacle(&strand)) {
            return Err(Unsupported::Missing {
                what: what.to_owned(),
            });
        }
        self.tools.devices.supports(request)
    }

    fn choose(&self, request: &Request) -> Choice {
        self.tools.devices.choose(request)
    }

    fn device_counts(&self) -> Option<DeviceCounts> {
        Some(self.tools.devices.counts())
    }

    fn kept(&self, request: &Request, input: &Input, resource: Resource) -> Option<Served> {
        kept::find(
            &self.keeper,
            request,
            input,
            self.tools.devices.inventory().identity(),
            resource,
        )
    }

    fn start(&self, start: Start) -> BoxFuture<'_, Started> {
        Box::pin(async move {
            let outcome = self.supports(&start.request).map_err(StartError::from);
            match self.create(&start) {
                Ok(execution) => {
                    self.tools.devices.started(&start.request);
                    Started { execution, outcome }
                }
                Err(error) => Started {
                    execution: Arc::new(Nothing),
                    outcome: Err(error),
                },
            }
        })
    }
}

/// The responsibility for an execution that could not be created: there is nothing to end.
struct Nothing;

impl Execution for Nothing {
    fn serve(
        &self,
        _: ether_encoder::Resource,
    ) -> BoxFuture<'_, Result<ether_encoder::Served, ether_encoder::ServeError>> {
        Box::pin(std::future::ready(Err(ether_encoder::ServeError::Retired)))
    }

    fn finished(&self, _: ether_encoder::Resource) -> Option<ether_encoder::Served> {
        None
    }

    fn reaches(&self, _: ether_encoder::Resource) -> bool {
        false
    }

    fn stream(&self) -> BoxFuture<'_, Result<ether_encoder::ByteStream, ether_encoder::ServeError>> {
        Box::pin(std::future::ready(Err(ether_encoder::ServeError::Retired)))
    }

    fn control(&self, _: ether_encoder::Control) -> BoxFuture<'_, Result<(), StartError>> {
        Box::pin(std::future::ready(Err(StartError::Uncertain)))
    }

    fn observe(&self) -> ether_encoder::Observation {
        let (wall, monotonic) = (
            ether_types::Timestamp::from_micros(0),
            ether_types::Monotonic::from_origin(std::time::Duration::ZERO),
        );
        ether_encoder::Observation {
            state: ether_encoder::EncoderState::Retiring,
            ..ether_encoder::Observation::idle(wall, monotonic)
        }
    }

    fn retire(&self) -> BoxFuture<'_, Result<ether_encoder::Retirement, ether_encoder::RetireError>> {
        Box::pin(std::future::ready(Ok(ether_encoder::Retirement { runs: 0 })))
    }
}

//! An encoder that follows a script: what it makes, when it is finished, how it fails and whether its end is proved is
//! what a test says.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use ether_encoder::{
    BoxFuture, ByteStream, Capabilities, Choice, ChoiceReason, Control, Device, DeviceCounts, Encoder,
    EncoderState, Execution, Observation, Pieces, Request, Resource, RetireError, Retirement, ServeError,
    Served, ServedMedia, Share, Start, StartError, Started, Unsupported,
};
use ether_types::{Monotonic, Timestamp};
use tokio::sync::watch;

/// An encoder that makes what its script says, when it says so.
pub(crate) struct Script {
    /// How often an execution was started.
    pub(crate) starts: AtomicU32,
    /// Executions, newest last.
    pub(crate) executions: Mutex<Vec<Arc<Puppet>>>,
    /// Whether executions finish segments at once.
    pub(crate) eager: bool,
    /// Bytes of a segment.
    pub(crate) bytes: usize,
    pub(crate) lacks: Mutex<Option<Unsupported>>,
    /// What tells its description of pictures from others.
    pub(crate) described: Mutex<String>,
    /// The device that it chooses for pictures that are encoded.
    pub(crate) device: Mutex<Device>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            starts: AtomicU32::new(0),
            executions: Mutex::new(Vec::new()),
            eager: true,
            bytes: 1_000,
            lacks: Mutex::new(None),
            described: Mutex::new("init".to_owned()),
            device: Mutex::default(),
        }
    }
}

impl Script {
    pub(crate) fn started(&self) -> u32 {
        self.starts.load(Ordering::SeqCst)
    }

    /// The newest execution.
    pub(crate) fn newest(&self) -> Arc<Puppet> {
        self.executions
            .lock()
            .unwrap()
            .last()
            .expect("an execution")
            .clone()
    }
}

impl Encoder for Script {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            keyframes: true,
            abr: true,
            dash: true,
            http: true,
            burned_subtitles: true,
            controls: true,
            observations: true,
            ..Capabilities::default()
        }
    }

    fn supports(&self, _request: &Request) -> Result<(), Unsupported> {
        match self.lacks.lock().unwrap().clone() {
            Some(lacking) => Err(lacking),
            None => Ok(()),
        }
    }

    fn choose(&self, request: &Request) -> Choice {
        let device = *self.device.lock().unwrap();
        match request.on(device).device() {
            Device::Software => Choice {
                device: Device::Software,
                share: Share::Nothing,
                reasons: vec![ChoiceReason::Software],
            },
            device => Choice {
                device,
                share: Share::Everything,
                reasons: vec![ChoiceReason::Proved],
            },
        }
    }

    fn device_counts(&self) -> Option<DeviceCounts> {
        Some(DeviceCounts {
            hardware: self.starts.load(Ordering::SeqCst) as u64,
            fallbacks: 3,
            ..DeviceCounts::default()
        })
    }

    fn start(&self, start: Start) -> BoxFuture<'_, Started> {
        let generation = self.starts.fetch_add(1, Ordering::SeqCst) + 1;
        let puppet = Arc::new(Puppet {
            generation,
            device: start.request.device(),
            described: self.described.lock().unwrap().clone(),
            self_describing: *start.request == start.request.self_describing(),
            segments: u32::try_from(start.request.timeline.len()).unwrap(),
            state: watch::Sender::new(State {
                eager: self.eager,
                ..State::default()
            }),
            bytes: self.bytes,
            asked: Mutex::new(Vec::new()),
            controls: Mutex::new(Vec::new()),
            scratch: start.scratch,
            first: start.first,
            cut_short: AtomicU32::new(u32::MAX),
            dropped: Arc::new(AtomicU32::new(0)),
        });
        self.executions.lock().unwrap().push(puppet.clone());
        Box::pin(async {
            Started {
                execution: puppet,
                outcome: Ok(()),
            }
        })
    }
}

/// One scripted execution.
pub(crate) struct Puppet {
    pub(crate) generation: u32,
    pub(crate) device: Device,
    described: String,
    pub(crate) self_describing: bool,
    segments: u32,
    pub(crate) state: watch::Sender<State>,
    bytes: usize,
    pub(crate) asked: Mutex<Vec<Resource>>,
    pub(crate) controls: Mutex<Vec<Control>>,
    pub(crate) scratch: u64,
    pub(crate) first: u32,
    /// Bytes after which a stream fails.
    pub(crate) cut_short: AtomicU32,
    /// Streams that were dropped before their end.
    pub(crate) dropped: Arc<AtomicU32>,
}

#[derive(Default)]
pub(crate) struct State {
    /// Everything that is asked for is finished.
    pub(crate) eager: bool,
    pub(crate) finished: BTreeSet<Resource>,
    /// Segments that it would have to move for.
    pub(crate) far: BTreeSet<u32>,
    /// What everything not finished is answered with.
    pub(crate) error: Option<ServeError>,
    pub(crate) retired: bool,
    /// Its one stream was given.
    pub(crate) streamed: bool,
    /// How retirement is answered.
    pub(crate) unprovable: Option<RetireError>,
    pub(crate) retire_calls: u32,
}

impl Puppet {
    pub(crate) fn set(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }

    fn served(&self, resource: Resource) -> Served {
        Served {
            len: self.bytes as u64,
            etag: match resource {
                // Equal for all that describe their pictures alike.
                Resource::Init { representation } => format!("{}-{representation}", self.described),
                _ => format!("g{}-{}", self.generation, resource.to_string().replace('/', "-")),
            },
            content_type: "video/mp4",
            media: Box::new(Whole {
                text: format!("{}:{resource}|", self.generation).into_bytes(),
                cut_short: u64::from(self.cut_short.load(Ordering::SeqCst)),
                dropped: self.dropped.clone(),
            }),
        }
    }
}

/// A resource that repeats a text, made as it is read: it may be larger than any buffer on its way.
struct Whole {
    text: Vec<u8>,
    cut_short: u64,
    dropped: Arc<AtomicU32>,
}

impl ServedMedia for Whole {
    fn stream(self: Box<Self>, range: Range<u64>) -> ByteStream {
        let period = self.text.len();
        let repeated = self.text.repeat(PIECE.div_ceil(period) + 1).into();
        ByteStream::new(Chunks {
            range,
            period: period as u64,
            repeated,
            whole: *self,
        })
    }
}

/// Bytes that are handed over at a time.
const PIECE: usize = 64 * 1024;

struct Chunks {
    range: Range<u64>,
    period: u64,
    /// The text, repeated for one piece more than it is long.
    repeated: Bytes,
    whole: Whole,
}

impl Pieces for Chunks {
    fn poll_next(&mut self, _cx: &mut Context<'_>) -> Poll<Option<std::io::Result<Bytes>>> {
        if self.range.is_empty() {
            return Poll::Ready(None);
        }
        let len = (self.range.end - self.range.start).min(PIECE as u64);
        if self.range.start + len > self.whole.cut_short {
            return Poll::Ready(Some(Err(std::io::Error::other("the worker is gone"))));
        }
        let at = (self.range.start % self.period) as usize;
        let piece = self.repeated.slice(at..at + len as usize);
        self.range.start += len;
        Poll::Ready(Some(Ok(piece)))
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        if !self.range.is_empty() {
            self.whole.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Execution for Puppet {
    fn serve(&self, resource: Resource) -> BoxFuture<'_, Result<Served, ServeError>> {
        self.asked.lock().unwrap().push(resource);
        let mut state = self.state.subscribe();
        Box::pin(async move {
            if let Resource::Segment { number, .. } = resource
                && number >= self.segments
            {
                return Err(ServeError::NoSuchResource { resource });
            }
            loop {
                {
                    let state = state.borrow_and_update();
                    if state.retired {
                        return Err(ServeError::Retired);
                    }
                    if state.eager || state.finished.contains(&resource) {
                        break;
                    }
                    if let Some(error) = state.error.clone() {
                        return Err(error);
                    }
                }
                state.changed().await.unwrap();
            }
            self.set(|state| {
                state.finished.insert(resource);
            });
            Ok(self.served(resource))
        })
    }

    fn finished(&self, resource: Resource) -> Option<Served> {
        let finished = self.state.borrow().finished.contains(&resource);
        finished.then(|| self.served(resource))
    }

    fn reaches(&self, resource: Resource) -> bool {
        !matches!(resource, Resource::Segment { number, .. } if self.state.borrow().far.contains(&number))
    }

    fn stream(&self) -> BoxFuture<'_, Result<ether_encoder::ByteStream, ServeError>> {
        let mut state = self.state.subscribe();
        Box::pin(async move {
            loop {
                {
                    let state = state.borrow_and_update();
                    if state.retired || state.streamed {
                        return Err(ServeError::Retired);
                    }
                    if let Some(error) = state.error.clone() {
                        return Err(error);
                    }
                    if state.eager {
                        break;
                    }
                }
                state.changed().await.unwrap();
            }
            self.set(|state| state.streamed = true);
            let whole = Whole {
                text: format!("{}:stream|", self.generation).into_bytes(),
                cut_short: u64::from(self.cut_short.load(Ordering::SeqCst)),
                dropped: self.dropped.clone(),
            };
            Ok(Box::new(whole).stream(0..self.bytes as u64))
        })
    }

    fn control(&self, control: Control) -> BoxFuture<'_, Result<(), StartError>> {
        self.controls.lock().unwrap().push(control);
        Box::pin(async { Ok(()) })
    }

    fn observe(&self) -> Observation {
        let origin = Monotonic::from_origin(std::time::Duration::ZERO);
        Observation {
            state: EncoderState::Running,
            runs: 1,
            run_start: Some(0),
            scratch_limit: self.scratch,
            log: vec!["a last word".into()],
            device: self.device,
            ..Observation::idle(Timestamp::from_micros(1), origin)
        }
    }

    fn retire(&self) -> BoxFuture<'_, Result<Retirement, RetireError>> {
        self.set(|state| {
            state.retired = true;
            state.retire_calls += 1;
        });
        let answer = match self.state.borrow().unprovable {
            Some(error) => Err(error),
            None => Ok(Retirement { runs: 1 }),
        };
        Box::pin(async move { answer })
    }
}

//! The worker's side: FFmpeg reads a granted film as if it lay on this machine, and reads nothing else.
//!
//! ```text
//!   FFmpeg ── http://127.0.0.1:<port>/<secret> ── gateway ── mutual TLS, bearer ── owner ── file
//! ```
//!
//! A [`GatewayInput`] is the right to one such address. Sealing it takes the address away and cuts off whoever reads;
//! its proof exists once nobody does. What happened on the way is told by [`GatewayInput::failure`], since FFmpeg only
//! sees a connection that breaks: a film that changed, a grant that ended, an owner that cannot be reached are three
//! different things to whoever has to decide what to do next.
//!
//! An answer that breaks on the way to the owner is taken up again where it was (the same owner, grant and revision):
//! FFmpeg waits meanwhile, and learns of it only when nothing came for [`GatewayLimits::patience`].

mod index;
mod reader;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ether_encoder::{GatewayRead, Revision, SourceFailure};
use ether_peer::{Dialer, Peer};
use ether_transfer::{Cut, Entity, Head, HeadLimits, Line, head};
use ether_types::id::random_hex;
use ether_types::{Clock, FenceHash, Monotonic};
use http::header::CACHE_CONTROL;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Either;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::index::{Film, Index};
use self::reader::Reading;
use crate::client::{AskError, OwnerClient};
use crate::grant::{Bearer, Denied, Handle};
use crate::wire::{Admit, AdmitAnswer, Extend, ExtendAnswer};

/// Connections that are kept ready to an owner: one to seek with, one to look at an index.
const SPARE: usize = 2;

/// Bounds of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayLimits {
    /// Inputs at once.
    pub inputs: usize,
    /// Connections at once, over all inputs.
    pub connections: usize,
    /// Bytes that the index of all films together may take.
    pub index: usize,
    /// How long a reader waits for an owner that gives nothing before its connection breaks.
    pub patience: Duration,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            inputs: 1_024,
            connections: 4_096,
            index: 16 << 20,
            patience: Duration::from_secs(30),
        }
    }
}

/// A grant, as the worker that may read under it knows it.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The owner.
    pub owner: Peer,
    /// The grant's name.
    pub handle: Handle,
    /// The assignment's fence.
    pub fence: FenceHash,
    /// The state of the file.
    pub revision: Revision,
}

/// Why an input cannot be read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputFailure {
    /// The file is not in the granted state.
    #[error("the source has changed")]
    Changed,
    /// The grant has ended.
    #[error("the grant has ended")]
    Ended,
    /// The owner gave nothing for as long as a reader waits.
    #[error("the source's owner cannot be reached")]
    Unreachable,
    /// The owner answered what no owner answers: a redirection, other bytes, another length.
    #[error("the source's owner gave an answer that it may not give")]
    Unexpected,
}

/// Why there is no input.
#[derive(Debug, thiserror::Error)]
pub enum OpenInputError {
    /// There are as many as there may be.
    #[error("the gateway has {limit} inputs, which is as many as it may have")]
    Full {
        /// The bound.
        limit: usize,
    },
    /// The gateway has stopped.
    #[error("the gateway has stopped")]
    Stopped,
    /// The operating system gives no random numbers.
    #[error("there are no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// The owner gives no bearer.
    #[error("the owner lets nobody read: {0}")]
    Denied(Denied),
    /// The owner was not reached.
    #[error(transparent)]
    Ask(#[from] AskError),
}

/// A worker's gateway: one listener on the loopback address, and one secret path for each input.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
}

struct Shared {
    address: SocketAddr,
    listener: Mutex<Option<TcpListener>>,
    dialer: Dialer,
    limits: GatewayLimits,
    clock: Arc<dyn Clock>,
    inputs: Mutex<Inputs>,
    index: Index,
    /// Connections that are made ahead, until the gateway stops.
    readying: TaskTracker,
    stopped: CancellationToken,
}

#[derive(Default)]
struct Inputs {
    by_path: HashMap<String, Arc<Input>>,
    stopped: bool,
}

/// What the gateway knows of one input.
struct Input {
    granted: Granted,
    tag: String,
    film: Film,
    client: OwnerClient,
    bearer: tokio::sync::Mutex<Option<Held>>,
    cut: Cut,
    state: Mutex<Use>,
    /// A reader has left.
    left: Notify,
}

/// A bearer that counts, and until when.
struct Held {
    bearer: Bearer,
    renew: Monotonic,
}

#[derive(Default)]
struct Use {
    sealed: bool,
    readers: u32,
    answers: u64,
    failure: Option<InputFailure>,
}

/// One reader of an input, counted for as long as it lives.
struct Reader(Arc<Input>);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.lock().readers -= 1;
        self.0.left.notify_waiters();
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway")
            .field("address", &self.shared.address)
            .field("limits", &self.shared.limits)
            .finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway on a port of the loopback address that the system chooses. It answers once it runs.
    ///
    /// # Errors
    /// The system's own.
    pub async fn bind(dialer: Dialer, limits: GatewayLimits, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        Ok(Self {
            shared: Arc::new(Shared {
                address: listener.local_addr()?,
                listener: Mutex::new(Some(listener)),
                dialer,
                index: Index::new(limits.index),
                limits,
                clock,
                inputs: Mutex::default(),
                readying: TaskTracker::new(),
                stopped: CancellationToken::new(),
            }),
        })
    }

    /// Serves inputs until `stop`, then seals all of them. Returns once every reader is gone. Cancelling cuts every
    /// connection off. A second call returns at once.
    pub async fn run(&self, stop: CancellationToken) {
        let taken = self
            .shared
            .listener
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(listener) = taken else { return };
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                // One too many is one that no FFmpeg of ours makes.
                Ok(_) if connections.len() >= self.shared.limits.connections => {}
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    let (shared, stop) = (Arc::clone(&self.shared), stop.clone());
                    connections.spawn(async move {
                        let answer = |request| {
                            let answered = shared.answer(&request);
                            async move { answered }
                        };
                        Line::new(stream, HeadLimits::default())
                            .serve(answer, stop.cancelled())
                            .await;
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection of the gateway was not accepted");
                    self.shared.clock.sleep(Duration::from_millis(50)).await;
                }
            }
        }
        let inputs: Vec<Arc<Input>> = {
            let mut inputs = self.shared.lock();
            inputs.stopped = true;
            inputs.by_path.drain().map(|(_, input)| input).collect()
        };
        for input in inputs {
            input.seal();
        }
        connections.shutdown().await;
        self.shared.stopped.cancel();
        self.shared.readying.close();
        self.shared.readying.wait().await;
    }

    /// Opens an input under `granted`: asks the owner for a bearer and makes the connections that will be needed.
    ///
    /// Cancelling leaves no input behind.
    ///
    /// # Errors
    /// [`OpenInputError`]; there is no input, and so nothing to seal.
    pub async fn open(&self, granted: Granted) -> Result<GatewayInput, OpenInputError> {
        let shared = &self.shared;
        let client = OwnerClient::new(shared.dialer.clone(), granted.owner.clone());
        let input = Arc::new(Input {
            tag: granted.revision.word(),
            film: (granted.owner.member.node.clone(), granted.revision),
            client,
            bearer: tokio::sync::Mutex::default(),
            cut: Cut::new(),
            state: Mutex::default(),
            left: Notify::new(),
            granted,
        });
        match input.admit(&shared.clock).await? {
            Ok(held) => *input.bearer.lock().await = Some(held),
            Err(why) => return Err(OpenInputError::Denied(why)),
        }
        let path = format!("/{}{}", random_hex()?, random_hex()?);
        {
            let mut inputs = shared.lock();
            if inputs.stopped {
                return Err(OpenInputError::Stopped);
            }
            if inputs.by_path.len() >= shared.limits.inputs {
                return Err(OpenInputError::Full {
                    limit: shared.limits.inputs,
                });
            }
            inputs.by_path.insert(path.clone(), Arc::clone(&input));
        }
        shared.ready(&input.client);
        Ok(GatewayInput {
            url: format!("http://{}{path}", shared.address),
            path,
            input,
            shared: Arc::clone(shared),
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inputs> {
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes connections to the owner ahead of their need.
    fn ready(&self, client: &OwnerClient) {
        let (client, stopped) = (client.clone(), self.stopped.clone());
        self.readying.spawn(async move {
            // An owner that cannot be reached shows where somebody reads.
            let _ = stopped.run_until_cancelled(client.keep_ready(SPARE)).await;
        });
    }

    fn answer(
        self: &Arc<Self>,
        request: &Request<Incoming>,
    ) -> Response<Either<Reading, http_body_util::Empty<Bytes>>> {
        let nothing = |status: StatusCode| {
            let mut response = Response::new(Either::Right(http_body_util::Empty::new()));
            *response.status_mut() = status;
            response
        };
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return nothing(StatusCode::METHOD_NOT_ALLOWED);
        }
        // The whole of what was asked for, a query included, has to be the path.
        let asked = request.uri().path_and_query().map_or("", |asked| asked.as_str());
        let input = self.lock().by_path.get(asked).cloned();
        let Some(input) = input else {
            return nothing(StatusCode::NOT_FOUND);
        };
        let Some(reader) = input.enter() else {
            return nothing(StatusCode::GONE);
        };
        let entity = Entity {
            len: input.granted.revision.size,
            etag: &input.tag,
            modified: None,
            dated: false,
        };
        let Head {
            status,
            headers,
            body,
        } = head(
            request.method(),
            request.headers(),
            &entity,
            "application/octet-stream",
        );
        let mut response = match body {
            None => nothing(status),
            Some(range) => Response::new(Either::Left(Reading::new(reader, range, Arc::clone(self)))),
        };
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
            .headers_mut()
            .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response.extensions_mut().insert(input.cut.clone());
        response
    }
}

impl Input {
    fn lock(&self) -> MutexGuard<'_, Use> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(self: &Arc<Self>) -> Option<Reader> {
        let mut state = self.lock();
        if state.sealed {
            return None;
        }
        state.readers += 1;
        state.answers += 1;
        Some(Reader(Arc::clone(self)))
    }

    fn seal(&self) {
        self.lock().sealed = true;
        self.cut.make();
        self.left.notify_waiters();
    }

    fn fail(&self, failure: InputFailure) {
        self.lock().failure.get_or_insert(failure);
    }

    /// Asks for a bearer.
    async fn admit(&self, clock: &Arc<dyn Clock>) -> Result<Result<Held, Denied>, AskError> {
        let now = clock.monotonic();
        let asked = Admit {
            fence: self.granted.fence,
        };
        match self.client.admit(&self.granted.handle, &asked).await? {
            AdmitAnswer::Denied { why } => Ok(Err(why)),
            AdmitAnswer::Admitted { bearer, lasts_millis } => Ok(Ok(Held {
                bearer,
                // At half its time, so that no read begins with one that is about to end.
                renew: now.saturating_add(Duration::from_millis(lasts_millis / 2)),
            })),
        }
    }

    /// The bearer that counts; a new one where the old one is used up.
    async fn bearer(&self, clock: &Arc<dyn Clock>) -> Result<Result<Bearer, Denied>, AskError> {
        let mut held = self.bearer.lock().await;
        if let Some(held) = held.as_ref().filter(|held| clock.monotonic() < held.renew) {
            return Ok(Ok(held.bearer.clone()));
        }
        match self.admit(clock).await? {
            Err(why) => Ok(Err(why)),
            Ok(fresh) => {
                let bearer = fresh.bearer.clone();
                *held = Some(fresh);
                Ok(Ok(bearer))
            }
        }
    }

    /// Forgets a bearer that the owner does not know.
    async fn forget_bearer(&self) {
        *self.bearer.lock().await = None;
    }
}

/// The right to one address of the gateway. Dropping it seals it, and gives the proof up.
#[must_use = "an input that is dropped is sealed, and never proved done"]
pub struct GatewayInput {
    url: String,
    path: String,
    input: Arc<Input>,
    shared: Arc<Shared>,
}

/// Proof that nobody reads, or ever will, at one address of a gateway. Only a [`GatewayInput`] makes one.
#[derive(Debug, PartialEq, Eq)]
pub struct InputProof {
    answers: u64,
}

impl InputProof {
    /// Answers that there were, all joined.
    pub fn answers(&self) -> u64 {
        self.answers
    }
}

impl GatewayInput {
    /// Where the film is read: a literal loopback address and a path that nobody guesses. It is a secret.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The state of the file that is read there.
    pub fn revision(&self) -> Revision {
        self.input.granted.revision
    }

    /// The first thing that kept a reader from its bytes.
    pub fn failure(&self) -> Option<InputFailure> {
        self.input.lock().failure
    }

    /// Asks the owner for a later deadline (S4). Handle, revision and address stay.
    ///
    /// # Errors
    /// [`AskError`]; the same words again tell what holds.
    pub async fn extend(&self, asked: &Extend) -> Result<ExtendAnswer, AskError> {
        self.input.client.extend(&self.input.granted.handle, asked).await
    }

    /// Takes the address away and cuts off whoever reads. May be called again.
    pub fn seal(&self) {
        self.shared.lock().by_path.remove(&self.path);
        self.input.seal();
    }

    /// Waits, once it is sealed, until nobody reads any more. Cancel-safe.
    pub async fn done(&self) -> InputProof {
        loop {
            let mut left = std::pin::pin!(self.input.left.notified());
            left.as_mut().enable();
            let proof = {
                let state = self.input.lock();
                (state.sealed && state.readers == 0).then_some(InputProof {
                    answers: state.answers,
                })
            };
            match proof {
                Some(proof) => return proof,
                None => left.await,
            }
        }
    }
}

impl Drop for GatewayInput {
    fn drop(&mut self) {
        self.seal();
    }
}

impl std::fmt::Debug for GatewayInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Its address is a secret.
        f.debug_struct("GatewayInput")
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

impl GatewayRead for GatewayInput {
    fn url(&self) -> &str {
        Self::url(self)
    }

    fn revision(&self) -> Revision {
        Self::revision(self)
    }

    fn failure(&self) -> Option<SourceFailure> {
        Self::failure(self).map(|failure| match failure {
            InputFailure::Changed => SourceFailure::Changed,
            InputFailure::Ended | InputFailure::Unreachable | InputFailure::Unexpected => SourceFailure::Lost,
        })
    }
}

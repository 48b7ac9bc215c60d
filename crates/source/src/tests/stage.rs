//! An owner with a folder of films, a worker with a gateway, and a controller; and a ledger that the test writes.

use std::collections::HashMap;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ether_encoder::{BoxFuture, Revision};
use ether_peer::{Dialer, DialerLimits, Listener, ListenerLimits, Peer, bind};
use ether_testkit::house::{House, member};
use ether_tls::Member;
use ether_types::{
    Clock, ClusterId, Fence, FenceHash, Generation, ItemId, NodeId, OperationId, Role, SessionId, TargetId,
    Timestamp,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::wire::{Boot, Prepare, PrepareAnswer, Retire, RetirementAnswer};
use crate::{
    Assignments, Films, Gateway, GatewayLimits, Granted, Limits, NotLive, Owner, OwnerClient, Terms, wire,
};

pub(super) const LEASE: Duration = Duration::from_secs(180);

/// The owner's folder. A door can be closed, so that opening a file takes until it is opened again.
pub(super) struct Folder {
    pub(super) place: TempDir,
    pub(super) door: Semaphore,
}

impl Folder {
    pub(super) fn path(&self, item: &str) -> PathBuf {
        self.place.path().join(item)
    }

    pub(super) fn write(&self, item: &str, bytes: &[u8]) -> Revision {
        std::fs::write(self.path(item), bytes).unwrap();
        self.revision(item)
    }

    pub(super) fn revision(&self, item: &str) -> Revision {
        Revision::of_metadata(&std::fs::metadata(self.path(item)).unwrap())
    }
}

impl Films for Folder {
    fn open<'a>(&'a self, item: &'a ItemId) -> BoxFuture<'a, Result<File, wire::NotOpened>> {
        Box::pin(async move {
            let _open = self.door.acquire().await;
            File::open(self.path(item.as_str())).map_err(|_| wire::NotOpened::NoItem)
        })
    }
}

/// What the ledger says of fences; nothing of those that are not in it.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) says: Mutex<HashMap<FenceHash, Result<(), NotLive>>>,
}

impl Assignments for Ledger {
    fn live<'a>(&'a self, terms: &'a Terms) -> BoxFuture<'a, Result<(), NotLive>> {
        let said = self.says.lock().unwrap().get(&terms.fence).copied();
        Box::pin(async move { said.unwrap_or(Err(NotLive::NotAssigned)) })
    }
}

pub(super) struct Stage {
    pub(super) house: House,
    pub(super) folder: Arc<Folder>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) owner: Peer,
    pub(super) worker: Member,
    pub(super) front: Member,
    pub(super) gateway: Gateway,
    pub(super) stop: CancellationToken,
    pub(super) running: Vec<JoinHandle<()>>,
}

impl Stage {
    pub(super) async fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with(clock, GatewayLimits::default()).await
    }

    pub(super) async fn with(clock: Arc<dyn Clock>, limits: GatewayLimits) -> Self {
        let house = House::new(clock);
        let folder = Arc::new(Folder {
            place: tempfile::tempdir().unwrap(),
            door: Semaphore::new(100),
        });
        let ledger = Arc::new(Ledger::default());
        let clock = Arc::clone(&house.clock);
        let (films, assignments): (Arc<dyn Films>, Arc<dyn Assignments>) = (folder.clone(), ledger.clone());
        let owner = Owner::new(Limits::default(), films, assignments, Arc::clone(&clock));
        let boot = member("attic", "a1");
        let socket = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let peer = Peer {
            member: boot.clone(),
            address: socket.local_addr().unwrap(),
        };
        let listener = Listener::new(
            house.published(&boot),
            owner.routes(),
            ListenerLimits::default(),
            Arc::clone(&clock),
        );
        let worker = member("gpu", "g1");
        let dialer = Dialer::new(
            house.published(&worker),
            DialerLimits::default(),
            Arc::clone(&clock),
        );
        let gateway = Gateway::bind(dialer, limits, clock).await.unwrap();
        let stop = CancellationToken::new();
        let running = vec![
            tokio::spawn({
                let stop = stop.clone();
                async move { owner.run(stop).await }
            }),
            tokio::spawn({
                let (gateway, stop) = (gateway.clone(), stop.clone());
                async move { gateway.run(stop).await }
            }),
            tokio::spawn({
                let stop = stop.clone();
                async move {
                    listener.serve(socket, stop).await;
                }
            }),
        ];
        Self {
            house,
            folder,
            ledger,
            owner: peer,
            worker,
            front: member("front", "f1"),
            gateway,
            stop,
            running,
        }
    }

    /// How `who` asks the owner.
    pub(super) fn client(&self, who: &Member) -> OwnerClient {
        let dialer = Dialer::new(
            self.house.published(who),
            DialerLimits::default(),
            Arc::clone(&self.house.clock),
        );
        OwnerClient::new(dialer, self.owner.clone())
    }

    /// A live assignment, and what its controller asks the owner for.
    pub(super) fn terms(&self, operation: &str, item: &str, revision: Revision) -> Prepare {
        let fence = fence(operation);
        let hash = FenceHash::of(&fence);
        self.ledger.says.lock().unwrap().insert(hash, Ok(()));
        Prepare {
            operation: OperationId::new(operation).unwrap(),
            session: fence.session,
            generation: fence.generation,
            fence: hash,
            worker: Boot::from(&self.worker),
            item: ItemId::new(item).unwrap(),
            revision,
            until: self.in_time(LEASE),
        }
    }

    pub(super) fn in_time(&self, ahead: Duration) -> Timestamp {
        self.house.clock.now().checked_add(ahead).unwrap()
    }

    /// A film that is granted to the worker.
    pub(super) async fn granted(&self, operation: &str, item: &str, bytes: &[u8]) -> Granted {
        let revision = self.folder.write(item, bytes);
        let asked = self.terms(operation, item, revision);
        match self.client(&self.front).prepare(&asked).await.unwrap() {
            PrepareAnswer::Granted { handle, .. } => Granted {
                owner: self.owner.clone(),
                handle,
                fence: asked.fence,
                revision,
            },
            other => panic!("{other:?}"),
        }
    }

    /// Asks for the end until it is proved.
    pub(super) async fn retired(&self, operation: &str) -> u64 {
        let client = self.client(&self.front);
        let asked = retire(operation);
        loop {
            match client.retire(&asked).await.unwrap() {
                RetirementAnswer::Proved { answers } => return answers,
                RetirementAnswer::Pending { .. } => tokio::time::sleep(Duration::from_millis(5)).await,
                RetirementAnswer::Unknown {} => panic!("the controller is known"),
            }
        }
    }

    pub(super) async fn end(self) {
        self.stop.cancel();
        for running in self.running {
            running.await.unwrap();
        }
    }
}

pub(super) fn retire(operation: &str) -> Retire {
    Retire {
        operation: OperationId::new(operation).unwrap(),
        fence: FenceHash::of(&fence(operation)),
    }
}

fn fence(operation: &str) -> Fence {
    let (front, worker) = (member("front", "f1"), member("gpu", "g1"));
    Fence {
        cluster: ClusterId::new("home").unwrap(),
        session: SessionId::new(NodeId::new("front").unwrap(), 3),
        generation: Generation::new(1).unwrap(),
        controller_node: front.node,
        controller_boot: front.boot,
        target: TargetId::new("gpu/gpu0").unwrap(),
        target_boot: worker.boot,
        role: Role::Transcode,
        operation: OperationId::new(operation).unwrap(),
    }
}

/// Bytes that tell where they are from.
pub(super) fn film(len: usize) -> Vec<u8> {
    (0..len)
        .map(|n| u8::try_from((n / 251 + n * 31) % 256).unwrap())
        .collect()
}

/// An answer of the gateway, as a client on the same machine gets it.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
    /// Whether as many bytes came as were announced.
    pub(super) whole: bool,
}

impl Heard {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .find_map(|(found, value)| found.eq_ignore_ascii_case(name).then_some(value))
    }
}

/// Sends a request head to the gateway behind `url`, and does not read.
pub(super) async fn call(url: &str, method: &str, target: Option<&str>, headers: &str) -> TcpStream {
    let rest = url.strip_prefix("http://").unwrap();
    let (address, path) = rest.split_at(rest.find('/').unwrap());
    let mut stream = TcpStream::connect(address).await.unwrap();
    let target = target.unwrap_or(path);
    let head = format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Sends a request to the gateway and reads its whole answer.
pub(super) async fn ask(url: &str, method: &str, target: Option<&str>, headers: &str) -> Heard {
    let mut stream = call(url, method, target, headers).await;
    let mut bytes = Vec::new();
    // A connection that is cut may be reset: what came is what came.
    let _ = stream.read_to_end(&mut bytes).await;
    let end = bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .map_or(bytes.len(), |at| at + 4);
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let body = bytes[end..].to_vec();
    let mut heard = Heard {
        status: head
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .unwrap_or(0),
        head,
        body,
        whole: false,
    };
    let announced = heard.header("content-length").and_then(|len| len.parse().ok());
    heard.whole = method == "HEAD" || announced == Some(heard.body.len());
    heard
}

pub(super) async fn get(url: &str, headers: &str) -> Heard {
    ask(url, "GET", None, headers).await
}

//! What it costs to encode on another machine than the one that has the film.
//!
//! Both ends run in this process, as they would in two: the listener, the owner and the gateway are those of the
//! product, and every byte crosses mutual TLS. nginx does the same with the same cipher.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ether_encoder::{BoxFuture, Revision};
use ether_peer::{Dialer, DialerLimits, Listener, ListenerLimits, Peer, bind};
use ether_source::wire::{Boot, NotOpened, Prepare, PrepareAnswer};
use ether_source::{
    Assignments, Films, Gateway, GatewayInput, GatewayLimits, Granted, Limits, NotLive, Owner, OwnerClient,
    Terms,
};
use ether_testkit::house::{House, member};
use ether_types::{
    Clock, ClusterId, Fence, FenceHash, Generation, ItemId, OperationId, Role, SessionId, SystemClock,
    TargetId,
};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::harness::{Bar, BenchError, Context, Report, alternate, time};
use crate::machine::run_tool;
use crate::nginx::{Nginx, free_port};

/// Bytes of the film that is read through.
const FILM: u64 = 1 << 30;
const NAME: &str = "film.bin";
const GATEWAY: Bar = Bar {
    most: 1.1,
    slack: 0.0,
};

/// Measures the group.
pub(crate) fn run(context: &Context, report: &mut Report) -> Result<(), BenchError> {
    if context.wants("execution/gateway") {
        gateway(context, report)?;
    }
    Ok(())
}

/// A film of a gigabyte through the gateway, against nginx on the loopback address with nginx behind it.
fn gateway(context: &Context, report: &mut Report) -> Result<(), BenchError> {
    let files = context.scratch("granted")?;
    let film = files.join(NAME);
    write_film(&film)?;
    let nodes = Nodes::start(&film)?;
    let nginx = plain_gateway(context, &files)?;
    let ours = nodes.url().to_owned();
    let plain = format!("http://{}/{NAME}", nginx.authority());
    let (ours, plain) = alternate(
        context.runs,
        || time(|| read_through(&ours)),
        || time(|| read_through(&plain)),
    )?;
    report.compare("execution/gateway", "s", GATEWAY, &ours, &plain);
    nodes.stop();
    drop(nginx);
    std::fs::remove_file(&film).map_err(BenchError::io(film.display().to_string()))
}

/// Bytes that do not compress, so that nobody can cheat, and that are in the page cache afterwards.
fn write_film(path: &Path) -> Result<(), BenchError> {
    let failed = || BenchError::io(path.display().to_string());
    let mut file = File::create(path).map_err(failed())?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut piece = vec![0; 1 << 20];
    for _ in 0..FILM >> 20 {
        for word in piece.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&piece).map_err(failed())?;
    }
    Ok(())
}

/// Reads what is at `url` to its end.
fn read_through(url: &str) -> Result<(), BenchError> {
    let wrong = || BenchError::Other(format!("the answer for {FILM} bytes is another"));
    let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
    let (authority, path) = rest.split_at(rest.find('/').ok_or_else(wrong)?);
    let mut stream = TcpStream::connect(authority).map_err(BenchError::io("connecting"))?;
    let head = format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
    stream
        .write_all(head.as_bytes())
        .map_err(BenchError::io("sending a request"))?;
    let mut buffer = vec![0; 256 << 10];
    let (mut came, mut body) = (0, None);
    loop {
        let read = stream.read(&mut buffer).map_err(BenchError::io("reading"))?;
        if read == 0 {
            break;
        }
        if body.is_none() {
            let end = buffer[..read].windows(4).position(|four| four == b"\r\n\r\n");
            body = end.map(|end| end as u64 + 4);
        }
        came += read as u64;
    }
    match body {
        Some(head) if came - head == FILM => Ok(()),
        _ => Err(wrong()),
    }
}

/// nginx as a gateway: plain HTTP in front, mutual TLS 1.3 behind, the same cipher as ours, nothing spooled to disk.
fn plain_gateway(context: &Context, files: &Path) -> Result<Nginx, BenchError> {
    let keys = context.scratch("keys")?;
    let key = |name: &str| keys.join(name).display().to_string();
    let ca = [
        "req",
        "-x509",
        "-newkey",
        "ed25519",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=bench ca",
    ];
    run_tool(
        "openssl",
        ca.iter().map(ToString::to_string).chain([
            "-keyout".into(),
            key("ca.key"),
            "-out".into(),
            key("ca.pem"),
        ]),
    )?;
    let leaf = [
        "req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "2", "-subj", "/CN=node", "-addext",
    ];
    run_tool(
        "openssl",
        leaf.iter().map(ToString::to_string).chain([
            "subjectAltName=DNS:node".into(),
            "-addext".into(),
            "basicConstraints=critical,CA:FALSE".into(),
            "-CA".into(),
            key("ca.pem"),
            "-CAkey".into(),
            key("ca.key"),
            "-keyout".into(),
            key("node.key"),
            "-out".into(),
            key("node.pem"),
        ]),
    )?;
    let (front, back) = (free_port()?, free_port()?);
    let servers = format!(
        "upstream owner {{ server 127.0.0.1:{back}; keepalive 16; }}\n\
         server {{ listen 127.0.0.1:{front}; location / {{ proxy_pass https://owner; proxy_http_version 1.1;\n\
         proxy_set_header Connection \"\"; proxy_max_temp_file_size 0; proxy_buffer_size 64k; proxy_buffers 16 64k;\n\
         proxy_busy_buffers_size 128k; proxy_ssl_protocols TLSv1.3; proxy_ssl_verify on; proxy_ssl_name node;\n\
         proxy_ssl_trusted_certificate {ca}; proxy_ssl_certificate {leaf}; proxy_ssl_certificate_key {key};\n\
         proxy_ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256; }} }}\n\
         server {{ listen 127.0.0.1:{back} ssl; root {root}; ssl_protocols TLSv1.3; ssl_certificate {leaf};\n\
         ssl_certificate_key {key}; ssl_client_certificate {ca}; ssl_verify_client on;\n\
         ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256; }}",
        ca = key("ca.pem"),
        leaf = key("node.pem"),
        key = key("node.key"),
        root = files.display(),
    );
    std::fs::write(files.join("probe"), "there").map_err(BenchError::io("the probe"))?;
    Nginx::start(context, "nginx-gateway", front, &servers, "/probe")
}

/// An owner with one film, and a worker that reads it.
struct Nodes {
    runtime: Runtime,
    stop: CancellationToken,
    input: GatewayInput,
}

struct OneFilm(PathBuf);

impl Films for OneFilm {
    fn open<'a>(&'a self, _: &'a ItemId) -> BoxFuture<'a, Result<File, NotOpened>> {
        Box::pin(async { File::open(&self.0).map_err(|_| NotOpened::NoItem) })
    }
}

/// A ledger that has assigned everything.
struct Always;

impl Assignments for Always {
    fn live<'a>(&'a self, _: &'a Terms) -> BoxFuture<'a, Result<(), NotLive>> {
        Box::pin(async { Ok(()) })
    }
}

impl Nodes {
    fn start(film: &Path) -> Result<Self, BenchError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(BenchError::io("a runtime"))?;
        let stop = CancellationToken::new();
        let input = runtime.block_on(join(film.to_owned(), &stop))?;
        Ok(Self { runtime, stop, input })
    }

    fn url(&self) -> &str {
        self.input.url()
    }

    fn stop(self) {
        self.stop.cancel();
        self.runtime.shutdown_timeout(Duration::from_secs(5));
    }
}

/// Starts both nodes, and grants the film.
async fn join(film: PathBuf, stop: &CancellationToken) -> Result<GatewayInput, BenchError> {
    let other = |what: &str| BenchError::Other(what.to_owned());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let house = House::new(Arc::clone(&clock));
    let (attic, gpu, front) = (member("attic", "a"), member("gpu", "g"), member("front", "f"));
    let revision = Revision::of_metadata(&std::fs::metadata(&film).map_err(BenchError::io("the film"))?);
    let owner = Owner::new(
        Limits::default(),
        Arc::new(OneFilm(film)),
        Arc::new(Always),
        Arc::clone(&clock),
    );
    let socket = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).map_err(BenchError::io("listening"))?;
    let peer = Peer {
        member: attic.clone(),
        address: socket.local_addr().map_err(BenchError::io("listening"))?,
    };
    let listener = Listener::new(
        house.published(&attic),
        owner.routes(),
        ListenerLimits::default(),
        Arc::clone(&clock),
    );
    let dialer = |who| Dialer::new(house.published(who), DialerLimits::default(), Arc::clone(&clock));
    let gateway = Gateway::bind(dialer(&gpu), GatewayLimits::default(), Arc::clone(&clock))
        .await
        .map_err(BenchError::io("the gateway"))?;
    let (serving, answering) = (stop.clone(), stop.clone());
    tokio::spawn(async move { listener.serve(socket, serving).await });
    tokio::spawn({
        let gateway = gateway.clone();
        async move { gateway.run(answering).await }
    });
    let fence = Fence {
        cluster: ClusterId::new("home").map_err(|_| other("a cluster"))?,
        session: SessionId::new(front.node.clone(), 0),
        generation: Generation::new(1).ok_or_else(|| other("a generation"))?,
        controller_node: front.node.clone(),
        controller_boot: front.boot.clone(),
        target: TargetId::new("gpu/cpu").map_err(|_| other("a target"))?,
        target_boot: gpu.boot.clone(),
        role: Role::Transcode,
        operation: OperationId::new("bench").map_err(|_| other("an operation"))?,
    };
    let asked = Prepare {
        operation: fence.operation.clone(),
        session: fence.session.clone(),
        generation: fence.generation,
        fence: FenceHash::of(&fence),
        worker: Boot::from(&gpu),
        item: ItemId::new("film").map_err(|_| other("an item"))?,
        revision,
        until: clock
            .now()
            .checked_add(Duration::from_secs(590))
            .ok_or_else(|| other("a deadline"))?,
    };
    let prepared = OwnerClient::new(dialer(&front), peer.clone())
        .prepare(&asked)
        .await;
    let PrepareAnswer::Granted { handle, .. } = prepared.map_err(|error| other(&error.to_string()))? else {
        return Err(other("the film was not granted"));
    };
    let granted = Granted {
        owner: peer,
        handle,
        fence: asked.fence,
        revision,
    };
    gateway
        .open(granted)
        .await
        .map_err(|error| other(&error.to_string()))
}

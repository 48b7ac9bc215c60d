//! nginx, as a plain tool to compare with.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::harness::{BenchError, Context, pause};
use crate::server::Client;

/// A running nginx. Dropping it ends it.
pub(crate) struct Nginx {
    process: Child,
    port: u16,
}

/// A port of the loopback address that nobody has just now.
pub(crate) fn free_port() -> Result<u16, BenchError> {
    let free = TcpListener::bind("127.0.0.1:0").map_err(BenchError::io("a free port"))?;
    Ok(free.local_addr().map_err(BenchError::io("a free port"))?.port())
}

impl Nginx {
    /// Starts one whose servers are the text `servers`, and waits until `probe`, something small, is to be had at `port`.
    pub(crate) fn start(
        context: &Context,
        name: &str,
        port: u16,
        servers: &str,
        probe: &str,
    ) -> Result<Self, BenchError> {
        let dir = context.scratch(name)?;
        let place = |name: &str| -> PathBuf { dir.join(name) };
        let config = format!(
            "daemon off; master_process on; worker_processes auto; pid {pid}; error_log {log};\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;\n\
             client_body_temp_path {tmp}; proxy_temp_path {tmp}; fastcgi_temp_path {tmp}; uwsgi_temp_path {tmp};\n\
             scgi_temp_path {tmp};\n{servers}\n}}\n",
            pid = place("pid").display(),
            log = place("log").display(),
            tmp = place("tmp").display(),
        );
        let path = place("nginx.conf");
        std::fs::write(&path, config).map_err(BenchError::io(path.display().to_string()))?;
        #[allow(
            clippy::disallowed_methods,
            reason = "plain tools are run by an outsider, not owned by ether"
        )]
        let process = Command::new("nginx")
            .arg("-c")
            .arg(&path)
            .arg("-p")
            .arg(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(BenchError::io("nginx"))?;
        let nginx = Self { process, port };
        for _ in 0..200 {
            if Client::new(nginx.authority()).get(probe).is_ok() {
                return Ok(nginx);
            }
            pause(20);
        }
        let log = std::fs::read_to_string(place("log")).unwrap_or_default();
        Err(BenchError::Other(format!("nginx does not serve: {}", log.trim())))
    }

    /// Where it listens.
    pub(crate) fn authority(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its master ends its workers when it is asked to.
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}

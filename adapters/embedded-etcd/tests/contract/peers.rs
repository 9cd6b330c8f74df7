//! The two servers that the contract tests compare: a real etcd, and the embedded store.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use etcd_client::proto::PbStatusRequest;
use madako_embedded_etcd::{AutoCompaction, Backend, Commit, EmbeddedEtcd, Options, ServerHandle};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::wire::Wire;

/// Time limit of each expected event before the test fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A real etcd on loopback in a temporary directory; dropping this stops it.
pub(crate) struct RealEtcd {
    pub(crate) address: SocketAddr,
    pub(crate) wire: Wire,
    _child: Child,
    _directory: TempDir,
}

/// True if a required program is installed. In CI a missing program fails the test; elsewhere the reason is printed.
pub(crate) fn is_there(program: &str) -> bool {
    if Path::new(program).exists() {
        return true;
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "{program} is missing: install Debian's etcd-server and etcd-client"
    );
    println!("skipped: {program} is missing (Debian's etcd-server and etcd-client have it)");
    false
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("bound").port()
}

impl RealEtcd {
    /// `None` if etcd is not installed; prints the reason.
    pub(crate) async fn start() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let peer_url = format!("http://127.0.0.1:{}", free_port());
        Self::start_in(directory, &peer_url).await
    }

    /// Runs on a directory whose `data` may have data, as member `real` with the given peer URL.
    pub(crate) async fn start_in(directory: TempDir, peer_url: &str) -> Option<Self> {
        const ETCD: &str = "/usr/bin/etcd";
        if !is_there(ETCD) {
            return None;
        }
        let client = free_port();
        let client_url = format!("http://127.0.0.1:{client}");
        let child = Command::new(ETCD)
            .args(["--name", "real", "--log-level", "error", "--logger", "zap"])
            .arg("--data-dir")
            .arg(directory.path().join("data"))
            .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url])
            .args(["--initial-cluster", &format!("real={peer_url}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("etcd starts");
        let wire = Wire::to(client_url);
        until_it_answers(&wire).await;
        let address = SocketAddr::from(([127, 0, 0, 1], client));
        Some(Self { address, wire, _child: child, _directory: directory })
    }
}

pub(crate) async fn until_it_answers(wire: &Wire) {
    let start = Instant::now();
    while let Err(status) = wire.status(PbStatusRequest {}).await {
        assert!(start.elapsed() < DEADLINE, "the server does not answer: {status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The embedded store on a file, over TCP, with its own thread, as in the service.
pub(crate) struct Embedded {
    pub(crate) store: EmbeddedEtcd,
    pub(crate) server: ServerHandle,
    pub(crate) wire: Wire,
    _directory: TempDir,
}

impl Embedded {
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut options = Options::new(Backend::File(directory.path().join("data")), Commit::Thread, 1);
        // The sequences contain explicit compactions.
        options.auto_compaction = AutoCompaction { enabled: false, ..AutoCompaction::default() };
        let store = EmbeddedEtcd::open(options).expect("opens");
        let server = store.serve(([127, 0, 0, 1], 0).into(), None).await.expect("serves");
        let wire = Wire::to(format!("http://{}", server.address()));
        Self { store, server, wire, _directory: directory }
    }

    pub(crate) async fn stop(self) {
        self.store.shutdown().await;
        self.server.shutdown().await;
    }
}

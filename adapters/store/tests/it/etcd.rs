//! Test support: a real etcd of one member, and helpers.

use std::future::Future;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use madako_domain::store::{Condition, Outcome, Transaction, Write};
use madako_protocol::store::Store;
use madako_store::{EtcdStore, StoreConfig};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// Long enough for a process to start on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Polling interval of an expected state.
const GLANCE: Duration = Duration::from_millis(10);

/// An etcd process; killed when dropped.
pub(crate) struct Etcd {
    process: Child,
    member: Member,
}

/// Start parameters of a cluster member.
struct Member {
    directory: tempfile::TempDir,
    name: String,
    client: u16,
    peer: u16,
    /// All members, in etcd's form.
    cluster: String,
    flags: Vec<String>,
    tls: bool,
}

/// The etcd binary, if it is installed.
pub(crate) fn installed() -> Option<PathBuf> {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&places).map(|place| place.join("etcd")).find(|path| path.is_file());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "etcd is not installed, and CI must not skip this test");
        println!("skipped: etcd is not installed");
    }
    found
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// Starts a cluster, and waits until all its members answer. `None` if etcd is not installed.
pub(crate) async fn cluster(size: usize) -> Option<Vec<Etcd>> {
    let path = installed()?;
    let ports: Vec<(u16, u16)> = (0..size).map(|_| (free_port(), free_port())).collect();
    let all: Vec<_> = ports
        .iter()
        .enumerate()
        .map(|(n, (_, peer))| format!("member-{n}=http://127.0.0.1:{peer}"))
        .collect();
    let mut members: Vec<Etcd> = ports
        .iter()
        .enumerate()
        .map(|(n, &(client, peer))| {
            let directory = tempfile::tempdir().expect("a directory");
            let name = format!("member-{n}");
            let member =
                Member { directory, name, client, peer, cluster: all.join(","), flags: vec![], tls: false };
            Etcd { process: member.spawn(&path), member }
        })
        .collect();
    for etcd in &mut members {
        etcd.ready().await;
    }
    Some(members)
}

impl Etcd {
    /// Starts one member, and waits until it answers. `None` if etcd is not installed.
    pub(crate) async fn start(flags: &[&str]) -> Option<Self> {
        let path = installed()?;
        let (client, peer) = (free_port(), free_port());
        let member = Member {
            directory: tempfile::tempdir().expect("a directory"),
            name: "default".into(),
            client,
            peer,
            cluster: format!("default=http://127.0.0.1:{peer}"),
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            tls: flags.iter().any(|flag| flag.starts_with("--cert-file")),
        };
        let mut etcd = Self { process: member.spawn(&path), member };
        etcd.ready().await;
        Some(etcd)
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.member.client)
    }

    pub(crate) fn config(&self, prefix: &str) -> StoreConfig {
        config_at(&self.endpoint(), prefix)
    }

    pub(crate) fn store(&self, prefix: &str) -> EtcdStore {
        EtcdStore::open(&self.config(prefix), 1).expect("a good configuration")
    }

    /// A plain etcd client, as an operator uses it.
    pub(crate) async fn by_hand(&self) -> etcd_client::Client {
        etcd_client::Client::connect([self.endpoint()], None).await.expect("etcd answers")
    }

    async fn ready(&mut self) {
        let port = self.member.client;
        let tls = self.member.tls;
        let probe = self.store("");
        let process = &mut self.process;
        eventually("etcd answers", async || {
            if let Some(status) = process.try_wait().expect("a child") {
                panic!("etcd ended: {status}");
            }
            if tls {
                // Without a client certificate the test can only see that the port is open.
                return tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok().map(drop);
            }
            match probe.list("ready").await {
                Ok(_) => Some(()),
                // With authentication enabled, a refusal counts as an answer.
                Err(error) if error.kind == madako_domain::store::StoreErrorKind::Denied => Some(()),
                Err(_) => None,
            }
        })
        .await;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.process.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        kill_process(pid.expect("it runs"), signal).expect("the signal is delivered");
    }

    /// Kills it at once, like a loss of power.
    pub(crate) async fn kill(&mut self) {
        self.process.kill().await.expect("it ends");
    }

    /// Starts it again at the same address with the same data.
    pub(crate) async fn start_again(&mut self) {
        let path = installed().expect("it was there before");
        self.process = self.member.spawn(&path);
        self.ready().await;
    }

    /// Deletes its data while it is stopped.
    pub(crate) fn wipe(&self) {
        std::fs::remove_dir_all(self.member.directory.path().join("data")).expect("the data are removed");
    }
}

impl Member {
    fn spawn(&self, path: &Path) -> Child {
        let scheme = if self.tls { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", self.client);
        let peer = format!("http://127.0.0.1:{}", self.peer);
        Command::new(path)
            .arg("--data-dir")
            .arg(self.directory.path().join("data"))
            .args(["--name", &self.name, "--initial-cluster", &self.cluster])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            // The shortest lease is 1.5 times the election timeout: short leases make short tests.
            .args(["--heartbeat-interval", "20", "--election-timeout", "200"])
            .args(["--log-level", "panic", "--logger", "zap"])
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("etcd starts")
    }
}

pub(crate) fn config_at(endpoint: &str, prefix: &str) -> StoreConfig {
    StoreConfig { endpoints: vec![endpoint.to_owned()], prefix: prefix.to_owned(), ..StoreConfig::default() }
}

/// Polls until `look` returns a value.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            sleep(GLANCE).await;
        }
    };
    within(what, looking).await
}

/// Awaits an expected event, with a deadline.
pub(crate) async fn within<T>(what: &str, happens: impl Future<Output = T>) -> T {
    timeout(PATIENCE, happens).await.unwrap_or_else(|_| panic!("within {PATIENCE:?}: {what}"))
}

pub(crate) fn put(key: &str, value: impl Into<Bytes>) -> Write {
    Write::Put { key: key.to_owned(), value: value.into(), lease: 0 }
}

/// Writes without conditions.
pub(crate) async fn write(store: &EtcdStore, writes: Vec<Write>) -> i64 {
    write_if(store, vec![], writes).await
}

/// Writes with conditions, which must hold.
pub(crate) async fn write_if(store: &EtcdStore, conditions: Vec<Condition>, writes: Vec<Write>) -> i64 {
    match store.commit(Transaction { conditions, writes }).await.expect("the store answers") {
        Outcome::Committed { revision } => revision,
        Outcome::Refused { failed } => panic!("{failed:?} did not hold"),
    }
}

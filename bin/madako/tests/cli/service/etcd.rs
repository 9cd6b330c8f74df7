//! Test support: a real etcd that can be stopped and restarted.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::keys::Keys;
use super::site::{HOST, Site, free_port};
use super::stage::{eventually, page, signal, sum_of};
use crate::program::{Files, PATIENCE, installed};

/// An etcd of one member; killed when dropped.
pub(crate) struct RealEtcd {
    process: Child,
    data: Files,
    client: u16,
    peer: u16,
    flags: Vec<String>,
}

impl RealEtcd {
    /// Starts an etcd and waits until it listens. `None`: not installed.
    pub(crate) async fn start(flags: &[String]) -> Option<Self> {
        let program = installed()?;
        let (data, client, peer) = (Files::new(), free_port(), free_port());
        let process = spawn(&program, &data, client, peer, flags);
        let mut etcd = Self { process, data, client, peer, flags: flags.to_vec() };
        etcd.listens().await;
        Some(etcd)
    }

    /// Starts an etcd with a site on it. `None`: not installed.
    pub(crate) async fn with_site() -> Option<(Self, Site)> {
        let etcd = Self::start(&[]).await?;
        let files = Files::new();
        let config = files.write("config.yml", etcd.settings());
        let keys = Keys::at(&etcd.endpoint(), None);
        let site = Site::new(files, &config, keys).await;
        site.equip().await;
        Some((etcd, site))
    }

    pub(crate) fn endpoint(&self) -> String {
        let scheme = if self.tls() { "https" } else { "http" };
        format!("{scheme}://{HOST}:{}", self.client)
    }

    /// A configuration file without TLS and password.
    pub(crate) fn settings(&self) -> String {
        format!("endpoints: ['{}']\n", self.endpoint())
    }

    /// Host and port of clients.
    pub(crate) fn address(&self) -> String {
        format!("{HOST}:{}", self.client)
    }

    fn tls(&self) -> bool {
        self.flags.iter().any(|flag| flag.starts_with("--cert-file"))
    }

    async fn listens(&mut self) {
        let (address, tls, process) = (self.address(), self.tls(), &mut self.process);
        let address = address.parse().unwrap();
        eventually("etcd answers", async || {
            if let Some(status) = process.try_wait().unwrap() {
                panic!("etcd ended: {status}");
            }
            if tls {
                // Without a certificate only the open port is visible.
                return tokio::net::TcpStream::connect(address).await.ok().map(drop);
            }
            // Healthy once it has elected itself.
            page(address, "/health").await.is_ok_and(|(status, _)| status == 200).then_some(())
        })
        .await;
    }

    pub(crate) fn signal(&self, which: Signal) {
        signal(&self.process, which);
    }

    /// Sends SIGKILL and waits, as after a crash.
    pub(crate) async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }

    /// Sends SIGTERM and waits.
    pub(crate) async fn terminate(&mut self) {
        signal(&self.process, Signal::TERM);
        timeout(PATIENCE, self.process.wait()).await.expect("etcd ends").unwrap();
    }

    /// Restarts it at the same address with its data.
    pub(crate) async fn start_again(&mut self) {
        let program = installed().expect("it was there before");
        self.process = spawn(&program, &self.data, self.client, self.peer, &self.flags);
        self.listens().await;
    }

    /// Number of answered transactions, whether their conditions held or not.
    pub(crate) async fn transactions(&self) -> f64 {
        let (_, metrics) = page(self.address().parse().unwrap(), "/metrics").await.unwrap();
        let labels = ["grpc_method=\"Txn\"", "grpc_service=\"etcdserverpb.KV\""];
        sum_of(&metrics, "grpc_server_handled_total", &labels).expect("etcd counts transactions")
    }

    /// Number of requests of each method that began, whatever their outcome.
    pub(crate) async fn requests(&self) -> BTreeMap<String, u64> {
        let (_, metrics) = page(self.address().parse().unwrap(), "/metrics").await.unwrap();
        let of = |line: &str| {
            let (series, count) = line.strip_prefix("grpc_server_started_total{")?.rsplit_once("} ")?;
            let label = |name: &str| series.split(&format!("{name}=\"")).with_number(1)?.split('"').next();
            let (service, method) = (label("grpc_service")?, label("grpc_method")?);
            Some((format!("{service}/{method}"), count.parse().ok()?))
        };
        metrics.lines().filter_map(of).collect()
    }
}

fn spawn(program: &Path, data: &Files, client: u16, peer: u16, flags: &[String]) -> Child {
    let scheme = if flags.iter().any(|flag| flag.starts_with("--cert-file")) { "https" } else { "http" };
    let client = format!("{scheme}://{HOST}:{client}");
    let peer = format!("http://{HOST}:{peer}");
    Command::new(program)
        .args(["--data-dir", &data.path("data")])
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        // The shortest lease is one and a half election times: a short one makes short tests.
        .args(["--heartbeat-interval", "20", "--election-timeout", "200"])
        .args(["--log-level", "panic", "--logger", "zap"])
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("etcd starts")
}

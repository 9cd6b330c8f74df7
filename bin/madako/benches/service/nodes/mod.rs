//! Measures a thousand connected nodes: memory of the service, and the time in which it reads their states.
//!
//! Nodes have port 22, so this part needs a network namespace in which the addresses of all machines are local:
//! `unshare --net sh -c 'ip link set lo up && ip route add local 10.0.0.0/8 dev lo && COMMAND'`. Elsewhere it is
//! skipped. One SSH server in this process plays all nodes.

mod server;

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use anyhow::Context as _;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, PrivateKey};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use self::server::{SLOWEST, Server};
use crate::processes::{Madako, Memory, WorkDirectory, free_port};
use crate::scene::Scene;
use crate::size::format_mib;
use crate::table::{Table, Times, format_time};

const MACHINES: u32 = 1_150;
const WORKERS: usize = 1_000;
const MEMORY: u64 = 190 << 20;
/// Memory of an actor, without and with its connection.
const ACTOR: [u64; 2] = [32 << 10, 128 << 10];
const COLLECTIONS: usize = 15;
/// A node that refused a connection for some time is tried again after at most a minute.
const CONNECTED: Duration = Duration::from_secs(180);
const GLANCE: Duration = Duration::from_millis(50);

pub(crate) async fn measure_nodes(table: &mut Table) -> anyhow::Result<()> {
    if std::net::TcpListener::bind(("10.0.0.4", 22)).is_err() {
        eprintln!("  skipped: it needs a network namespace of its own, see benches/service/nodes");
        return Ok(());
    }
    let off = Fleet::start("off").await?.wait_until_settled(|_| true).await?;
    let mut fleet = Fleet::start("act").await?;
    let count = fleet.scene.witness.cluster()?.nodes.len();
    let lonely = fleet.wait_until_settled(|seen| seen.unreachable == Some(count)).await?;

    let _server = Server::start(fleet.scene.witness.cluster()?).await?;
    let connected = fleet.wait_until_settled(|seen| seen.unreachable == Some(0)).await?;
    table.add_row(
        format!("memory of `madako serve` with {count} connected nodes, embedded store"),
        format_mib(MEMORY),
        format!("{} resident, {} at most", format_mib(connected.resident), format_mib(connected.peak)),
        Some(connected.peak <= MEMORY),
    );
    for (what, memory, aim) in [
        ("a node's actor without a connection", lonely, ACTOR[0]),
        ("a node's actor with its connection", connected, ACTOR[1]),
    ] {
        let each = memory.resident.saturating_sub(off.resident) / u64::try_from(count)?;
        table.add_row(
            format!("memory of {what}: the difference to a service that does not act on nodes, divided"),
            format_kib(aim),
            format_kib(each),
            Some(each <= aim),
        );
    }
    let times = fleet.measure_collections().await?;
    table.add_times(
        format!("states of {count} nodes, the slowest of which answers after {}", format_time(SLOWEST)),
        SLOWEST * 3,
        &times,
    );
    Ok(())
}

fn format_kib(bytes: u64) -> String {
    format!("{} KiB", bytes >> 10)
}

/// A service with its cluster.
struct Fleet {
    scene: Scene,
    instance: Madako,
    pages: SocketAddr,
    _keys: WorkDirectory,
}

/// The metrics of collections.
#[derive(Debug, Clone, Copy, Default)]
struct CollectionPage {
    count: usize,
    seconds: f64,
    /// `None`: there was no collection.
    unreachable: Option<usize>,
}

impl Fleet {
    async fn start(mode: &str) -> anyhow::Result<Self> {
        let keys = WorkDirectory::new()?;
        let key = PrivateKey::random(&mut ChaCha8Rng::seed_from_u64(crate::SEED), Algorithm::Ed25519)?;
        let pki = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        let mut sections = format!("operations: {{mode: {mode}}}\n");
        for (name, text) in [("ssh", key.to_openssh(LineEnding::LF)?.as_str()), ("pki", pki)] {
            let path = keys.write_config(name, text)?;
            std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
            sections += &format!("{name}: {{key_file: {}}}\n", path.display());
        }
        let pages = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let (mut scene, instance) =
            Scene::with_embedded_store(MACHINES, "60s", &sections, &pages.to_string()).await?;
        let installed = scene.install(WORKERS).await;
        scene.explain(installed)?;
        Ok(Self { scene, instance, pages, _keys: keys })
    }

    /// Memory after a state has been reached, and some polls and collections later.
    async fn wait_until_settled(
        &mut self,
        is_reached: impl Fn(&CollectionPage) -> bool,
    ) -> anyhow::Result<Memory> {
        let reached = async {
            while !is_reached(&self.read_collected().await?) {
                sleep(GLANCE).await;
            }
            anyhow::Ok(())
        };
        let reached = timeout(CONNECTED, reached).await.context("the nodes do not come to the wanted state");
        self.scene.explain(reached)??;
        self.scene.registry.wait_for_polls(COLLECTIONS).await?;
        self.instance.read_memory()
    }

    /// The durations of collections.
    async fn measure_collections(&self) -> anyhow::Result<Times> {
        let (mut times, mut before) = (Vec::new(), self.read_collected().await?);
        while times.len() < COLLECTIONS {
            sleep(GLANCE).await;
            let after = self.read_collected().await?;
            anyhow::ensure!(after.unreachable == Some(0), "a node did not answer");
            // Two collections between two reads of the page look like one.
            if after.count == before.count + 1 {
                times.push(Duration::from_secs_f64(after.seconds - before.seconds));
            }
            before = after;
        }
        Ok(times.into_iter().collect())
    }

    async fn read_collected(&self) -> anyhow::Result<CollectionPage> {
        let mut stream = TcpStream::connect(self.pages).await.context("the service does not listen")?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let value = |name: &str| {
            let mut lines = answer.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            lines.next().map(str::parse::<f64>).transpose()
        };
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "counters of collections and nodes"
        )]
        let number = |value: f64| value as usize;
        Ok(CollectionPage {
            count: value("madako_operations_collect_seconds_count")?.map_or(0, number),
            seconds: value("madako_operations_collect_seconds_sum")?.unwrap_or_default(),
            unreachable: value("madako_nodes{state=\"unreachable\"}")?.map(number),
        })
    }
}

//! Measures the memory of a service that watches the Node objects of its cluster, beside a service without Kubernetes.
//!
//! A server of this process answers lists and watches of the nodes, which have as many images and conditions as those of real
//! kubelets.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use madako_domain::cluster::Node;
use madako_protocol::feed::Task;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::processes::{Madako, Memory, WorkDirectory};
use crate::scene::Scene;
use crate::size::format_mib;
use crate::table::Table;

const MACHINES: u32 = 1_150;
/// With the control plane, a thousand nodes.
const WORKERS: usize = 997;
const AIM: u64 = 30 << 20;
/// Polls before memory is measured, so that growth by poll would show.
const POLLS: usize = 30;
/// No lease expires during the measurement.
const TTL: &str = "60s";
/// A kubelet reports every five minutes.
const BETWEEN_REPORTS: Duration = Duration::from_millis(300);
/// Images that a kubelet reports at most.
const IMAGES: usize = 50;

pub(crate) async fn measure_watched_nodes(table: &mut Table) -> anyhow::Result<()> {
    let (mut scene, instance) = Scene::with_embedded_leader(MACHINES, TTL).await?;
    let without = measure_settled(&mut scene, &instance).await?;
    let names: Vec<String> =
        scene.witness.cluster()?.nodes.iter().map(Node::name).map(str::to_owned).collect();
    let count = names.len();
    drop(instance);

    let server = ApiServer::start(names).await?;
    let section = format!("kubernetes: {{kubeconfig: {}}}\n", server.kubeconfig.display());
    let (mut scene, instance) = Scene::with_embedded_store(MACHINES, TTL, &section, "127.0.0.1:0").await?;
    let watched = measure_settled(&mut scene, &instance).await?;
    let watches = server.watches.load(Ordering::Relaxed);
    anyhow::ensure!(watches > 0, "the service did not watch the nodes");
    let more = |of: fn(&Memory) -> u64| of(&watched).saturating_sub(of(&without));
    let (resident, peak) = (more(|memory| memory.resident), more(|memory| memory.peak));
    table.add_row(
        format!("memory of {count} watched nodes: the difference to a service without Kubernetes"),
        format_mib(AIM),
        format!("{} resident, {} at most", format_mib(resident), format_mib(peak)),
        Some(resident.max(peak) <= AIM),
    );
    Ok(())
}

/// Memory with the cluster, some polls later.
async fn measure_settled(scene: &mut Scene, instance: &Madako) -> anyhow::Result<Memory> {
    let installed = scene.install(WORKERS).await;
    scene.explain(installed)?;
    scene.registry.wait_for_polls(POLLS).await?;
    instance.read_memory()
}

struct ApiServer {
    /// Number of watches that clients began.
    watches: Arc<AtomicUsize>,
    kubeconfig: std::path::PathBuf,
    _place: WorkDirectory,
    _accepting: Task,
}

impl ApiServer {
    /// Serves Node objects with these names.
    async fn start(names: Vec<String>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the API server cannot listen")?;
        let url = format!("http://{}", listener.local_addr()?);
        let (names, watches): (Arc<[String]>, _) = (names.into(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&watches);
        let accepting = Task::start(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (names, watches) = (Arc::clone(&names), Arc::clone(&counted));
                // A client that leaves needs no answer.
                tokio::spawn(async move { drop(answer(stream, &names, &watches).await) });
            }
        });
        let place = WorkDirectory::new()?;
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bench",
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "clusters": [{"name": "bench", "cluster": {"server": url}}],
            "users": [{"name": "bench", "user": {"token": "bench"}}],
        });
        let kubeconfig = place.write_config("kubeconfig", &kubeconfig.to_string())?;
        std::fs::set_permissions(&kubeconfig, Permissions::from_mode(0o600))?;
        Ok(Self { watches, kubeconfig, _place: place, _accepting: accepting })
    }
}

/// Answers one request of a connection.
async fn answer(stream: TcpStream, names: &[String], watches: &AtomicUsize) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head)?;
    let target = head.split(' ').nth(1).context("a request has a target")?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let parameter = |name: &str| {
        query
            .split('&')
            .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name))
            .map(|(_, value)| value)
    };
    if path != "/api/v1/nodes" {
        stream.write_all(b"HTTP/1.1 404 x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}").await?;
        return Ok(());
    }
    if parameter("watch") == Some("true") {
        watches.fetch_add(1, Ordering::Relaxed);
        stream.write_all(b"HTTP/1.1 200 x\r\nConnection: close\r\n\r\n").await?;
        for (name, version) in names.iter().cycle().zip(names.len() + 1..) {
            sleep(BETWEEN_REPORTS).await;
            let event = json!({"type": "MODIFIED", "object": node(name, version)});
            stream.write_all(format!("{event}\n").as_bytes()).await?;
        }
        return Ok(());
    }
    let first = parameter("continue").map_or(Ok(0), str::parse::<usize>)?;
    let limit = parameter("limit").map_or(Ok(names.len()), str::parse::<usize>)?;
    let page: Vec<Value> =
        names.iter().zip(1..).skip(first).take(limit).map(|(name, version)| node(name, version)).collect();
    let mut metadata = json!({"resourceVersion": names.len().to_string()});
    if first + page.len() < names.len() {
        metadata["continue"] = json!((first + page.len()).to_string());
    }
    let list =
        json!({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": page}).to_string();
    let head = format!("HTTP/1.1 200 x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", list.len());
    stream.write_all(format!("{head}{list}").as_bytes()).await?;
    Ok(())
}

/// A Node object of some 15 KiB.
fn node(name: &str, version: usize) -> Value {
    let many = |prefix: &str, count: usize| -> Value {
        (0..count)
            .map(|number| (format!("{prefix}.example.com/{number}"), json!(format!("{name}-{number}"))))
            .collect()
    };
    let image = |number: usize| {
        let repository = format!("registry.example.com/team-{number}/application-{number}");
        json!({"names": [format!("{repository}@sha256:{number:064x}"), format!("{repository}:1.2.{number}")], "sizeBytes": 1 << 28})
    };
    let condition = |kind: &str, status: &str| {
        json!({
            "type": kind, "status": status, "reason": format!("Kubelet{kind}"), "message": format!("kubelet reports {kind}"),
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    json!({
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name, "resourceVersion": version.to_string(), "uid": format!("{version:036}"),
            "labels": many("label", 20), "annotations": many("annotation", 10),
        },
        "spec": {"taints": [{"key": "cke.cybozu.com/state", "value": "x", "effect": "NoSchedule"}]},
        "status": {
            "conditions": [
                condition("MemoryPressure", "False"), condition("DiskPressure", "False"), condition("PIDPressure", "False"),
                condition("Ready", "True"),
            ],
            "addresses": [{"type": "InternalIP", "address": name}],
            "images": (0..IMAGES).map(image).collect::<Vec<_>>(),
        },
    })
}

//! Components of Kubernetes on real machines, which the service starts and restarts.

use std::path::{Path, PathBuf};

use madako_lab::OPTIONS;
use serde_json::Value;
use tokio::time::Instant;

use crate::fleet::Fleet;
use crate::{eventually, measured};

pub(crate) const MACHINES: [usize; 3] = [0, 1, 2];
/// The containers of a control plane node.
const CONTAINERS: [&str; 8] = [
    "etcd",
    "etcd-rivers",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubelet",
    "rivers",
];

/// The kubeconfig of `madako kubernetes issue`, for the API server of the first machine.
pub(crate) async fn kubeconfig(fleet: &Fleet) -> PathBuf {
    let text = fleet.service.madako(&["kubernetes", "issue"]).await.unwrap();
    let name = "kubeconfig";
    fleet.service.write(name, &text).unwrap();
    fleet.service.path(name)
}

/// Names of the nodes, each with the status of its condition Ready.
async fn nodes(fleet: &Fleet, kubeconfig: &Path) -> Option<Vec<(String, String)>> {
    let text = fleet.lab().kubectl(kubeconfig, &["get", "nodes", "--output=json"]).await.ok()?;
    let list: Value = serde_json::from_str(&text).ok()?;
    let node = |node: &Value| {
        let conditions = node["status"]["conditions"].as_array()?;
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
        Some((node["metadata"]["name"].as_str()?.to_owned(), ready["status"].as_str()?.to_owned()))
    };
    list["items"].as_array()?.iter().map(node).collect()
}

/// Three machines that are Ready nodes. `None`: the test is skipped.
pub(crate) async fn bootstrapped() -> Option<Fleet> {
    let fleet = Fleet::start_kubernetes(MACHINES.len()).await?;
    bring_up(&fleet, &MACHINES, &[]).await;
    Some(fleet)
}

/// Stores a cluster of these machines, and waits until all of them are Ready nodes, and nothing is due.
pub(crate) async fn bring_up(fleet: &Fleet, control_plane: &[usize], workers: &[usize]) {
    let began = Instant::now();
    fleet.set_options(control_plane, workers, OPTIONS).await;
    let credentials = kubeconfig(fleet).await;
    let wanted: Vec<(String, String)> = (control_plane.iter().chain(workers))
        .map(|machine| (fleet.address(*machine), "True".to_owned()))
        .collect();
    let ready = async || nodes(fleet, &credentials).await.filter(|found| *found == wanted).map(drop);
    eventually("all nodes are Ready", ready).await;
    measured(&format!("{} Ready nodes, from the stored cluster on", wanted.len()), began.elapsed());
    fleet.settled(control_plane).await;
    measured("no operation is due, from the stored cluster on", began.elapsed());
}

/// The document of `madako kubernetes status`, also if a component is not good. `None`: it cannot be read.
pub(crate) async fn status(fleet: &Fleet) -> Option<Value> {
    shown(fleet, "kubernetes status").await
}

/// The JSON of a command, whatever its exit code says.
pub(crate) async fn shown(fleet: &Fleet, words: &str) -> Option<Value> {
    let script = format!("{} {words} -o json || true", fleet.service.path("madako").display());
    serde_json::from_str(&fleet.program("sh", &["-c", &script]).await.ok()?).ok()
}

pub(crate) async fn runs_all_components(fleet: &Fleet) {
    for machine in MACHINES {
        let all = async || (fleet.running(machine).await == CONTAINERS).then_some(());
        eventually("all components run", all).await;
    }
    // The exit code is 0 only if each component is as wanted and healthy.
    let good = async || fleet.madako(&["kubernetes", "status"]).await.ok();
    eventually("all components are good", good).await;
}

pub(crate) async fn stopped_components_start_again(fleet: &Fleet) {
    let began = Instant::now();
    fleet.machine(1).docker(&["stop", "kube-apiserver"]).await.unwrap();
    fleet.machine(2).docker(&["kill", "kubelet"]).await.unwrap();
    runs_all_components(fleet).await;
    measured("a stopped API server and a killed kubelet are good again", began.elapsed());
}

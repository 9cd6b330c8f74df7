//! Components of Kubernetes on real machines, which the service starts and restarts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use madako_lab::{Client, OPTIONS, Use};
use serde_json::Value;
use tokio::time::Instant;

use crate::fleet::Fleet;
use crate::{eventually, measured};

const MACHINES: [usize; 3] = [0, 1, 2];
/// The rivers of a machine, which lead to all API servers.
const RIVERS: &str = "https://127.0.0.1:16443";
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
async fn kubeconfig(fleet: &Fleet) -> PathBuf {
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

#[tokio::test]
async fn three_machines_become_ready_nodes_and_keep_their_components() {
    let Some((fleet, _)) = bootstrapped().await else { return };
    runs_all_components(&fleet).await;
    stopped_components_start_again(&fleet).await;
}

/// Three machines that are Ready nodes, and a kubeconfig. `None`: the test is skipped.
async fn bootstrapped() -> Option<(Fleet, PathBuf)> {
    let fleet = Fleet::start_kubernetes(MACHINES.len()).await?;
    let began = Instant::now();
    fleet.set_options(&MACHINES, &[], OPTIONS).await;
    let credentials = kubeconfig(&fleet).await;
    let wanted: Vec<(String, String)> =
        MACHINES.iter().map(|machine| (fleet.address(*machine), "True".to_owned())).collect();
    let ready = async || nodes(&fleet, &credentials).await.filter(|found| *found == wanted).map(drop);
    eventually("three nodes are Ready", ready).await;
    measured("three Ready nodes, from the stored cluster on", began.elapsed());
    fleet.settled(&MACHINES).await;
    measured("no operation is due, from the stored cluster on", began.elapsed());
    Some((fleet, credentials))
}

async fn runs_all_components(fleet: &Fleet) {
    for machine in MACHINES {
        let all = async || (fleet.running(machine).await == CONTAINERS).then_some(());
        eventually("all components run", all).await;
    }
    // The exit code is 0 only if each component is as wanted and healthy.
    let good = async || fleet.madako(&["kubernetes", "status"]).await.ok();
    eventually("all components are good", good).await;
}

async fn stopped_components_start_again(fleet: &Fleet) {
    let began = Instant::now();
    fleet.machine(1).docker(&["stop", "kube-apiserver"]).await.unwrap();
    fleet.machine(2).docker(&["kill", "kubelet"]).await.unwrap();
    runs_all_components(fleet).await;
    measured("a stopped API server and a killed kubelet are good again", began.elapsed());
}

/// The arguments of the API server of a machine.
async fn arguments(fleet: &Fleet, machine: usize) -> String {
    let words = ["inspect", "--format={{json .Args}}", "kube-apiserver"];
    fleet.machine(machine).docker(&words).await.unwrap_or_default()
}

/// With one more attempt, no request of a client of the rivers fails while all API servers get another argument.
#[tokio::test]
#[ignore = "minutes: each API server waits until rivers use the one before it again (make test-long)"]
async fn api_servers_restart_one_at_a_time_under_a_client() {
    let Some((fleet, credentials)) = bootstrapped().await else { return };
    let uses = Use { kubeconfig: &credentials, server: RIVERS, pods: &[], names: &[], rate: 10 };
    let client = Client::start(fleet.lab(), fleet.machine(0), "rolling", uses).unwrap();
    let began = Instant::now();
    let options = format!("{{kube-api: {{extra_args: [--v=1]}}, {}", &OPTIONS[1..]);
    fleet.set_options(&MACHINES, &[], &options).await;
    for machine in MACHINES {
        let changed = async || arguments(&fleet, machine).await.contains("--v=1").then_some(());
        eventually("the API server has the argument", changed).await;
    }
    runs_all_components(&fleet).await;
    measured("three API servers have another argument", began.elapsed());
    let report = client.finish(fleet.lab()).await.unwrap();
    for (kind, count) in &report.kinds {
        let gap = Duration::from_millis(count.longest_gap_ms);
        measured(&format!("longest time without a success of {kind}: {count:?}"), gap);
    }
    for kind in ["read", "read on a new connection", "write"] {
        let count = report.kinds[kind];
        assert!(count.successes > 100 && count.failed == 0, "{kind}: {report:?}");
    }
    assert!(report.lost.is_empty() && report.missed.is_empty(), "{report:?}");
}

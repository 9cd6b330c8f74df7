//! A minor upgrade of a running cluster, with each treatment of the kubelets (`kubernetes.minor_upgrade`), and nodes that hinder
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use madako_lab::{KUBERNETES_IMAGE, OPTIONS, PREVIOUS_KUBERNETES_IMAGE};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::clients::{Clients, Reports, is_of_api, reaches_pods, start_pods};
use crate::components::{bring_up, shown, status};
use crate::fleet::Fleet;
use crate::kills::Records;
use crate::power::{add_reboot, power_cycle, queue, reboot_commands};
use crate::rolls::{ROLL, ROLL_PAUSE, within_a_roll};
use crate::{eventually, eventually_within, measured};

const CONTROL_PLANE: [usize; 3] = [0, 1, 2];
const WORKERS: [usize; 1] = [3];
const ALL: [usize; 4] = [0, 1, 2, 3];
/// The node whose kubelet restarts in place: the first wave has the first node of the cluster.
const IN_PLACE: usize = 0;
const DRAINED: usize = 1;
/// The node with a pod that no drain may evict.
const HELD: usize = 2;
/// The node whose docker hangs, and that reboots.
const REBOOTED: usize = 3;
/// Requests of each kind and client in a second: about ten of all kinds to the API from each machine.
const RATE: u32 = 1;

/// A pod on the node of [`HELD`] with a budget that allows no eviction.
fn stubborn(node: &str) -> String {
    format!(
        r#"apiVersion: apps/v1
kind: Deployment
metadata: {{name: stubborn, namespace: default}}
spec:
  selector: {{matchLabels: {{app: stubborn}}}}
  template:
    metadata: {{labels: {{app: stubborn}}}}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 1
      nodeSelector: {{kubernetes.io/hostname: {node}}}
      containers: [{{name: echo, image: '{image}', imagePullPolicy: Never}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: stubborn, namespace: default}}
spec: {{minAvailable: 1, selector: {{matchLabels: {{app: stubborn}}}}}}
"#,
        image = madako_lab::ECHO_IMAGE
    )
}

/// The upgrade of a cluster in its steps.
struct Upgrade {
    fleet: Fleet,
    credentials: PathBuf,
}

impl Upgrade {
    /// Sets `kubernetes.minor_upgrade`, which a service reads at its start.
    async fn set_treatment(&self, treatment: &str) {
        let path = self.fleet.service.path("config.yml");
        let config = std::fs::read_to_string(path).unwrap();
        let line = |line: &str| match line.starts_with("kubernetes:") {
            true => format!("kubernetes: {{mode: act, minor_upgrade: {treatment}}}\n"),
            false => format!("{line}\n"),
        };
        let changed: String = config.lines().map(line).collect();
        assert!(changed.contains(treatment), "{changed}");
        self.fleet.service.write("config.yml", &changed).unwrap();
        self.fleet.service.kill().await.unwrap();
        self.fleet.serve().await;
    }

    async fn kubectl(&self, words: &[&str]) -> Result<String, String> {
        let answer = self.fleet.lab().kubectl(&self.credentials, words).await;
        answer.map_err(|error| error.to_string())
    }

    /// The version of each kubelet by the number of its machine, once an API server tells.
    async fn kubelets(&self) -> BTreeMap<usize, String> {
        let path = r#"{range .items[*]}{.metadata.name} {.status.nodeInfo.kubeletVersion}{"\n"}{end}"#;
        let output = format!("--output=jsonpath={path}");
        let text =
            eventually("the nodes are listed", async || self.kubectl(&["get", "nodes", &output]).await.ok());
        let text = text.await;
        let versions: BTreeMap<&str, &str> = text.lines().map(|line| line.split_once(' ').unwrap()).collect();
        ALL.into_iter().map(|it| (it, versions[&*self.fleet.address(it)].to_owned())).collect()
    }

    /// Waits until exactly these machines have kubelets of the new version.
    async fn kubelets_are_new(&self, machines: &[usize]) {
        let new = version(KUBERNETES_IMAGE);
        let is_so = async || {
            sleep(ROLL_PAUSE).await;
            let found: Vec<usize> =
                self.kubelets().await.into_iter().filter(|(_, it)| *it == new).map(|(it, _)| it).collect();
            (found == machines).then_some(())
        };
        eventually_within(ROLL, &format!("kubelets of {machines:?} are {new}"), is_so).await;
    }

    /// The image of a component on a machine; empty without the container.
    async fn image(&self, machine: usize, component: &str) -> String {
        let words = ["inspect", "--format={{.Config.Image}}", component];
        self.fleet.machine(machine).docker(&words).await.unwrap_or_default().trim().to_owned()
    }

    /// Waits until a component has the new image on these machines.
    async fn has_new_image(&self, component: &str, machines: &[usize]) {
        let is_new = async || {
            sleep(ROLL_PAUSE).await;
            for machine in machines {
                if self.image(*machine, component).await != KUBERNETES_IMAGE {
                    return None;
                }
            }
            Some(())
        };
        eventually_within(ROLL, &format!("{component} has the new image on {machines:?}"), is_new).await;
    }

    /// The running containers of pods on machines, with those of sandboxes.
    async fn containers_on(&self, machines: &[usize]) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for machine in machines {
            let list = "ctr --namespace k8s.io tasks list --quiet";
            let ids = self.fleet.machine(*machine).sh(list).await.unwrap();
            found.extend(ids.lines().map(|id| format!("{id} on {machine}")));
        }
        found
    }

    /// None of these containers of pods has ended. Others may have come, from nodes that were drained.
    async fn keeps(&self, machines: &[usize], containers: &BTreeSet<String>) {
        let running = self.containers_on(machines).await;
        let ended: Vec<&String> = containers.difference(&running).collect();
        assert!(!containers.is_empty() && ended.is_empty(), "of {} ended: {ended:?}", containers.len());
    }

    /// Nothing cordons the node.
    async fn is_usable(&self, machine: usize) -> bool {
        let node = ["get", "node", &self.fleet.address(machine), "--output=jsonpath={.spec.unschedulable}"];
        self.kubectl(&node).await.is_ok_and(|cordoned| cordoned.is_empty())
    }

    async fn waits_until_usable(&self, machines: &[usize]) {
        for machine in machines {
            eventually("the node is usable", async || self.is_usable(*machine).await.then_some(())).await;
        }
    }
}

/// The version that the components of an image report.
fn version(image: &str) -> String {
    format!("v{}", image.split_once(':').unwrap().1)
}

/// The number of kubelets that wait for this reason.
fn waiting(status: &Value, reason: &str) -> u64 {
    status["minor_upgrades"][reason].as_u64().unwrap_or_default()
}

/// The reasons in the row of a component.
fn reasons(status: &Value, component: &str, node: &str) -> String {
    let rows = status["components"].as_array().into_iter().flatten();
    let mut found = rows.filter(|row| row["component"] == component && row["node"] == node);
    found.next().map(|row| row["why"].to_string()).unwrap_or_default()
}

#[tokio::test]
#[ignore = "minutes: make test-long"]
async fn kubelets_get_a_minor_release_by_a_reboot_in_place_and_after_a_drain() {
    let Some(fleet) = Fleet::start_kubernetes(ALL.len()).await else { return };
    fleet.lab().load_previous_kubernetes().await.unwrap();
    fleet.madako(&["images", "set", &format!("kubernetes={PREVIOUS_KUBERNETES_IMAGE}")]).await.unwrap();
    let began = Instant::now();
    bring_up(&fleet, &CONTROL_PLANE, &WORKERS).await;
    let credentials = start_pods(&fleet).await;
    measured("pods answer at a service address on each machine, from the stored cluster on", began.elapsed());
    let upgrade = Upgrade { fleet, credentials };
    let rolled = control_planes_and_proxies_come_first(&upgrade).await;
    a_reboot_brings_the_kubelet(&upgrade).await;
    a_kubelet_restarts_in_place(&upgrade).await;
    let drained = nodes_are_drained_but_for_one(&upgrade).await;
    a_reboot_waits_for_the_budget(&upgrade).await;
    let good = async || {
        sleep(ROLL_PAUSE).await;
        upgrade.fleet.madako(&["kubernetes", "status"]).await.ok()
    };
    within_a_roll(&upgrade.fleet, "all components are good", good).await;
    upgrade.fleet.settled(&CONTROL_PLANE).await;
    rolled.judge("a minor release of control planes and proxies rolls", 1);
    drained.judge_kinds("a node is drained for the next minor release", 0, is_of_api);
}

/// All but the kubelets: one API server at a time, and proxies in waves, while the docker of a worker hangs.
async fn control_planes_and_proxies_come_first(upgrade: &Upgrade) -> Reports {
    let fleet = &upgrade.fleet;
    upgrade.set_treatment("on-reboot").await;
    let containers = upgrade.containers_on(&ALL).await;
    let clients = Clients::start(fleet, &ALL, &upgrade.credentials, "minor", RATE);
    let began = Instant::now();
    fleet.madako(&["images", "set", &format!("kubernetes={KUBERNETES_IMAGE}")]).await.unwrap();
    fleet.machine(REBOOTED).hang_docker().await.unwrap();
    upgrade.has_new_image("kube-apiserver", &CONTROL_PLANE).await;
    measured("three API servers have the next minor release", began.elapsed());
    upgrade.has_new_image("kube-scheduler", &CONTROL_PLANE).await;
    upgrade.has_new_image("kube-proxy", &CONTROL_PLANE).await;
    fleet.unreachable(REBOOTED, "").await;
    fleet.machine(REBOOTED).resume_docker().await.unwrap();
    upgrade.has_new_image("kube-proxy", &ALL).await;
    let waits = async || {
        sleep(ROLL_PAUSE).await;
        let status = status(fleet).await?;
        (waiting(&status, "next-boot") == ALL.len() as u64).then_some(())
    };
    eventually("all kubelets wait for a boot", waits).await;
    measured("all but the kubelets have the next minor release", began.elapsed());
    let reports = clients.finish(fleet).await;
    upgrade.kubelets_are_new(&[]).await;
    upgrade.keeps(&ALL, &containers).await;
    reports
}

async fn a_reboot_brings_the_kubelet(upgrade: &Upgrade) {
    let fleet = &upgrade.fleet;
    let others = upgrade.containers_on(&CONTROL_PLANE).await;
    let reboots = reboot_commands(fleet);
    fleet.service.set_cluster_with(&CONTROL_PLANE, &WORKERS, OPTIONS, &reboots).await.unwrap();
    let clients = Clients::start(fleet, &CONTROL_PLANE, &upgrade.credentials, "reboot", RATE);
    let began = Instant::now();
    add_reboot(fleet, REBOOTED).await;
    power_cycle(fleet, REBOOTED).await;
    upgrade.kubelets_are_new(&[REBOOTED]).await;
    upgrade.waits_until_usable(&[REBOOTED]).await;
    measured("a node has rebooted, and its kubelet has the next minor release", began.elapsed());
    clients.finish(fleet).await.judge_kinds("a worker reboots", 0, is_of_api);
    upgrade.keeps(&CONTROL_PLANE, &others).await;
    reaches_pods(fleet.machine(REBOOTED)).await;
}

async fn a_kubelet_restarts_in_place(upgrade: &Upgrade) {
    let fleet = &upgrade.fleet;
    let containers = upgrade.containers_on(&ALL).await;
    let clients = Clients::start(fleet, &ALL, &upgrade.credentials, "in-place", RATE);
    let began = Instant::now();
    upgrade.set_treatment("in-place").await;
    // The first wave has one node.
    Records::follow(fleet).announced("kubelet-restart", "run-container").await;
    fleet.madako(&["kube", "pause"]).await.unwrap();
    upgrade.kubelets_are_new(&[IN_PLACE, REBOOTED]).await;
    let watched = async || {
        sleep(ROLL_PAUSE).await;
        let status = status(fleet).await?;
        status["rollout"]["watched"].as_object()?.is_empty().then_some(())
    };
    eventually("the node is Ready for a while", watched).await;
    measured("a kubelet has the next minor release in place", began.elapsed());
    clients.finish(fleet).await.judge("a kubelet restarts in place", 0);
    upgrade.keeps(&ALL, &containers).await;
    upgrade.kubelets_are_new(&[IN_PLACE, REBOOTED]).await;
}

/// The drain of one node never ends: its kubelet waits with the reason, and the others go on.
async fn nodes_are_drained_but_for_one(upgrade: &Upgrade) -> Reports {
    let fleet = &upgrade.fleet;
    let node = fleet.address(HELD);
    fleet.service.write("stubborn.yml", &stubborn(&node)).unwrap();
    let file = fleet.service.path("stubborn.yml");
    upgrade.kubectl(&["create", "-f", &file.display().to_string()]).await.unwrap();
    let wait = ["rollout", "status", "deployment/stubborn", "--timeout=20s"];
    eventually("the stubborn pod runs", async || upgrade.kubectl(&wait).await.ok()).await;
    let others = upgrade.containers_on(&[IN_PLACE, HELD, REBOOTED]).await;
    let clients = Clients::start(fleet, &ALL, &upgrade.credentials, "drain", RATE);
    let began = Instant::now();
    upgrade.set_treatment("drain").await;
    fleet.madako(&["kube", "resume"]).await.unwrap();
    upgrade.kubelets_are_new(&[IN_PLACE, DRAINED, REBOOTED]).await;
    measured("a node was drained, and its kubelet has the next minor release", began.elapsed());
    upgrade.waits_until_usable(&ALL).await;
    let reports = clients.finish(fleet).await;
    let waits = async || {
        sleep(ROLL_PAUSE).await;
        let status = status(fleet).await?;
        (waiting(&status, "drain-aborted") == 1).then(|| reasons(&status, "kubelet", &node))
    };
    let why = eventually("the kubelet of the stubborn pod waits", waits).await;
    assert!(why.contains("default/stubborn"), "{why}");
    commands_name_the_held_drain(fleet, &node).await;
    assert!(upgrade.is_usable(HELD).await, "no cordon is left");
    upgrade.keeps(&[IN_PLACE, HELD, REBOOTED], &others).await;
    let history = fleet.history().await;
    let drains =
        |record: &&Value| record["operation"] == "reboot-drain-start" && record["status"] == "completed";
    let drained: BTreeSet<String> =
        history.iter().filter(drains).map(|record| record["targets"].to_string()).collect();
    let address = fleet.address(DRAINED);
    assert!(drained.iter().any(|targets| targets.contains(&address)), "{drained:?}");
    reports
}

/// `kube status` and `kube plan` name the pod that holds the drain of a node.
async fn commands_name_the_held_drain(fleet: &Fleet, node: &str) {
    let status = status(fleet).await.unwrap();
    let mut entries = status["entries"].as_array().unwrap().iter();
    let entry = entries.find(|entry| entry["node"] == node).unwrap_or_else(|| panic!("{status}"));
    assert_eq!(
        (&entry["queue"], &entry["obstacle"]),
        (&json!("reboot-queue"), &json!("back-off")),
        "{entry}"
    );
    assert!(entry["why"].to_string().contains("default/stubborn"), "{entry}");
    let plan = shown(fleet, "kubernetes plan").await.unwrap();
    let mut steps = plan["steps"].as_array().unwrap().iter();
    let drain = steps.find(|step| step["operation"] == "drain").unwrap_or_else(|| panic!("{plan}"));
    assert_eq!(drain["nodes"], json!([node]), "{plan}");
    let mut blockers = plan["drains"][0]["blockers"].as_array().unwrap().iter();
    let is_named =
        |blocker: &Value| blocker["kind"] == "budget" && blocker["pod"].to_string().contains("stubborn");
    assert!(blockers.any(is_named), "{plan}");
}

/// A reboot of the same node is refused for the same reason; once the budget is gone, the reboot brings the kubelet.
async fn a_reboot_waits_for_the_budget(upgrade: &Upgrade) {
    let fleet = &upgrade.fleet;
    add_reboot(fleet, HELD).await;
    let refused = async || {
        let entries = queue(fleet).await?;
        let entry = entries.first()?;
        (entry["status"] == "queued" && entry["drain_backoff_count"].as_u64()? > 0).then_some(())
    };
    eventually("the drain for the reboot is given up", refused).await;
    assert!(upgrade.is_usable(HELD).await, "no cordon is left");
    let history = fleet.history().await;
    let given_up = history.iter().find(|record| record["operation"] == "reboot-drain-timeout").unwrap();
    assert!(given_up.to_string().contains("default/stubborn"), "{given_up}");
    upgrade.kubectl(&["delete", "poddisruptionbudget", "stubborn"]).await.unwrap();
    fleet.madako(&["reboot-queue", "reset-backoff"]).await.unwrap();
    power_cycle(fleet, HELD).await;
    upgrade.kubelets_are_new(&ALL).await;
    upgrade.waits_until_usable(&ALL).await;
}

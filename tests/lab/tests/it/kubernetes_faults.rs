//! Faults of a cluster with Kubernetes on real machines: each stops only what depends on it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;

use madako_lab::{KUBERNETES_IMAGE, OPTIONS};
use serde_json::Value;
use tokio::time::{Duration, Instant, sleep};

use crate::clients::{Clients, reaches_pods, start_pods};
use crate::components::{bring_up, shown, status};
use crate::fleet::Fleet;
use crate::kills::Records;
use crate::rolls::{ROLL, ROLL_PAUSE, options_with, servers_with, wait_until_rolled};
use crate::{eventually, eventually_within, measured};

const CONTROL_PLANE: [usize; 3] = [0, 1, 2];
/// A worker, which replaces a control plane node.
const WORKER: usize = 3;
/// Requests of each kind and client in a second: about ten of all kinds.
const RATE: u32 = 3;
/// Time for which a roll with a bad argument is watched: a few attempts of the service.
const BAD_FOR: Duration = Duration::from_secs(90);

const WIDGET: &str = "apiVersion: lab.example/v1\nkind: Widget\nmetadata: {name: early, namespace: default}\nspec: {size: 1}\n";
const KIND: &str = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.lab.example}
spec:
  group: lab.example
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";
/// A webhook at [`SILENT`]. Only objects of one namespace ask it.
const WEBHOOK: &str = "apiVersion: v1
kind: Namespace
metadata: {name: asked, labels: {asks: 'yes'}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: silent}
webhooks:
- name: silent.lab.example
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  timeoutSeconds: 10
  namespaceSelector: {matchLabels: {asks: 'yes'}}
  rules: [{apiGroups: [''], apiVersions: [v1], operations: ['*'], resources: [configmaps]}]
  clientConfig: {url: 'https://10.78.0.1:9443/'}
";

/// A program that opens connections and never answers.
const SILENT: &str =
    "import socket, time; server = socket.create_server(('10.78.0.1', 9443)); time.sleep(3600)";

fn config_map(namespace: &str, name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: {namespace}}}\ndata: {{a: b}}\n"
    )
}

/// A cluster with clients' credentials.
struct Site {
    fleet: Fleet,
    credentials: PathBuf,
}

impl Site {
    async fn start(workers: &[usize]) -> Option<Self> {
        let fleet = Fleet::start_kubernetes(CONTROL_PLANE.len() + workers.len()).await?;
        bring_up(&fleet, &CONTROL_PLANE, workers).await;
        let credentials = start_pods(&fleet).await;
        Some(Self { fleet, credentials })
    }

    async fn kubectl(&self, words: &[&str]) -> Option<String> {
        self.fleet.lab().kubectl(&self.credentials, words).await.ok()
    }

    /// Stores user-defined resources.
    async fn set(&self, name: &str, text: &str) {
        self.fleet.service.write(name, text).unwrap();
        self.fleet.madako(&["resource", "set", name]).await.unwrap();
    }

    /// The row of a resource in `madako resource status`.
    async fn resource(&self, key: &str) -> Option<Value> {
        let shown = shown(&self.fleet, "resource status").await?;
        shown["resources"].as_array()?.iter().find(|row| row["key"] == key).cloned()
    }

    /// Waits until a resource is not applied, with this word in the reason.
    async fn waits(&self, key: &str, word: &str) -> String {
        let waits = async || {
            sleep(ROLL_PAUSE).await;
            let row = self.resource(key).await?;
            (row["state"] != "good" && row["why"].to_string().contains(word)).then(|| row["why"].to_string())
        };
        eventually(&format!("{key} waits: {word}"), waits).await
    }

    async fn is_applied(&self, key: &str) {
        let good = async || {
            sleep(ROLL_PAUSE).await;
            self.resource(key).await.filter(|row| row["state"] == "good").map(drop)
        };
        eventually(&format!("{key} is applied"), good).await;
    }

    /// The container of each API server.
    async fn api_servers(&self) -> Vec<String> {
        let mut found = Vec::new();
        for machine in CONTROL_PLANE {
            let words = ["inspect", "--format={{.Id}} {{.State.StartedAt}}", "kube-apiserver"];
            found.push(self.fleet.machine(machine).docker(&words).await.unwrap_or_default());
        }
        found
    }

    /// The machine of etcd's leader.
    async fn etcd_leader(&self) -> usize {
        let leader = async || {
            let text = self.fleet.etcdctl(&["endpoint", "status", "-w", "json"]).await.ok()?;
            let all: Value = serde_json::from_str(&text).ok()?;
            let leads = |it: &&Value| it["Status"]["leader"] == it["Status"]["header"]["member_id"];
            let leader = all.as_array()?.iter().find(leads)?["Endpoint"].as_str()?.to_owned();
            CONTROL_PLANE.into_iter().find(|it| leader.contains(&format!("{}:", self.fleet.address(*it))))
        };
        eventually("etcd has a leader", leader).await
    }

    /// The objects that clients have written.
    async fn written_objects(&self) -> BTreeSet<String> {
        let words = ["get", "configmaps", "--selector=madako-lab/client", "--output=name"];
        let listed = async || self.kubectl(&words).await;
        eventually("the objects are listed", listed).await.lines().map(str::to_owned).collect()
    }

    async fn all_good(&self) {
        let good = async || {
            sleep(ROLL_PAUSE).await;
            self.fleet.madako(&["kubernetes", "status"]).await.ok()
        };
        eventually_within(ROLL, "all components are good", good).await;
    }
}

#[tokio::test]
#[ignore = "minutes: make test-long"]
async fn a_bad_argument_costs_one_api_server_and_a_resource_that_fails_itself_alone() {
    let Some(site) = Site::start(&[]).await else { return };
    let clients = Clients::start(&site.fleet, &CONTROL_PLANE, &site.credentials, "resources", RATE);
    a_resource_waits_for_its_kind(&site).await;
    a_silent_webhook_holds_its_resources_alone(&site).await;
    clients.finish(&site.fleet).await.judge("resources wait for a kind and for a webhook", 0);
    a_bad_argument_costs_one_api_server(&site).await;
    the_leader_of_etcd_is_killed_in_mid_roll(&site).await;
}

async fn a_resource_waits_for_its_kind(site: &Site) {
    let began = Instant::now();
    site.set("widget.yml", WIDGET).await;
    site.set("next.yml", &config_map("default", "next")).await;
    let why = site.waits("Widget/default/early", "").await;
    site.is_applied("ConfigMap/default/next").await;
    site.set("kind.yml", KIND).await;
    site.is_applied("Widget/default/early").await;
    measured(&format!("a resource came before its kind, and is applied: {why}"), began.elapsed());
}

async fn a_silent_webhook_holds_its_resources_alone(site: &Site) {
    let mut silent = site.fleet.lab().command("python3");
    let _silent = silent.args(["-c", SILENT]).stdin(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    site.fleet.service.write("webhook.yml", WEBHOOK).unwrap();
    let file = site.fleet.service.path("webhook.yml").display().to_string();
    site.kubectl(&["create", "-f", &file]).await.unwrap();
    site.set("asked.yml", &config_map("asked", "first")).await;
    let why = site.waits("ConfigMap/asked/first", "silent.lab.example").await;
    site.set("other.yml", &config_map("default", "other")).await;
    site.is_applied("ConfigMap/default/other").await;
    site.kubectl(&["delete", "validatingwebhookconfiguration", "silent"]).await.unwrap();
    site.is_applied("ConfigMap/asked/first").await;
    measured(&format!("a webhook was silent, and its resource is applied after it: {why}"), began.elapsed());
}

/// The roll stands still after one API server, and the corrected argument gets in there first.
async fn a_bad_argument_costs_one_api_server(site: &Site) {
    const BAD: &str = "--no-such-argument";
    let fleet = &site.fleet;
    let clients = Clients::start(fleet, &CONTROL_PLANE, &site.credentials, "bad", RATE);
    let before = site.api_servers().await;
    fleet.set_options(&CONTROL_PLANE, &[], &options_with(BAD)).await;
    let one = async || {
        sleep(ROLL_PAUSE).await;
        (servers_with(fleet, BAD).await == 1).then_some(())
    };
    eventually("an API server has the bad argument", one).await;
    let end = Instant::now() + BAD_FOR;
    while Instant::now() < end {
        sleep(ROLL_PAUSE).await;
        let after = site.api_servers().await;
        let changed = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        assert_eq!(changed, 1, "{before:?} {after:?}");
    }
    eventually("one API server is down, and the others wait", async || {
        sleep(ROLL_PAUSE).await;
        let shown = status(fleet).await?;
        let rows = shown["components"].as_array()?.iter();
        let servers: Vec<&Value> = rows.filter(|row| row["component"] == "kube-apiserver").collect();
        let is_down = |row: &&&Value| row["state"] == "stopped" || row["state"] == "unhealthy";
        let waits = |row: &&&Value| row["state"] == "outdated" && row["why"].to_string().contains("is held");
        let counts = [servers.iter().filter(is_down).count(), servers.iter().filter(waits).count()];
        (counts == [1, 2]).then_some(())
    })
    .await;
    let began = Instant::now();
    fleet.set_options(&CONTROL_PLANE, &[], &options_with("--v=1")).await;
    let corrected = async || {
        sleep(ROLL_PAUSE).await;
        (servers_with(fleet, BAD).await == 0).then_some(())
    };
    eventually("the bad argument is gone", corrected).await;
    measured("the corrected argument is in the API server that did not start", began.elapsed());
    wait_until_rolled(fleet, "--v=1", KUBERNETES_IMAGE).await;
    measured("the corrected argument has rolled", began.elapsed());
    clients.finish(fleet).await.judge("an argument keeps an API server from its start, and is corrected", 2);
}

async fn the_leader_of_etcd_is_killed_in_mid_roll(site: &Site) {
    let fleet = &site.fleet;
    let clients = Clients::start(fleet, &CONTROL_PLANE, &site.credentials, "etcd", RATE);
    let began = Instant::now();
    let mut records = Records::follow(fleet);
    fleet.set_options(&CONTROL_PLANE, &[], &options_with("--v=3")).await;
    records.announced("kube-apiserver-restart", "stop-container").await;
    let leader = site.etcd_leader().await;
    fleet.machine(leader).docker(&["kill", "etcd"]).await.unwrap();
    wait_until_rolled(fleet, "--v=3", KUBERNETES_IMAGE).await;
    measured("an argument has rolled, with etcd's leader killed", began.elapsed());
    clients.finish(fleet).await.judge_fault("etcd's leader is killed in mid-roll");
}

#[tokio::test]
#[ignore = "minutes: make test-long"]
async fn a_full_disk_a_replaced_control_plane_node_and_a_full_stop_lose_no_write() {
    let Some(site) = Site::start(&[WORKER]).await else { return };
    the_disk_of_a_control_plane_node_is_full(&site).await;
    all_machines_stop_and_start(&site).await;
    a_control_plane_node_is_replaced(&site).await;
}

/// The other machines go on, and the node recovers.
async fn the_disk_of_a_control_plane_node_is_full(site: &Site) {
    const FULL: usize = 1;
    let fleet = &site.fleet;
    let clients = Clients::start(fleet, &[0, FULL, 2, WORKER], &site.credentials, "full", RATE);
    fleet.machine(FULL).fill_disk().await.unwrap();
    // etcd and the kubelet write there.
    sleep(Duration::from_secs(60)).await;
    let began = Instant::now();
    site.set("during.yml", &config_map("default", "during")).await;
    site.is_applied("ConfigMap/default/during").await;
    measured("a resource is applied while a disk is full", began.elapsed());
    fleet.machine(FULL).free_disk().await.unwrap();
    let began = Instant::now();
    site.all_good().await;
    fleet.settled(&CONTROL_PLANE).await;
    measured("all is good after the disk is free", began.elapsed());
    clients.finish(fleet).await.judge_fault("the disk of a control plane node is full");
}

async fn all_machines_stop_and_start(site: &Site) {
    let fleet = &site.fleet;
    // The networks of the machines end, and clients with them.
    let written = site.written_objects().await;
    assert!(!written.is_empty());
    for machine in fleet.lab().machines() {
        machine.power_off().await.unwrap();
    }
    let began = Instant::now();
    for machine in fleet.lab().machines() {
        machine.power_on().await.unwrap();
    }
    site.all_good().await;
    fleet.settled(&CONTROL_PLANE).await;
    for machine in fleet.lab().machines() {
        reaches_pods(machine).await;
    }
    measured("all machines stopped, and all is good again", began.elapsed());
    site.kubectl(&["get", "configmap", "during"]).await.unwrap();
    assert!(site.written_objects().await.is_superset(&written), "an acknowledged write is lost");
}

/// The worker becomes a control plane node, and a control plane node leaves the cluster.
async fn a_control_plane_node_is_replaced(site: &Site) {
    const REMOVED: usize = 2;
    const MEMBERS: [usize; 3] = [0, 1, WORKER];
    let fleet = &site.fleet;
    let clients = Clients::start(fleet, &MEMBERS, &site.credentials, "replaced", RATE);
    let began = Instant::now();
    fleet.set_options(&MEMBERS, &[], OPTIONS).await;
    site.all_good().await;
    fleet.settled(&MEMBERS).await;
    let address = fleet.address(REMOVED);
    let gone = async || {
        sleep(ROLL_PAUSE).await;
        let names = ["get", "nodes", "--output=jsonpath={.items[*].metadata.name}"];
        site.kubectl(&names).await.filter(|names| !names.contains(&address)).map(drop)
    };
    eventually("the Node object is gone", gone).await;
    measured("a control plane node is replaced", began.elapsed());
    clients.finish(fleet).await.judge_fault("a control plane node is replaced");
}

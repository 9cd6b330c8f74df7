//! Changes of a running cluster on real machines, under clients that count each failed request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use madako_lab::{Client, ECHO_IMAGE, KUBERNETES_IMAGE, NEXT_KUBERNETES_IMAGE, OPTIONS, Report, Use};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::components::{
    MACHINES, bootstrapped, kubeconfig, runs_all_components, stopped_components_start_again,
};
use crate::fleet::Fleet;
use crate::renewal::ended_certificates_are_renewed;
use crate::{eventually, eventually_within, measured};

/// Requests of each kind and client in a second.
const RATE: u32 = 10;
/// Failed first attempts of one kind of requests that a roll of three API servers may cause.
const MOST_FAILURES: u64 = 3;
/// The API server behind rivers on each machine, and behind the service of Kubernetes.
const SERVERS: [(&str, &str); 2] =
    [("rivers", "https://127.0.0.1:16443"), ("service", "https://10.68.0.1:443")];
/// Address of the service of [`echo`].
const ECHO_ADDRESS: &str = "10.68.77.77";

/// Two pods behind a service, one node apart.
fn echo() -> String {
    format!(
        r#"apiVersion: apps/v1
kind: Deployment
metadata: {{name: echo, namespace: default}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: echo}}}}
  template:
    metadata: {{labels: {{app: echo}}}}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule,
          labelSelector: {{matchLabels: {{app: echo}}}}}}
      containers: [{{name: echo, image: '{ECHO_IMAGE}', imagePullPolicy: Never}}]
---
apiVersion: v1
kind: Service
metadata: {{name: echo, namespace: default}}
spec: {{clusterIP: {ECHO_ADDRESS}, selector: {{app: echo}}, ports: [{{port: 80, targetPort: 8080}}]}}
"#
    )
}

/// A client on each machine for each of [`SERVERS`]. The first of a machine uses the pods and a DNS name, too.
fn start_clients(fleet: &Fleet, credentials: &Path, run: &str) -> Vec<(String, Client)> {
    let mut clients = Vec::new();
    let url = format!("http://{ECHO_ADDRESS}");
    for machine in fleet.lab().machines() {
        let name = format!("echo.default.svc.cluster.local@{}", machine.address());
        for (way, server) in SERVERS {
            let client = format!("{run}-{way}-{}", machine.address().replace('.', "-"));
            let is_first = way == SERVERS[0].0;
            let (pods, names) = ([url.as_str()], [name.as_str()]);
            let uses = Use {
                kubeconfig: credentials,
                server,
                pods: if is_first { &pods } else { &[] },
                names: if is_first { &names } else { &[] },
                rate: RATE,
            };
            let started = Client::start(fleet.lab(), machine, &client, uses).unwrap();
            clients.push((client, started));
        }
    }
    clients
}

async fn finish(fleet: &Fleet, clients: Vec<(String, Client)>) -> BTreeMap<String, Report> {
    let mut reports = BTreeMap::new();
    for (name, client) in clients {
        reports.insert(name, client.finish(fleet.lab()).await.unwrap());
    }
    reports
}

/// No acknowledged write is lost or missed, no request fails twice, and few fail once in each roll of the API servers.
fn judge(what: &str, rolls: u64, reports: &BTreeMap<String, Report>) {
    let (mut wrong, mut longest) = (Vec::new(), 0);
    for (client, report) in reports {
        if !(report.lost.is_empty() && report.missed.is_empty() && report.error.is_none()) {
            wrong.push(format!(
                "{client}: lost {:?}, missed {:?}, {:?}",
                report.lost, report.missed, report.error
            ));
        }
        for (kind, count) in &report.kinds {
            // Each stopped server ends its watches, which go on at another server.
            let most = rolls * if kind == "watch" { 2 * MOST_FAILURES } else { MOST_FAILURES };
            longest = longest.max(count.longest_gap_ms);
            if count.failed > 0 || count.failures > most {
                let told: Vec<_> =
                    report.failures.iter().filter(|failure| failure.kind == *kind).take(5).collect();
                wrong.push(format!("{client}: {kind}: {count:?}: {told:?}"));
            }
        }
    }
    // A busy host stops a client for seconds, so that no limit holds everywhere.
    measured(&format!("longest time without a success of any kind: {what}"), Duration::from_millis(longest));
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

/// The number of API servers with this argument.
async fn servers_with(fleet: &Fleet, argument: &str) -> usize {
    let mut found = 0;
    for machine in MACHINES {
        let inspected =
            fleet.machine(machine).docker(&["inspect", "--format={{.Args}}", "kube-apiserver"]).await;
        found += usize::from(inspected.is_ok_and(|args| args.contains(argument)));
    }
    found
}

/// Time for a roll of all components: each API server completes its requests for up to 70 s.
const ROLL: Duration = Duration::from_secs(600);
/// Pause between two looks at a roll, each of which asks all machines.
const ROLL_PAUSE: Duration = Duration::from_secs(3);

/// Waits until the argument and the image are those of all components, and nothing is due.
async fn wait_until_rolled(fleet: &Fleet, argument: &str, image: &str) {
    let rolled = async || {
        sleep(ROLL_PAUSE).await;
        if servers_with(fleet, argument).await < MACHINES.len() {
            return None;
        }
        let text = fleet.madako(&["kubernetes", "status", "-o", "json"]).await.ok()?;
        let status: Value = serde_json::from_str(&text).ok()?;
        let components = status["components"].as_array()?;
        components.iter().all(|component| component["image"] == image).then_some(())
    };
    eventually_within(ROLL, "all components are as wanted", rolled).await;
    fleet.settled(&MACHINES).await;
}

/// Three nodes with pods behind a service and a name, which each machine reaches.
async fn prepared() -> Option<(Fleet, PathBuf)> {
    let fleet = bootstrapped().await?;
    runs_all_components(&fleet).await;
    let credentials = kubeconfig(&fleet).await;
    fleet.service.write("echo.yml", &echo()).unwrap();
    fleet.madako(&["resource", "set", "echo.yml"]).await.unwrap();
    for (namespace, object) in [
        ("kube-system", "daemonset/node-dns"),
        ("kube-system", "deployment/cluster-dns"),
        ("default", "deployment/echo"),
    ] {
        let wait = ["rollout", "status", object, "--namespace", namespace, "--timeout=20s"];
        eventually(object, async || fleet.lab().kubectl(&credentials, &wait).await.ok()).await;
    }
    let url = format!("http://{ECHO_ADDRESS}");
    let ask = format!("python3 -c 'from urllib import request; request.urlopen(\"{url}\", timeout=2)'");
    for machine in fleet.lab().machines() {
        eventually("the proxy knows the pods", async || machine.sh(&ask).await.ok()).await;
    }
    Some((fleet, credentials))
}

const ARGUMENT: &str = "--v=1";

/// Stores an argument of the API servers. Returns the options of the cluster.
async fn set_argument(fleet: &Fleet) -> String {
    let options = OPTIONS.replacen('{', &format!("{{kube-api: {{extra_args: ['{ARGUMENT}']}}, "), 1);
    fleet.set_options(&MACHINES, &[], &options).await;
    options
}

#[tokio::test]
#[ignore = "minutes: make test-long"]
async fn an_argument_of_api_servers_rolls_without_a_failed_request() {
    let Some((fleet, credentials)) = prepared().await else { return };
    let clients = start_clients(&fleet, &credentials, "argument");
    let began = Instant::now();
    set_argument(&fleet).await;
    wait_until_rolled(&fleet, ARGUMENT, KUBERNETES_IMAGE).await;
    measured("an argument of three API servers has rolled", began.elapsed());
    judge("an argument rolls", 1, &finish(&fleet, clients).await);
}

/// The lines with the names of the encryption keys in the file of a machine's API server.
async fn encryption_keys(fleet: &Fleet, machine: usize) -> Vec<String> {
    let names = "grep -- '- name:' /etc/kubernetes/apiserver/encryption.yml";
    fleet.machine(machine).sh(names).await.unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test]
#[ignore = "minutes: make test-long"]
async fn secrets_get_another_encryption_key_without_a_failed_request() {
    let Some((fleet, credentials)) = prepared().await else { return };
    let create = ["create", "secret", "generic", "rotated", "--from-literal=x=1"];
    fleet.lab().kubectl(&credentials, &create).await.unwrap();
    let before = encryption_keys(&fleet, MACHINES[0]).await;
    assert_eq!(before.len(), 1, "{before:?}");
    let clients = start_clients(&fleet, &credentials, "rotation");
    let began = Instant::now();
    fleet.madako(&["kube", "rotate-encryption-key"]).await.unwrap();
    let read = ["get", "secret", "rotated", "--output=jsonpath={.data.x}"];
    let over = async || {
        sleep(ROLL_PAUSE).await;
        match fleet.lab().kubectl(&credentials, &read).await {
            Ok(found) => assert_eq!(found, "MQ=="),
            // The API server of this kubeconfig restarts. One that lacks a key answers with an internal error.
            Err(error) => assert!(!error.to_string().contains("nternal"), "{error}"),
        }
        // It fails until all components are good and the rotation is over.
        let text = fleet.madako(&["kubernetes", "status", "-o", "json"]).await.ok()?;
        let status: Value = serde_json::from_str(&text).ok()?;
        status["encryption_rotation"].is_null().then_some(())
    };
    eventually_within(3 * ROLL, "the rotation is over", over).await;
    measured("the encryption key of three API servers is rotated", began.elapsed());
    judge("the encryption key is rotated", 3, &finish(&fleet, clients).await);
    for machine in MACHINES {
        let keys = encryption_keys(&fleet, machine).await;
        assert!(keys.len() == 1 && keys != before, "{keys:?}");
    }
    assert_eq!(fleet.lab().kubectl(&credentials, &read).await.unwrap(), "MQ==");
}

#[tokio::test]
async fn three_nodes_keep_their_components_upgrade_without_a_failed_request_and_reboot() {
    let Some((fleet, credentials)) = prepared().await else { return };
    stopped_components_start_again(&fleet).await;
    ended_certificates_are_renewed(&fleet).await;
    fleet.lab().load_next_kubernetes().await.unwrap();
    let clients = start_clients(&fleet, &credentials, "release");
    let began = Instant::now();
    let options = set_argument(&fleet).await;
    fleet.madako(&["images", "set", &format!("kubernetes={NEXT_KUBERNETES_IMAGE}")]).await.unwrap();
    wait_until_rolled(&fleet, ARGUMENT, NEXT_KUBERNETES_IMAGE).await;
    measured("a patch release of all components and an argument have rolled", began.elapsed());
    judge("a patch release rolls", 1, &finish(&fleet, clients).await);
    reboots(&fleet, &credentials, options).await;
}

/// The machine that reboots.
const REBOOTED: usize = 1;

/// Reboots a machine through the queue: the test is the power control, which the commands reach by files.
async fn reboots(fleet: &Fleet, credentials: &Path, options: String) {
    // Drains need a kubeconfig, which the authorities issue only now.
    let config = std::fs::read_to_string(fleet.service.path("config.yml")).unwrap();
    let kubeconfig = format!("kubernetes: {{kubeconfig: {}, ", credentials.display());
    let config = config.replacen("kubernetes: {", &kubeconfig, 1);
    assert!(config.contains("kubeconfig"), "{config}");
    fleet.service.write("config.yml", &config).unwrap();
    fleet.service.kill().await.unwrap();
    fleet.serve().await;
    let [asked, booted] = ["asked", "booted"].map(|name| fleet.service.path(name));
    let [command, check] = [
        format!("echo \"$1\" >{}", asked.display()),
        format!("test -e {} && echo true || echo false", booted.display()),
    ]
    .map(|script| serde_json::json!(["sh", "-c", script, "sh"]));
    let address = fleet.address(REBOOTED);
    fleet.service.write("reboot.txt", &format!("{address}\n")).unwrap();
    let more = format!("reboot: {{reboot_command: {command}, boot_check_command: {check}}}\n");
    fleet.service.set_cluster_with(&MACHINES, &[], &options, &more).await.unwrap();
    let began = Instant::now();
    fleet.madako(&["reboot-queue", "add", "reboot.txt"]).await.unwrap();
    eventually("the leader reboots the machine", async || asked.exists().then_some(())).await;
    assert_eq!(std::fs::read_to_string(&asked).unwrap(), format!("{address}\n"));
    // It is empty: evicted pods run elsewhere.
    let on_node = format!("--field-selector=spec.nodeName={address}");
    let pods =
        ["get", "pods", "--all-namespaces", &on_node, "--output=jsonpath={.items[*].metadata.labels.*}"];
    let pods = fleet.lab().kubectl(credentials, &pods).await.unwrap();
    assert!(!pods.contains("echo") && !pods.contains("cluster-dns"), "{pods}");

    fleet.machine(REBOOTED).power_off().await.unwrap();
    fleet.machine(REBOOTED).power_on().await.unwrap();
    fleet.service.write("booted", "").unwrap();
    let ended = async || {
        let entries = fleet.madako(&["reboot-queue", "list", "-o", "json"]).await.ok()?;
        let entries: Value = serde_json::from_str(&entries).ok()?;
        entries.as_array()?.is_empty().then_some(())
    };
    eventually("the entry has left the queue", ended).await;
    measured("a machine has rebooted through the queue", began.elapsed());
    let usable = async || {
        let node = ["get", "node", &address, "--output=json"];
        let node: Value = serde_json::from_str(&fleet.lab().kubectl(credentials, &node).await.ok()?).ok()?;
        let is_ours = node["metadata"]["annotations"].get("cke.cybozu.com/reboot").is_some();
        (node["spec"].get("unschedulable").is_none() && !is_ours).then_some(())
    };
    eventually("its cordon is taken back", usable).await;
    wait_until_rolled(fleet, ARGUMENT, NEXT_KUBERNETES_IMAGE).await;
    let history = fleet.history().await;
    for name in ["reboot-drain-start", "reboot-reboot", "reboot-dequeue"] {
        let record = history.iter().find(|record| record["operation"] == name);
        assert_eq!(record.map(|record| &record["status"]), Some(&serde_json::json!("completed")), "{name}");
    }
}

//! Changes of a running cluster on real machines, under clients that count each failed request.

use std::path::{Path, PathBuf};
use std::time::Duration;

use madako_lab::{KUBERNETES_IMAGE, NEXT_KUBERNETES_IMAGE, OPTIONS};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::adoption::Authority;
use crate::clients::{Clients, is_of_api, start_pods};
use crate::components::{
    MACHINES, bootstrapped, bring_up, runs_all_components, stopped_components_start_again,
};
use crate::fleet::Fleet;
use crate::power::{add_reboot, is_asked_to_reboot, power_cycle, reboot_commands};
use crate::renewal::{a_certificate_that_ends_soon_is_renewed, ended_certificates_are_renewed};
use crate::{eventually, eventually_within, found_within, measured};

/// The number of API servers with this argument.
pub(crate) async fn servers_with(fleet: &Fleet, argument: &str) -> usize {
    let mut found = 0;
    for machine in MACHINES {
        let inspected =
            fleet.machine(machine).docker(&["inspect", "--format={{.Args}}", "kube-apiserver"]).await;
        found += usize::from(inspected.is_ok_and(|args| args.contains(argument)));
    }
    found
}

/// Time for a roll of all components on a busy host: about three minutes for each API server, with its requests that it completes
/// for up to 70 s, and for each wave of kubelets and of proxies. Where nodes do not answer in time, decisions wait.
pub(crate) const ROLL: Duration = Duration::from_secs(1500);
/// Pause between two looks at a roll, each of which asks all machines.
pub(crate) const ROLL_PAUSE: Duration = Duration::from_secs(3);

/// Waits for the end of a roll. The panic shows the components.
pub(crate) async fn within_a_roll<T>(fleet: &Fleet, what: &str, look: impl AsyncFnMut() -> Option<T>) {
    if found_within(ROLL, look).await.is_none() {
        let (Ok(shown) | Err(shown)) = fleet.madako(&["kube", "status"]).await;
        panic!("within {ROLL:?}: {what}; now:\n{shown}");
    }
}

/// Waits until the argument and the image are those of all components, and nothing is due.
pub(crate) async fn wait_until_rolled(fleet: &Fleet, argument: &str, image: &str) {
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
    within_a_roll(fleet, "all components are as wanted", rolled).await;
    fleet.settled(&MACHINES).await;
}

/// Three nodes with pods behind a service and a name, which each machine reaches.
async fn prepared() -> Option<(Fleet, PathBuf)> {
    let fleet = bootstrapped().await?;
    runs_all_components(&fleet).await;
    let credentials = start_pods(&fleet).await;
    Some((fleet, credentials))
}

const ARGUMENT: &str = "--v=1";

/// Requests of each kind and client in a second. A machine sends 16 to the API, where the measure demands 10; more of them keep the
/// cores of a small host from the roll.
const RATE: u32 = 2;

/// The options of the lab with an argument of the API servers.
pub(crate) fn options_with(argument: &str) -> String {
    OPTIONS.replacen("extra_args: [", &format!("extra_args: ['{argument}', "), 1)
}

/// Stores an argument of the API servers. Returns the options of the cluster.
async fn set_argument(fleet: &Fleet) -> String {
    let options = options_with(ARGUMENT);
    fleet.set_options(&MACHINES, &[], &options).await;
    options
}

#[tokio::test]
#[ignore = "minutes: make test-long"]
async fn stopped_components_start_certificates_are_renewed_and_an_argument_rolls_without_a_failed_request() {
    let Some(fleet) = Fleet::start_kubernetes(MACHINES.len()).await else { return };
    let kubernetes = Authority::new(("kubernetes", "kubernetes CA"));
    kubernetes.set(&fleet).await;
    bring_up(&fleet, &MACHINES, &[]).await;
    let credentials = start_pods(&fleet).await;
    stopped_components_start_again(&fleet).await;
    ended_certificates_are_renewed(&fleet).await;
    let clients = Clients::start(&fleet, &MACHINES, &credentials, "renewal", RATE);
    a_certificate_that_ends_soon_is_renewed(&fleet, &kubernetes).await;
    clients.finish(&fleet).await.judge("a certificate of an API server is renewed", 0);
    let clients = Clients::start(&fleet, &MACHINES, &credentials, "argument", RATE);
    let began = Instant::now();
    set_argument(&fleet).await;
    wait_until_rolled(&fleet, ARGUMENT, KUBERNETES_IMAGE).await;
    measured("an argument of three API servers has rolled", began.elapsed());
    clients.finish(&fleet).await.judge("an argument rolls", 1);
}

/// Requests of each kind and client in a second: they last for a quarter of an hour.
const ROTATION_RATE: u32 = 3;

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
    let clients = Clients::start(&fleet, &MACHINES, &credentials, "rotation", ROTATION_RATE);
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
    for machine in MACHINES {
        let keys = encryption_keys(&fleet, machine).await;
        assert!(keys.len() == 1 && keys != before, "{keys:?}");
    }
    assert_eq!(fleet.lab().kubectl(&credentials, &read).await.unwrap(), "MQ==");
    clients.finish(&fleet).await.judge("the encryption key is rotated", 3);
}

#[tokio::test]
async fn three_nodes_upgrade_without_a_failed_request_and_reboot() {
    let Some((fleet, credentials)) = prepared().await else { return };
    fleet.lab().load_next_kubernetes().await.unwrap();
    let clients = Clients::start(&fleet, &MACHINES, &credentials, "release", RATE);
    let began = Instant::now();
    let options = set_argument(&fleet).await;
    fleet.madako(&["images", "set", &format!("kubernetes={NEXT_KUBERNETES_IMAGE}")]).await.unwrap();
    wait_until_rolled(&fleet, ARGUMENT, NEXT_KUBERNETES_IMAGE).await;
    measured("a patch release of all components and an argument have rolled", began.elapsed());
    clients.finish(&fleet).await.judge("a patch release rolls", 1);
    reboots(&fleet, &credentials, options).await;
}

/// The machine that reboots, and the machines of the clients meanwhile.
const REBOOTED: usize = 1;
const OTHERS: [usize; 2] = [0, 2];

/// Reboots a machine through the queue, by a kubeconfig.
async fn reboots(fleet: &Fleet, credentials: &Path, options: String) {
    let config = std::fs::read_to_string(fleet.service.path("config.yml")).unwrap();
    let kubeconfig = format!("kubernetes: {{kubeconfig: {}, ", credentials.display());
    let config = config.replacen("kubernetes: {", &kubeconfig, 1);
    assert!(config.contains("kubeconfig"), "{config}");
    fleet.service.write("config.yml", &config).unwrap();
    fleet.service.kill().await.unwrap();
    fleet.serve().await;
    fleet.service.set_cluster_with(&MACHINES, &[], &options, &reboot_commands(fleet)).await.unwrap();
    let clients = Clients::start(fleet, &OTHERS, credentials, "reboot", RATE);
    let began = Instant::now();
    add_reboot(fleet, REBOOTED).await;
    is_asked_to_reboot(fleet, REBOOTED).await;
    // It is empty: evicted pods run elsewhere.
    let address = fleet.address(REBOOTED);
    let on_node = format!("--field-selector=spec.nodeName={address}");
    let pods =
        ["get", "pods", "--all-namespaces", &on_node, "--output=jsonpath={.items[*].metadata.labels.*}"];
    let pods = fleet.lab().kubectl(credentials, &pods).await.unwrap();
    assert!(!pods.contains("echo") && !pods.contains("cluster-dns"), "{pods}");
    power_cycle(fleet, REBOOTED).await;
    measured("a machine has rebooted through the queue", began.elapsed());
    let usable = async || {
        let node = ["get", "node", &address, "--output=json"];
        let node: Value = serde_json::from_str(&fleet.lab().kubectl(credentials, &node).await.ok()?).ok()?;
        let is_ours = node["metadata"]["annotations"].get("cke.cybozu.com/reboot").is_some();
        (node["spec"].get("unschedulable").is_none() && !is_ours).then_some(())
    };
    eventually("its cordon is taken back", usable).await;
    wait_until_rolled(fleet, ARGUMENT, NEXT_KUBERNETES_IMAGE).await;
    // Some writes of each client wait for the member of etcd that ends with the node.
    clients.finish(fleet).await.judge_kinds("a control plane node reboots", 1, is_of_api);
    let history = fleet.history().await;
    for name in ["reboot-drain-start", "reboot-prepare", "reboot-reboot", "reboot-dequeue"] {
        let record = history.iter().find(|record| record["operation"] == name);
        assert_eq!(record.map(|record| &record["status"]), Some(&serde_json::json!("completed")), "{name}");
    }
}

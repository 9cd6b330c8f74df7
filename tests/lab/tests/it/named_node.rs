//! A node whose name is not its address, with boot taints and the CNI file of the cluster: it joins, and reboots.

use madako_lab::{LOGIN, OPTIONS};
use serde_json::Value;

use crate::clients::start_pods;
use crate::components::kubeconfig;
use crate::eventually;
use crate::fleet::Fleet;
use crate::power::{add_reboot, power_cycle, reboot_commands};

/// The only control plane node, and a worker.
const MACHINES: [usize; 2] = [0, 1];
/// Name of the worker.
const NAME: &str = "worker-one";
/// Name and subnet of the CNI file. All machines have the same subnet: pods leave a machine with its address.
const CNI_FILE: &str = "00-cluster.conflist";
const PODS: &str = "10.79.77.";
const BOOT_TAINT: &str = "lab.example.com/boot";

fn cluster(fleet: &Fleet) -> String {
    let plugin = format!(
        r#"{{"type": "ptp", "ipMasq": true, "ipam": {{"type": "host-local", "routes": [{{"dst": "0.0.0.0/0"}}], "ranges": [[{{"subnet": "{PODS}0/24"}}]]}}}}"#
    );
    let file = format!(r#"{{"cniVersion": "0.4.0", "name": "cluster", "plugins": [{plugin}]}}"#);
    let kubelet = format!(
        "kubelet: {{cni_conf_file: {{name: {CNI_FILE}, content: '{file}'}}, \
         boot_taints: [{{key: {BOOT_TAINT}, effect: NoSchedule}}], "
    );
    let options = OPTIONS.replacen("kubelet: {", &kubelet, 1);
    let [control_plane, worker] = MACHINES.map(|machine| fleet.address(machine));
    let reboot = reboot_commands(fleet);
    format!(
        "name: lab\nservice_subnet: 10.68.0.0/16\noptions: {options}\n{reboot}nodes:\n\
         - {{address: {control_plane}, user: {LOGIN}, control_plane: true}}\n\
         - {{address: {worker}, hostname: {NAME}, user: {LOGIN}, control_plane: false}}\n"
    )
}

/// The Node object of the worker, once it is Ready and can take pods apart from its boot taint.
async fn ready_worker(fleet: &Fleet) -> Value {
    let credentials = kubeconfig(fleet).await;
    let ready = async || {
        let text = fleet.lab().kubectl(&credentials, &["get", "node", NAME, "--output=json"]).await.ok()?;
        let node: Value = serde_json::from_str(&text).ok()?;
        let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        let conditions = node["status"]["conditions"].as_array()?;
        (conditions.iter().any(is_ready) && node["spec"]["unschedulable"].is_null()).then_some(node)
    };
    eventually("the worker is Ready", ready).await
}

fn has_boot_taint(node: &Value) -> bool {
    node["spec"]["taints"]
        .as_array()
        .is_some_and(|taints| taints.iter().any(|taint| taint["key"] == BOOT_TAINT))
}

/// Each machine has the CNI file of the cluster alone, and pods have addresses of it.
async fn pods_use_the_file(fleet: &Fleet) {
    for machine in MACHINES {
        let files = fleet.machine(machine).sh("ls /etc/cni/net.d").await.unwrap();
        assert_eq!(files.trim(), CNI_FILE, "{machine}");
        let routes = fleet.machine(machine).sh("ip route").await.unwrap();
        assert!(routes.contains(PODS), "{routes}");
    }
}

#[tokio::test]
#[ignore = "minutes: make test-long"]
async fn a_node_with_a_name_joins_behind_its_boot_taint_and_reboots() {
    let Some(fleet) = Fleet::start_kubernetes(MACHINES.len()).await else { return };
    fleet.madako(&["constraints", "set", "control-plane-count", "1"]).await.unwrap();
    fleet.madako(&["constraints", "set", "minimum-workers", "0"]).await.unwrap();
    fleet.service.write("cluster.yml", &cluster(&fleet)).unwrap();
    fleet.madako(&["cluster", "set", "cluster.yml"]).await.unwrap();
    assert!(has_boot_taint(&ready_worker(&fleet).await));
    fleet.settled(&MACHINES[..1]).await;
    let credentials = kubeconfig(&fleet).await;
    let untaint = async |nodes: &str| {
        let taint = format!("{BOOT_TAINT}-");
        fleet.lab().kubectl(&credentials, &["taint", "nodes", nodes, &taint]).await.unwrap();
    };
    untaint("--all").await;
    start_pods(&fleet).await;
    pods_use_the_file(&fleet).await;

    add_reboot(&fleet, MACHINES[1]).await;
    power_cycle(&fleet, MACHINES[1]).await;
    fleet.settled(&MACHINES[..1]).await;
    assert!(has_boot_taint(&ready_worker(&fleet).await), "the kubelet booted without its taint");
    untaint(NAME).await;
    start_pods(&fleet).await;
    pods_use_the_file(&fleet).await;
    eventually("all components are good", async || fleet.madako(&["kube", "status"]).await.ok()).await;
}

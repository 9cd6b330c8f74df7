//! The lab's machines run the components of Kubernetes in docker, as CKE runs them.

use std::fs;
use std::path::{Path, PathBuf};

use madako_lab::{
    Client, ECHO_IMAGE, ETCD_IMAGE, KUBERNETES_IMAGE, Lab, Machine, NEXT_KUBERNETES_IMAGE, TOOLS_IMAGE, Use,
};
use rcgen::KeyPair;

use crate::{eventually, measured};
use tokio::time::Instant;

const SERVER: &str = "https://10.78.0.11:6443";
/// Binds of the kubelet, as CKE orders them.
const KUBELET_BINDS: [&str; 14] = [
    "/etc/machine-id:/etc/machine-id:ro",
    "/etc/os-release:/etc/os-release:ro",
    "/etc/kubernetes:/etc/kubernetes:ro,z",
    "/var/lib/kubelet:/var/lib/kubelet:rw,rshared,z",
    "/var/lib/docker:/var/lib/docker:rw,Z",
    "/opt/volume/bin:/opt/volume/bin:rw,shared,z",
    "/var/log/pods:/var/log/pods:rw,z",
    "/var/log/containers:/var/log/containers:rw,z",
    "/run:/run:rw",
    "/sys:/sys:rw",
    "/dev:/dev:rw",
    "/opt/cni/bin:/opt/cni/bin:ro,z",
    "/etc/cni/net.d:/etc/cni/net.d:ro,z",
    "/var/lib/cni:/var/lib/cni:rw,z",
];
/// The shared part of [`madako_lab::OPTIONS`], without certificates: the kubelet signs its own.
const KUBELET_CONFIG: &str = r#"{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
    "volumePluginDir": "/opt/volume/bin", "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
    "authorization": {"mode": "AlwaysAllow"}, "cgroupDriver": "cgroupfs", "cgroupsPerQOS": false,
    "enforceNodeAllocatable": [], "failSwapOn": false, "failCgroupV1": false, "localStorageCapacityIsolation": false,
    "resolvConf": ""}"#;

async fn run(machine: &Machine, name: &str, options: &[&str], image: &str, words: &[&str]) {
    let name = format!("--name={name}");
    let common =
        ["run", "--log-driver=json-file", "-d", &name, "--read-only", "--network=host", "--uts=host"];
    machine.docker(&[&common, options, &[image], words].concat()).await.unwrap();
}

async fn start_control_plane(machine: &Machine) {
    let key = KeyPair::generate().unwrap();
    machine.write("/etc/kubernetes/sa.key", &key.serialize_pem()).await.unwrap();
    machine.write("/etc/kubernetes/sa.pub", &key.public_key_pem()).await.unwrap();
    let node = format!("system:node:{}", machine.address());
    let tokens = format!("operator,operator,1,system:masters\nkubelet,{node},2,system:nodes\n");
    machine.write("/etc/kubernetes/tokens.csv", &tokens).await.unwrap();
    let volume = ["--mount", "type=volume,src=etcd,dst=/var/lib/etcd"];
    run(machine, "etcd", &volume, ETCD_IMAGE, &[]).await;
    let options =
        ["--mount", "type=tmpfs,dst=/run/kubernetes", "--volume=/etc/kubernetes:/etc/kubernetes:ro,z"];
    let words = [
        "kube-apiserver",
        "--allow-privileged",
        "--etcd-servers=http://127.0.0.1:2379",
        "--cert-dir=/run/kubernetes",
        "--token-auth-file=/etc/kubernetes/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.68.0.0/16",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-account-key-file=/etc/kubernetes/sa.pub",
        "--service-account-signing-key-file=/etc/kubernetes/sa.key",
    ];
    run(machine, "kube-apiserver", &options, KUBERNETES_IMAGE, &words).await;
}

async fn start_kubelet(machine: &Machine) {
    machine.write("/etc/kubernetes/kubelet/config.yml", KUBELET_CONFIG).await.unwrap();
    machine.write("/etc/kubernetes/kubelet/kubeconfig", &kubeconfig("kubelet")).await.unwrap();
    let directories =
        "/mnt/opt/cni/bin /mnt/opt/volume/bin /mnt/var/lib/cni /mnt/var/log/pods /mnt/var/log/containers";
    let make = ["run", "--rm", "--network=none", "--volume=/:/mnt", TOOLS_IMAGE, "make_directories"];
    machine.docker(&make.into_iter().chain(directories.split(' ')).collect::<Vec<_>>()).await.unwrap();
    let install =
        ["run", "--rm", "--network=none", "--volume=/opt/cni/bin:/host/bin", TOOLS_IMAGE, "install-cni"];
    machine.docker(&install).await.unwrap();
    let binds = KUBELET_BINDS.map(|bind| format!("--volume={bind}"));
    let options: Vec<&str> = ["--pid=host", "--privileged", "--tmpfs=/tmp"]
        .into_iter()
        .chain(binds.iter().map(String::as_str))
        .collect();
    let name = format!("--hostname-override={}", machine.address());
    let words = [
        "kubelet",
        "--config=/etc/kubernetes/kubelet/config.yml",
        "--kubeconfig=/etc/kubernetes/kubelet/kubeconfig",
        &name,
        "--container-runtime-endpoint=/run/containerd/containerd.sock",
    ];
    run(machine, "kubelet", &options, KUBERNETES_IMAGE, &words).await;
}

fn kubeconfig(token: &str) -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "contexts": [{{"name": "lab", "context": {{"cluster": "lab", "user": "lab"}}}}],
            "clusters": [{{"name": "lab", "cluster": {{"server": "{SERVER}", "insecure-skip-tls-verify": true}}}}],
            "users": [{{"name": "lab", "user": {{"token": "{token}"}}}}]}}"#
    )
}

/// Writes files for kubectl: a kubeconfig and a pod.
fn write_files(lab: &Lab, node: &Machine) -> [PathBuf; 2] {
    let [credentials, pod] = ["operator.json", "pod.json"].map(|name| lab.directory().join(name));
    fs::write(&credentials, kubeconfig("operator")).unwrap();
    // Neither the scheduler nor the controller of service accounts runs. The volume needs a mount by the kubelet.
    let text = format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "echo"}}, "spec": {{"nodeName": "{}",
            "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
            "containers": [{{"name": "echo", "image": "{ECHO_IMAGE}", "volumeMounts": [{{"name": "memory", "mountPath": "/memory"}}]}}],
            "volumes": [{{"name": "memory", "emptyDir": {{"medium": "Memory"}}}}]}}}}"#,
        node.address()
    );
    fs::write(&pod, text).unwrap();
    [credentials, pod]
}

async fn field(lab: &Lab, credentials: &Path, object: &[&str], path: &str) -> String {
    let output = format!("--output=jsonpath={path}");
    lab.kubectl(credentials, &[&["get"], object, &[&output]].concat()).await.unwrap_or_default()
}

/// The cgroups on the top of the host's hierarchies, without those of labs.
fn cgroups() -> Vec<PathBuf> {
    let below = |directory: PathBuf| fs::read_dir(directory).into_iter().flatten().flatten();
    let tops = below(PathBuf::from("/sys/fs/cgroup")).flat_map(|top| below(top.path()));
    let mut found: Vec<PathBuf> = tops
        .map(|entry| entry.path())
        .filter(|path| path.is_dir() && !path.to_string_lossy().contains("/madako-lab-"))
        .collect();
    found.sort();
    found
}

#[tokio::test]
async fn a_kubelet_in_docker_is_ready_and_runs_a_pod_and_a_client_counts_failures() {
    let before = cgroups();
    let start = Instant::now();
    let Some(lab) = Lab::for_kubernetes(1).await else { return };
    measured("a machine with the images of Kubernetes", start.elapsed());
    let machine = lab.machine(0);
    let start = Instant::now();
    start_control_plane(machine).await;
    let [credentials, pod] = write_files(&lab, machine);
    let ready = async || lab.kubectl(&credentials, &["get", "--raw=/readyz"]).await.ok();
    eventually("the API server is ready", ready).await;
    start_kubelet(machine).await;
    let path = r#"{.items[0].status.conditions[?(@.type=="Ready")].status}"#;
    let ready = async || (field(&lab, &credentials, &["nodes"], path).await == "True").then_some(());
    eventually("the node is Ready", ready).await;
    measured("from nothing to a Ready node", start.elapsed());
    let version = field(&lab, &credentials, &["nodes"], "{.items[0].status.nodeInfo.kubeletVersion}").await;
    assert_eq!(format!("madako-lab/kubernetes:{}", &version[1..]), KUBERNETES_IMAGE);

    lab.kubectl(&credentials, &["create", "serviceaccount", "default"]).await.unwrap();
    lab.kubectl(&credentials, &["create", "-f", &pod.to_string_lossy()]).await.unwrap();
    let address = eventually("the pod has an address", async || {
        Some(field(&lab, &credentials, &["pod/echo"], "{.status.podIP}").await)
            .filter(|address| !address.is_empty())
    });
    let url = format!("http://{}:8080", address.await);
    let running = async || {
        (field(&lab, &credentials, &["pod/echo"], "{.status.phase}").await == "Running").then_some(())
    };
    eventually("the pod runs", running).await;
    // By exec the API server reaches the kubelet, and the kubelet the pod.
    let mounted = lab.kubectl(&credentials, &["exec", "echo", "--", "echo", "-mounts"]).await.unwrap();
    assert!(mounted.contains(" /memory tmpfs "), "{mounted}");

    let uses = Use {
        kubeconfig: &credentials,
        server: "https://127.0.0.1:6443",
        pods: &[&url],
        names: &[],
        rate: 20,
    };
    let client = Client::start(&lab, machine, "quiet", uses).unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let report = client.finish(&lab).await.unwrap();
    assert!(report.failures.is_empty() && report.lost.is_empty() && report.missed.is_empty(), "{report:?}");
    assert_eq!(report.kinds.len(), 5, "{report:?}");
    assert!(report.kinds.values().all(|count| count.successes > 5), "{report:?}");

    let client = Client::start(&lab, machine, "broken", uses).unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    machine.docker(&["kill", "kube-apiserver"]).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    machine.docker(&["start", "kube-apiserver"]).await.unwrap();
    eventually("the API server is ready again", async || {
        lab.kubectl(&credentials, &["get", "--raw=/readyz"]).await.ok()
    })
    .await;
    let report = client.finish(&lab).await.unwrap();
    for kind in ["read", "read on a new connection", "write"] {
        let count = report.kinds[kind];
        assert!(count.failures > 0 && count.failed > 0 && count.longest_gap_ms > 900, "{kind}: {report:?}");
    }
    assert!(report.kinds["watch"].failures > 0, "{report:?}");
    assert_eq!(report.kinds[&format!("pod {url}")].failures, 0, "{report:?}");
    assert!(report.lost.is_empty() && report.missed.is_empty(), "{report:?}");

    lab.load_next_kubernetes().await.unwrap();
    let print = ["run", "--rm", "--network=none", NEXT_KUBERNETES_IMAGE, "kube-proxy", "--version"];
    let next = machine.docker(&print).await.unwrap();
    assert_eq!(
        next.trim_end(),
        format!("Kubernetes v{}", &NEXT_KUBERNETES_IMAGE["madako-lab/kubernetes:".len()..])
    );

    // Pods, containers and their cgroups end with the lab.
    drop(lab);
    assert_eq!(cgroups(), before);
}

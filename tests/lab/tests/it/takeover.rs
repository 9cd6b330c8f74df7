//! Test that the service takes over a Kubernetes of CKE with two reboots under way, without the restart of a container.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use madako_lab::{ECHO_IMAGE, LOGIN, Store, TOOLS_IMAGE};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::adoption::{Adopted, OWN, ROUNDS, rounds};
use crate::fleet::Fleet;
use crate::kubernetes_contract::{
    DNS_ADDRESS, Part, configurations, encryption, kubeconfig, objects, options, user_resource,
};
use crate::renewal::API_SERVER_NAMES;
use crate::{contract, eventually, measured};

const PKI: &str = "/etc/kubernetes/pki";
/// The control plane node; the other machines are workers.
const SERVER: usize = 0;
/// The node that boots, and the node that drains.
const BOOTING: usize = 1;
const DRAINING: usize = 2;
/// Keys of the records and of both reboots.
const OF_REBOOTS: [&str; 4] = [
    "/cke/records",
    "/cke/reboots/data/0000000000000000",
    "/cke/reboots/data/0000000000000001",
    "/cke/reboots/running",
];
const USER_KEY: &str = "/cke/resource/ConfigMap/default/kept";

/// Three machines with all components, as CKE leaves them in the middle of two reboots.
struct Takeover {
    adopted: Adopted,
    credentials: PathBuf,
    cluster: Value,
}

impl Takeover {
    async fn build() -> Option<Self> {
        let adopted = Adopted::with_etcd(Fleet::prepare_kubernetes(3, Store::Etcd).await?, 1).await;
        let fleet = &adopted.fleet;
        let workers = [fleet.address(BOOTING), fleet.address(DRAINING)];
        let mut cluster = contract::cluster(LOGIN, &adopted.control_plane, &workers);
        for (name, value) in options().as_object().into_iter().flatten() {
            cluster["options"][name] = value.clone();
        }
        let file = |name: &str| fleet.service.path(name).display().to_string();
        let [asked, booted] = [file("asked"), file("booted")];
        cluster["reboot"] = json!({
            "max_concurrent_reboots": 2,
            "reboot_command": ["sh", "-c", format!("touch {asked}-$1"), "sh"],
            "boot_check_command": ["sh", "-c", format!("test -e {booted}-$1 && echo true || echo false"), "sh"],
        });
        adopted.fill_store(&cluster).await;
        let credentials = write_admin(&adopted);
        let takeover = Self { adopted, credentials, cluster };
        takeover.start_components().await;
        takeover.make_objects().await;
        takeover.begin_reboots().await;
        Some(takeover)
    }

    fn fleet(&self) -> &Fleet {
        &self.adopted.fleet
    }

    async fn start_components(&self) {
        let server = self.fleet().address(SERVER);
        self.write_server_files(&server).await;
        self.wait_for_rivers(SERVER, 12379).await;
        self.run(SERVER, Part::ApiServer).await;
        let ready = async || self.kubectl(&["get", "--raw=/readyz"]).await.ok();
        eventually("the API server is ready", ready).await;
        self.wait_for_rivers(SERVER, 16443).await;
        for part in [Part::ControllerManager, Part::Scheduler] {
            self.run(SERVER, part).await;
        }
        for machine in [SERVER, BOOTING, DRAINING] {
            self.write_node_files(machine).await;
            self.run(machine, Part::Kubelet).await;
            self.run(machine, Part::Proxy).await;
        }
        let is_ready = r#"{range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {end}"#;
        let nodes = ["get", "nodes", &format!("--output=jsonpath={is_ready}")];
        let ready = async || self.kubectl(&nodes).await.ok().filter(|found| found.trim() == "True True True");
        eventually("three nodes are Ready", ready).await;
    }

    /// Rivers take a server back at their next check, and a component that reaches none ends.
    async fn wait_for_rivers(&self, machine: usize, port: u16) {
        let connect = format!(
            "python3 -c 'import socket, ssl; \
             ssl._create_unverified_context().wrap_socket(socket.create_connection((\"127.0.0.1\", {port}), 2))'"
        );
        let machine = self.fleet().machine(machine);
        eventually("rivers reach a server", async || machine.sh(&connect).await.ok()).await;
    }

    async fn run(&self, machine: usize, part: Part) {
        let words = part.docker_run(&self.fleet().address(machine));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.fleet().machine(machine).docker(&words).await.unwrap();
    }

    async fn write(&self, machine: usize, path: &str, text: &str) {
        self.fleet().machine(machine).write(path, text).await.unwrap();
    }

    async fn write_pair(&self, machine: usize, name: &str, (certificate, key): &(String, String)) {
        self.write(machine, &format!("{PKI}/{name}.crt"), certificate).await;
        self.write(machine, &format!("{PKI}/{name}.key"), key).await;
    }

    /// A kubeconfig of a component with certificates of its own.
    async fn write_client(&self, machine: usize, directory: &str, user: &str, group: &str) {
        let pair = self.adopted.authority("kubernetes").issue_for_group(user, group, None, &[]);
        self.write_pair(machine, directory, &pair).await;
        let files = ["ca.crt", &format!("{directory}.crt"), &format!("{directory}.key")]
            .map(|file| format!("{PKI}/{file}"));
        let text = kubeconfig(user, "https://localhost:16443", files.each_ref().map(|file| file.as_str()));
        self.write(machine, &format!("/etc/kubernetes/{directory}/kubeconfig"), &text).await;
    }

    async fn write_server_files(&self, address: &str) {
        let kubernetes = self.adopted.authority("kubernetes");
        let account = kubernetes.issue("service-account", None, &[]);
        for (name, pair) in [
            ("apiserver", &kubernetes.issue("kubernetes", Some(address), &API_SERVER_NAMES)),
            (
                "apiserver-etcd-client",
                &self.adopted.authority("etcd-client").issue("kube-apiserver", None, &[]),
            ),
            (
                "aggregation",
                &self.adopted.authority("kubernetes-aggregation").issue("front-proxy-client", None, &[]),
            ),
            ("service-account", &account),
        ] {
            self.write_pair(SERVER, name, pair).await;
        }
        for (key, text) in [("certificate", &account.0), ("key", &account.1)] {
            let key = format!("/cke/service-account/{key}");
            self.fleet().store(&["put", "--", &key, text]).await.unwrap();
        }
        for (file, authority) in
            [("ca", "kubernetes"), ("etcd-ca", "server"), ("aggregation-ca", "kubernetes-aggregation")]
        {
            let text = &self.adopted.authority(authority).certificate;
            self.write(SERVER, &format!("{PKI}/{file}.crt"), text).await;
        }
        self.write(SERVER, "/etc/kubernetes/apiserver/encryption.yml", &encryption().to_string()).await;
        let user = "system:kube-controller-manager";
        self.write_client(SERVER, "controller-manager", user, user).await;
        let user = "system:kube-scheduler";
        self.write_client(SERVER, "scheduler", user, user).await;
        let [.., (_, scheduler)] = configurations(address);
        self.write(SERVER, "/etc/kubernetes/scheduler/config.yml", &scheduler.to_string()).await;
    }

    async fn write_node_files(&self, machine: usize) {
        let address = self.fleet().address(machine);
        let kubernetes = self.adopted.authority("kubernetes");
        self.write(machine, &format!("{PKI}/ca.crt"), &kubernetes.certificate).await;
        let user = format!("system:node:{address}");
        let pair = kubernetes.issue_for_group(&user, "system:nodes", Some(&address), &["localhost"]);
        self.write_pair(machine, "kubelet", &pair).await;
        let files = ["ca.crt", "kubelet.crt", "kubelet.key"].map(|file| format!("{PKI}/{file}"));
        let text = kubeconfig(&user, "https://localhost:16443", files.each_ref().map(|file| file.as_str()));
        self.write(machine, "/etc/kubernetes/kubelet/kubeconfig", &text).await;
        self.write_client(machine, "proxy", "system:kube-proxy", "system:node-proxier").await;
        for (directory, configuration) in configurations(&address).into_iter().take(2) {
            let path = format!("/etc/kubernetes/{directory}/config.yml");
            self.write(machine, &path, &configuration.to_string()).await;
        }
        let machine = self.fleet().machine(machine);
        let make = "run --rm --network=none --volume=/:/mnt TOOLS make_directories /mnt/opt/cni/bin \
                    /mnt/opt/volume/bin /mnt/var/lib/cni /mnt/var/log/pods /mnt/var/log/containers";
        let install = "run --rm --network=none --volume=/opt/cni/bin:/host/bin TOOLS install-cni";
        for line in [make, install] {
            let words: Vec<&str> = line
                .split_whitespace()
                .map(|word| if word == "TOOLS" { TOOLS_IMAGE } else { word })
                .collect();
            machine.docker(&words).await.unwrap();
        }
    }

    async fn kubectl(&self, words: &[&str]) -> Result<String, String> {
        let answer = self.fleet().lab().kubectl(&self.credentials, words).await;
        answer.map_err(|error| error.to_string())
    }

    /// Applies objects as CKE does, so that their fields have the same manager.
    async fn apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.fleet().service.write("objects.json", &list.to_string()).unwrap();
        let file = self.fleet().service.path("objects.json").display().to_string();
        let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=cke", "-f", &file];
        self.kubectl(&apply).await.unwrap();
    }

    async fn make_objects(&self) {
        let account = ["get", "serviceaccount", "default", "--namespace=kube-system"];
        eventually("the controller manager works", async || self.kubectl(&account).await.ok()).await;
        self.fleet().store(&["put", USER_KEY, &user_resource().to_string()]).await.unwrap();
        let stored = self.fleet().store(&["get", USER_KEY, "--write-out=json"]).await.unwrap();
        let stored: Value = serde_json::from_str(&stored).unwrap();
        let revision = stored["kvs"][0]["mod_revision"].as_u64().unwrap();
        let server = self.fleet().address(SERVER);
        self.apply(&objects(&server, revision)).await;
        self.kubectl(&["label", "node", &server, "cke.cybozu.com/master=true"]).await.unwrap();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "guest", "namespace": "default"}, "spec": {
                "nodeName": self.fleet().address(DRAINING), "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "guest", "image": ECHO_IMAGE, "imagePullPolicy": "Never"}],
            },
        });
        let made = async || {
            self.fleet().service.write("pod.json", &pod.to_string()).unwrap();
            let file = self.fleet().service.path("pod.json").display().to_string();
            self.kubectl(&["create", "-f", &file]).await.ok()
        };
        eventually("a pod is made", made).await;
        let phase = ["get", "pod", "guest", "--output=jsonpath={.status.phase}"];
        let runs = async || self.kubectl(&phase).await.ok().filter(|phase| phase == "Running");
        eventually("the pod runs", runs).await;
    }

    async fn begin_reboots(&self) {
        for (index, machine, status) in [(0, BOOTING, "rebooting"), (1, DRAINING, "draining")] {
            let node = self.fleet().address(machine);
            self.kubectl(&["cordon", &node]).await.unwrap();
            self.kubectl(&["annotate", "node", &node, "cke.cybozu.com/reboot=true"]).await.unwrap();
            let now = self.fleet().program("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]).await.unwrap();
            let entry = json!({
                "index": index.to_string(), "node": node, "status": status, "last_transition_time": now.trim(),
                "drain_backoff_expire": "0001-01-01T00:00:00Z",
            });
            let key = format!("/cke/reboots/data/{index:016x}");
            self.fleet().store(&["put", &key, &entry.to_string()]).await.unwrap();
        }
        self.fleet().store(&["put", "/cke/reboots/write-index", "2"]).await.unwrap();
        self.fleet().store(&["put", "/cke/reboots/running", "true"]).await.unwrap();
    }

    /// Every object that CKE keeps, by kind and name, with its resource version. Of workloads the controllers change the
    /// status, so that their generation counts; of nodes what CKE keeps.
    async fn objects(&self) -> BTreeMap<String, Value> {
        let kinds = "namespaces,serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings,secrets,configmaps,\
                     services,poddisruptionbudgets,deployments,daemonsets,endpoints,endpointslices,nodes,\
                     mutatingwebhookconfigurations,validatingwebhookconfigurations";
        let text = self.kubectl(&["get", kinds, "--all-namespaces", "--output=json"]).await.unwrap();
        let list: Value = serde_json::from_str(&text).unwrap();
        let facts = |object: &Value| {
            let (kind, metadata) = (&object["kind"], &object["metadata"]);
            match kind.as_str().unwrap() {
                "Node" => json!([
                    metadata["labels"],
                    object["spec"]["taints"],
                    object["spec"]["unschedulable"],
                    metadata["annotations"]["cke.cybozu.com/reboot"],
                ]),
                "Deployment" | "DaemonSet" | "PodDisruptionBudget" => metadata["generation"].clone(),
                _ => metadata["resourceVersion"].clone(),
            }
        };
        let name = |object: &Value| {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            format!("{} {} {}", object["kind"].as_str().unwrap(), text("namespace"), text("name"))
        };
        list["items"].as_array().unwrap().iter().map(|object| (name(object), facts(object))).collect()
    }

    /// The queue's entries.
    async fn entries(&self) -> Option<Vec<Value>> {
        let text = self.fleet().madako(&["reboot-queue", "list", "-o", "json"]).await.ok()?;
        serde_json::from_str::<Value>(&text).ok()?.as_array().cloned()
    }
}

/// The kubeconfig of an administrator.
fn write_admin(adopted: &Adopted) -> PathBuf {
    let service = &adopted.fleet.service;
    let kubernetes = adopted.authority("kubernetes");
    let (certificate, key) = kubernetes.issue_for_group("admin", "system:masters", None, &[]);
    let files = [("ca.pem", &kubernetes.certificate), ("admin.crt", &certificate), ("admin.key", &key)];
    for (name, text) in files {
        service.write(name, text).unwrap();
    }
    let paths = files.map(|(name, _)| service.path(name).display().to_string());
    let server = format!("https://{}:6443", adopted.control_plane[0]);
    let text = kubeconfig("admin", &server, paths.each_ref().map(|path| path.as_str()));
    service.write("admin", &text).unwrap();
    service.path("admin")
}

/// Lets the service reach Kubernetes for drains.
fn use_kubeconfig(fleet: &Fleet, credentials: &Path) {
    let config = std::fs::read_to_string(fleet.service.path("config.yml")).unwrap();
    let with = config.replacen(
        "kubernetes: {",
        &format!("kubernetes: {{kubeconfig: {}, ", credentials.display()),
        1,
    );
    assert_ne!(with, config, "{config}");
    fleet.service.write("config.yml", &with).unwrap();
}

#[tokio::test]
async fn a_kubernetes_of_cke_is_taken_over_in_the_middle_of_two_reboots() {
    let Some(takeover) = Takeover::build().await else { return };
    let fleet = takeover.fleet();
    use_kubeconfig(fleet, &takeover.credentials);
    let (containers, keys, objects) =
        (takeover.adopted.containers().await, takeover.adopted.keys().await, takeover.objects().await);
    assert!(objects.keys().any(|name| name.ends_with("kept")), "{objects:?}");

    let began = Instant::now();
    fleet.serve().await;
    let [asked, booted] = ["asked", "booted"].map(|name| {
        let directory = fleet.service.directory().to_owned();
        move |machine: &str| directory.join(format!("{name}-{machine}"))
    });
    let [boots, drains] = [BOOTING, DRAINING].map(|machine| fleet.address(machine));
    let is_asked = async || asked(&drains).exists().then_some(());
    eventually("the drained node gets its command", is_asked).await;
    assert!(!asked(&boots).exists(), "the command of the other node had run before");
    let guest = takeover.kubectl(&["get", "pods", "--namespace=default", "--output=name"]).await.unwrap();
    assert_eq!(guest, "", "the pod was evicted");
    for address in [&boots, &drains] {
        std::fs::write(booted(address), "").unwrap();
    }
    let ended = async || takeover.entries().await?.is_empty().then_some(());
    eventually("both reboots have ended", ended).await;
    let first = rounds(fleet).await.unwrap_or_default();
    let later = async || rounds(fleet).await.filter(|rounds| *rounds >= first + ROUNDS);
    eventually("rounds pass", later).await;
    fleet.settled(&[SERVER]).await;
    measured("a Kubernetes with two reboots is taken over", began.elapsed());

    assert_eq!(takeover.adopted.containers().await, containers, "no container restarts");
    let changed = takeover.adopted.changed_since(&keys, &OF_REBOOTS).await;
    let is_foreign = |key: &&String| !OWN.iter().chain(&OF_REBOOTS).any(|own| key.starts_with(own));
    let foreign: Vec<&String> = changed.iter().filter(is_foreign).collect();
    assert!(foreign.is_empty(), "the service writes these keys, too: {foreign:?}");
    let operations: Vec<String> = fleet
        .history()
        .await
        .iter()
        .map(|record| record["operation"].as_str().unwrap_or_default().to_owned())
        .filter(|name| name != "etcd-bootstrap")
        .collect();
    assert!(
        !operations.is_empty() && operations.iter().all(|name| name.starts_with("reboot-")),
        "only reboots: {operations:?}"
    );
    let mut wanted = objects;
    for node in [&boots, &drains] {
        let facts = wanted.get_mut(&format!("Node  {node}")).unwrap();
        facts[1] = Value::Null;
        facts[2] = Value::Null;
        facts[3] = Value::Null;
    }
    assert_eq!(takeover.objects().await, wanted, "only the cordons of both reboots are taken back");

    rolls_a_change(&takeover, &containers).await;
}

/// An argument of the schedulers restarts them alone.
async fn rolls_a_change(takeover: &Takeover, before: &[String]) {
    let fleet = takeover.fleet();
    let mut cluster = takeover.cluster.clone();
    cluster["options"]["kube-scheduler"] =
        json!({"extra_args": ["--v=1"], "extra_binds": null, "extra_env": null});
    fleet.store(&["put", "/cke/cluster", &cluster.to_string()]).await.unwrap();
    let rolled = async || {
        let format = "--format={{.State.Running}} {{.Args}}";
        let told = fleet.machine(SERVER).docker(&["inspect", format, "kube-scheduler"]).await.ok()?;
        (told.starts_with("true") && told.contains("--v=1")).then_some(())
    };
    eventually("the argument has rolled", rolled).await;
    fleet.settled(&[SERVER]).await;
    let lines = |all: &[String]| -> Vec<String> {
        all.iter().flat_map(|text| text.lines()).map(str::to_owned).collect()
    };
    let (before, after) = (lines(before), lines(&takeover.adopted.containers().await));
    let gone: Vec<&String> = before.iter().filter(|line| !after.contains(line)).collect();
    assert!(gone.len() == 1 && gone[0].contains("/kube-scheduler "), "{gone:?}");
    let look_up = format!("name={DNS_ADDRESS}");
    let service = [
        "get",
        "service",
        "cluster-dns",
        "--namespace=kube-system",
        "--output=jsonpath=name={.spec.clusterIP}",
    ];
    assert_eq!(takeover.kubectl(&service).await.unwrap(), look_up);
}

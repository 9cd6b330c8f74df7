//! The contract of the port `Components`: the same cases on a real API server and on the simulated one.
//!
//! `kept_objects.rs` has the contract of applied objects and Secrets. `components.rs` has the cases of one implementation.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kube::Client;
use madako_datacenter_sim::kubernetes::{PodOwner, Workload};
use madako_datacenter_sim::nodes::{NodeFault, NodePlace, SimulatedNodes};
use madako_domain::cluster::Taint;
use madako_domain::component::{
    CONTROLLER_MANAGER_KUBECONFIG, Component, KUBELET_CONFIG, SCHEDULER_KUBECONFIG,
};
use madako_domain::containers::{Container, ContainerName, ServiceParams};
use madako_domain::objects::{Manifest, NodeChange, NodeObject};
use madako_domain::skew::KubernetesVersion;
use madako_kubernetes::NodeComponents;
use madako_protocol::components::Components;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::node::{ContainerSpec, FileContent, NodeAction, NodeFile, NodeTarget};
use madako_protocol::permit::Permit;
use serde_json::json;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use crate::components::{HERE, components};
use crate::contract::permit;
use crate::objects;
use crate::server::{ADMIN, Server, until};
use crate::simulated::simulated;

/// Address of a node without an API server: it refuses connections.
const IDLE: &str = "127.0.0.2";
const NODES: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
/// The name of a Node object that does not exist.
const ABSENT: &str = "10.0.0.9";
/// Time limit of a question to one API server, as in CKE.
const DEADLINE: Duration = Duration::from_secs(5);
/// The simulation names restarted containers by the number of their pods.
const RESTARTED: &str = "default/1-pods/main";

/// A cluster whose API server answers at [`HERE`].
#[async_trait]
trait ComponentSite: Sync {
    fn port(&self) -> &dyn Components;
    /// Adds a Node object without a kubelet.
    async fn add_node_object(&self, name: &str);
    /// Removes the taints of a Node object as another client.
    async fn clear_taints(&self, name: &str);
    /// Lets a kubelet of a minor version such as `1.34` report that the node of a Node object is Ready.
    async fn start_kubelet(&self, node: &str, minor: &str);
    /// Ends a kubelet, so that the condition of its node becomes unknown.
    async fn stop_kubelet(&self, node: &str);
    /// Runs the container [`RESTARTED`] on a node with a kubelet of version 1.34, and restarts it.
    async fn restart_container(&self, node: &str);
    /// Gives the lease of a component to a node. The holder is the name of the node with the suffix `_1`.
    async fn lead(&self, component: Component, node: &str);
}

/// Asks the node without an API server first, which costs no answer.
fn servers() -> [String; 2] {
    [IDLE, HERE].map(str::to_owned)
}

fn taint(key: &str, value: &str, effect: &str) -> Taint {
    let (key, value, effect) = (key.to_owned(), value.to_owned(), effect.to_owned());
    Taint { key, value, effect, ..Taint::default() }
}

async fn find_node(port: &dyn Components, name: &str) -> Option<NodeObject> {
    let nodes = port.read_node_objects(&servers()).await.unwrap();
    nodes.into_iter().find(|node| node.name == name)
}

/// Every case apart from that of a hanging server, on an empty cluster.
async fn holds(site: &dyn ComponentSite) {
    servers_answer(site.port()).await;
    node_objects_show(site).await;
    changes_of_node_objects_are_against_a_version(site).await;
    taints_are_added(site.port()).await;
    nothing_is_written_without_a_permit(site.port()).await;
    leases_have_holders(site).await;
    kubelets_report(site).await;
}

async fn servers_answer(port: &dyn Components) {
    port.check(Component::ApiServer, HERE).await.unwrap();
    assert!(port.time_list(HERE).await.unwrap() < DEADLINE);
    let version = port.read_server_version(HERE).await.unwrap();
    let (major, minor) = version.split_once('.').unwrap();
    assert!(major.parse::<u8>().is_ok() && minor.parse::<u8>().is_ok(), "{version}");
    let deprecated = port.deprecated_apis(HERE).await.unwrap();
    assert!(deprecated.iter().all(|api| api.resource != "nodes"), "{deprecated:?}");

    let (idle, permit, taints) = ([IDLE.to_owned()], permit(), [taint("a", "", "NoSchedule")]);
    let errors = [
        port.check(Component::ApiServer, IDLE).await.unwrap_err(),
        port.time_list(IDLE).await.unwrap_err(),
        port.read_server_version(IDLE).await.unwrap_err(),
        port.deprecated_apis(IDLE).await.unwrap_err(),
        port.leader(Component::Scheduler, &idle).await.unwrap_err(),
        port.leader(Component::Scheduler, &[]).await.unwrap_err(),
        port.restarted_containers(&idle, NODES[0], OffsetDateTime::UNIX_EPOCH).await.unwrap_err(),
        port.read_taints(&idle, NODES[0]).await.unwrap_err(),
        port.add_taints(&permit, &idle, NODES[0], &taints).await.unwrap_err(),
        port.read_node_objects(&[]).await.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(&error, KubernetesError::Unavailable { .. }), "{error:?}");
    }
}

async fn node_objects_show(site: &dyn ComponentSite) {
    let port = site.port();
    let names = async || {
        let nodes = port.read_node_objects(&servers()).await.unwrap();
        nodes.into_iter().map(|node| node.name).collect::<Vec<_>>()
    };
    assert!(names().await.is_empty());
    for name in NODES {
        site.add_node_object(name).await;
    }
    until("the Node objects show", async || (names().await == NODES).then_some(())).await;
    let node = find_node(port, NODES[0]).await.unwrap();
    assert!(!node.is_ready && !node.is_deleted && node.taints.is_empty(), "{node:?}");
    assert_eq!(node.kubelet_version, None);
}

async fn changes_of_node_objects_are_against_a_version(site: &dyn ComponentSite) {
    let (port, name) = (site.port(), NODES[0]);
    let change_node = async |change: &NodeChange| port.change_node(&permit(), &servers(), change).await;
    let new = find_node(port, name).await.unwrap();
    let first = NodeChange {
        name: name.to_owned(),
        resource_version: new.resource_version.clone(),
        labels: [("a".to_owned(), Some("1".to_owned()))].into(),
        annotations: [("b".to_owned(), Some("2".to_owned()))].into(),
        taints: Some(vec![taint("c", "3", "NoSchedule")]),
    };
    change_node(&first).await.unwrap();
    let changed = find_node(port, name).await.unwrap();
    assert_ne!(changed.resource_version, new.resource_version);
    assert_eq!((changed.labels["a"].as_str(), changed.annotations["b"].as_str()), ("1", "2"));
    assert_eq!(changed.taints, [taint("c", "3", "NoSchedule")]);

    let second = NodeChange { resource_version: changed.resource_version.clone(), ..first.clone() };
    change_node(&second).await.unwrap();
    assert_eq!(find_node(port, name).await.unwrap(), changed, "a change without effect keeps the version");

    site.clear_taints(name).await;
    let cleared = until("the taint of another client's change is gone", async || {
        find_node(port, name).await.filter(|node| node.taints.is_empty())
    })
    .await;
    assert_ne!(cleared.resource_version, changed.resource_version);
    let stale = change_node(&second).await;
    assert!(matches!(stale, Err(KubernetesError::Refused { status: 409, .. })), "{stale:?}");

    port.remove_node(&permit(), &servers(), name).await.unwrap();
    let gone = change_node(&second).await;
    assert!(matches!(gone, Err(KubernetesError::NotFound { .. })), "{gone:?}");
    site.add_node_object(name).await;
    for change in [&first, &second] {
        let stale = change_node(change).await;
        assert!(matches!(stale, Err(KubernetesError::Refused { status: 409, .. })), "{stale:?}");
    }
    let again = until("the later Node object shows", async || find_node(port, name).await).await;
    assert!(!again.labels.contains_key("a") && !again.annotations.contains_key("b"), "{again:?}");
}

async fn taints_are_added(port: &dyn Components) {
    let name = NODES[1];
    let read = async |node: &str| port.read_taints(&servers(), node).await.unwrap();
    let add = async |node: &str, taints: &[Taint]| {
        port.add_taints(&permit(), &servers(), node, taints).await.unwrap();
    };
    let [a, a1, a2] = ["", "1", "2"].map(|value| taint("a", value, "NoSchedule"));
    let [b, other] = [taint("b", "", "NoSchedule"), taint("a", "", "PreferNoSchedule")];
    assert_eq!(read(name).await, Some(Vec::new()));
    add(name, std::slice::from_ref(&a)).await;
    assert_eq!(read(name).await, Some(vec![a]));
    add(name, &[a1.clone(), b.clone()]).await;
    assert_eq!(read(name).await, Some(vec![a1, b.clone()]));
    let before = find_node(port, name).await.unwrap();
    add(name, std::slice::from_ref(&b)).await;
    assert_eq!(find_node(port, name).await.unwrap(), before, "all taints were there");
    add(name, &[other.clone(), a2.clone()]).await;
    assert_eq!(read(name).await, Some(vec![a2, b, other.clone()]));
    assert_ne!(find_node(port, name).await.unwrap().resource_version, before.resource_version);

    assert_eq!(read(ABSENT).await, None);
    add(ABSENT, &[other]).await;
    assert_eq!(read(ABSENT).await, None);
}

async fn nothing_is_written_without_a_permit(port: &dyn Components) {
    let (name, ended) = (NODES[1], Permit::give(1, Instant::now()));
    let before = find_node(port, name).await.unwrap();
    let change = NodeChange {
        name: name.to_owned(),
        resource_version: before.resource_version.clone(),
        taints: Some(Vec::new()),
        ..NodeChange::default()
    };
    let refusals = [
        port.change_node(&ended, &servers(), &change).await,
        port.remove_node(&ended, &servers(), name).await,
        port.add_taints(&ended, &servers(), name, &[taint("d", "", "NoSchedule")]).await,
    ];
    for refused in refusals {
        assert!(matches!(refused, Err(KubernetesError::Permit(_))), "{refused:?}");
    }
    assert_eq!(find_node(port, name).await.unwrap(), before);
}

async fn leases_have_holders(site: &dyn ComponentSite) {
    let holders = async || {
        let (port, servers) = (site.port(), servers());
        let scheduler = port.leader(Component::Scheduler, &servers).await.unwrap();
        [scheduler, port.leader(Component::ControllerManager, &servers).await.unwrap()]
    };
    let holder = |node: &str| Some(format!("{node}_1"));
    assert_eq!(holders().await, [None, None]);
    site.lead(Component::Scheduler, NODES[1]).await;
    assert_eq!(holders().await, [holder(NODES[1]), None]);
    site.lead(Component::ControllerManager, NODES[1]).await;
    site.lead(Component::Scheduler, NODES[0]).await;
    assert_eq!(holders().await, [holder(NODES[0]), holder(NODES[1])]);
}

async fn kubelets_report(site: &dyn ComponentSite) {
    let (port, name) = (site.port(), NODES[2]);
    let restarted = async |node: &str| {
        port.restarted_containers(&servers(), node, OffsetDateTime::UNIX_EPOCH).await.unwrap()
    };
    site.start_kubelet(name, "1.34").await;
    let ready =
        until("the node is Ready", async || find_node(port, name).await.filter(|node| node.is_ready)).await;
    let version = ready.kubelet_version.unwrap();
    let wanted: KubernetesVersion = "1.34".parse().unwrap();
    assert!(version.is_same_minor(&wanted), "{version}");
    assert!(restarted(name).await.is_empty());
    site.restart_container(name).await;
    let found = until("the restarted container shows", async || {
        Some(restarted(name).await).filter(|found| !found.is_empty())
    })
    .await;
    assert_eq!(found, [RESTARTED]);
    assert!(restarted(NODES[1]).await.is_empty(), "another node");
    site.stop_kubelet(name).await;
    let silent = until("the condition of the node is unknown", async || {
        find_node(port, name).await.filter(|node| !node.is_ready)
    })
    .await;
    assert_eq!(silent.kubelet_version, None);
}

/// The API server accepts connections and does not answer.
async fn a_hanging_server_uses_up_the_deadline(port: &dyn Components) {
    let servers = [HERE.to_owned()];
    let (checked, listed, version, leader) = tokio::join!(
        port.check(Component::ApiServer, HERE),
        port.time_list(HERE),
        port.read_server_version(HERE),
        port.leader(Component::Scheduler, &servers),
    );
    let listed = listed.unwrap();
    assert!(listed >= DEADLINE, "a list takes the time until the deadline: {listed:?}");
    let errors = [checked.unwrap_err(), version.unwrap_err(), leader.unwrap_err()];
    for error in errors {
        assert!(matches!(&error, KubernetesError::Unavailable { .. }), "{error:?}");
    }
}

struct Real {
    components: NodeComponents,
    admin: Client,
}

impl Real {
    async fn patch_node_status(&self, node: &str, status: serde_json::Value) {
        let path = format!("/api/v1/nodes/{node}/status");
        objects::patch(&self.admin, &path, &json!({"status": status})).await.unwrap();
    }
}

#[async_trait]
impl ComponentSite for Real {
    fn port(&self) -> &dyn Components {
        &self.components
    }

    async fn add_node_object(&self, name: &str) {
        objects::create(&self.admin, "/api/v1/nodes", &json!({"metadata": {"name": name}})).await;
    }

    async fn clear_taints(&self, name: &str) {
        let path = format!("/api/v1/nodes/{name}");
        objects::patch(&self.admin, &path, &json!({"spec": {"taints": null}})).await.unwrap();
    }

    async fn start_kubelet(&self, node: &str, minor: &str) {
        let conditions = json!([{"type": "Ready", "status": "True"}]);
        let info = json!({"kubeletVersion": format!("v{minor}.1")});
        self.patch_node_status(node, json!({"conditions": conditions, "nodeInfo": info})).await;
    }

    async fn stop_kubelet(&self, node: &str) {
        let conditions = json!([{"type": "Ready", "status": "Unknown"}]);
        self.patch_node_status(node, json!({"conditions": conditions})).await;
    }

    async fn restart_container(&self, node: &str) {
        let pods = "/api/v1/namespaces/default/pods";
        let spec = json!({"nodeName": node, "containers": [{"name": "main", "image": "none"}]});
        objects::create(&self.admin, pods, &json!({"metadata": {"name": "1-pods"}, "spec": spec})).await;
        let at = |minute: u8| format!("2026-01-01T10:{minute:02}:00Z");
        let ended = json!({"exitCode": 0, "startedAt": at(0), "finishedAt": at(30)});
        let status = json!({"containerStatuses": [{
            "name": "main", "image": "none", "imageID": "none", "ready": true, "restartCount": 1,
            "state": {"running": {"startedAt": at(31)}}, "lastState": {"terminated": ended},
        }]});
        let path = format!("{pods}/1-pods/status");
        objects::patch(&self.admin, &path, &json!({"status": status})).await.unwrap();
    }

    async fn lead(&self, component: Component, node: &str) {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": component.name(), "namespace": "kube-system"},
            "spec": {"holderIdentity": format!("{node}_1")},
        });
        let lease = Manifest::new(lease).unwrap();
        self.port().apply_object(&permit(), &servers(), &lease).await.unwrap();
    }
}

#[tokio::test]
async fn the_contract_of_components_holds_for_a_real_api_server() {
    let Some(server) = Server::start().await else { return };
    let components = components(Arc::clone(&server.authority), &server.url);
    let site = Real { components, admin: server.client(ADMIN) };
    holds(&site).await;
    server.freeze();
    a_hanging_server_uses_up_the_deadline(site.port()).await;
}

/// Longer than all starts in the simulation.
const A_WHILE: Duration = Duration::from_secs(20);

/// A simulated API server with etcd on its node, and a node beside it.
async fn simulated_site(seed: u64) -> SimulatedNodes {
    let nodes = SimulatedNodes::new(seed);
    nodes.add(IDLE, 0);
    nodes.add(HERE, 1);
    write_file(&nodes, HERE, "/etc/kubernetes/pki/apiserver.key").await;
    start(&nodes, HERE, Container::Etcd.into(), "etcd:3.5.15", &[]).await;
    start(&nodes, HERE, Container::EtcdRivers.into(), "tools:1.34", &[]).await;
    start(&nodes, HERE, Component::ApiServer.into(), "kubernetes:1.34.1", &[]).await;
    nodes
}

async fn act(nodes: &SimulatedNodes, address: &str, action: NodeAction) {
    let target = NodeTarget { address: address.to_owned(), user: "u".to_owned(), pinned: None };
    let connection = nodes.driver_port().connect(&target).await.unwrap();
    connection.act(&permit(), &action).await.unwrap();
}

/// Writes a file without which a component does not serve.
async fn write_file(nodes: &SimulatedNodes, address: &str, path: &str) {
    let file = NodeFile { path: path.to_owned(), content: FileContent::Public("{}".to_owned()) };
    let (tools, directory) = ("tools:1.34".to_owned(), "/etc/kubernetes".to_owned());
    act(nodes, address, NodeAction::WriteFiles { tools, directory, files: vec![file] }).await;
}

/// Starts a container in the place of a running one, and waits until it serves.
async fn start(
    nodes: &SimulatedNodes,
    address: &str,
    container: ContainerName,
    image: &str,
    args: &[String],
) {
    nodes.end_container(address, container);
    // Only etcd writes to the volume.
    let spec = ContainerSpec {
        container,
        image: image.to_owned(),
        engine_options: &[],
        volumes: vec![("data".to_owned(), "/var/lib/etcd".to_owned())],
        builtin: ServiceParams { args: args.to_vec(), ..ServiceParams::default() },
        extra: ServiceParams::default(),
    };
    act(nodes, address, NodeAction::RunContainer { spec, restart: false }).await;
    sleep(A_WHILE).await;
}

#[async_trait]
impl ComponentSite for SimulatedNodes {
    fn port(&self) -> &dyn Components {
        self
    }

    async fn add_node_object(&self, name: &str) {
        self.register_node(name);
    }

    async fn clear_taints(&self, name: &str) {
        self.remove_taints(name);
    }

    async fn start_kubelet(&self, node: &str, minor: &str) {
        self.add(node, 2);
        write_file(self, node, KUBELET_CONFIG).await;
        let name = format!("--hostname-override={node}");
        start(self, node, Component::Kubelet.into(), &format!("kubernetes:{minor}.1"), &[name]).await;
    }

    async fn stop_kubelet(&self, node: &str) {
        self.end_container(node, Component::Kubelet);
    }

    async fn restart_container(&self, node: &str) {
        let kubernetes = simulated(1);
        kubernetes.with_cluster(|cluster| {
            cluster.add_node(node);
            cluster.add_workload(Workload {
                namespace: "default".to_owned(),
                name: "web".to_owned(),
                owner: PodOwner::ReplicaSet { replicas: 1 },
                grace: Duration::from_secs(30),
                ends_within: Duration::from_secs(1),
            });
        });
        self.run_pods_of(&kubernetes);
        sleep(A_WHILE).await;
        // Containers restart with a kubelet of another minor version.
        self.start_kubelet(node, "1.35").await;
    }

    async fn lead(&self, component: Component, node: &str) {
        for other in NODES {
            self.end_container(other, component);
        }
        self.add(node, 2);
        let kubeconfig = match component {
            Component::Scheduler => SCHEDULER_KUBECONFIG,
            _ => CONTROLLER_MANAGER_KUBECONFIG,
        };
        write_file(self, node, kubeconfig).await;
        start(self, node, component.into(), "kubernetes:1.34.1", &[]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_contract_of_components_holds_for_the_simulated_api_server() {
    for seed in 0..20 {
        let nodes = simulated_site(seed).await;
        holds(&nodes).await;
        nodes.begin(&NodePlace::Address(HERE.to_owned()), NodeFault::Pause);
        a_hanging_server_uses_up_the_deadline(&nodes).await;
    }
}

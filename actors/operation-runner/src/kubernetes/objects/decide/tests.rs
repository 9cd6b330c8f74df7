use madako_domain::cluster::Node;
use madako_domain::objects::UserResources;
use serde_json::json;
use time::macros::datetime;

use super::*;
use crate::kubernetes::objects::apply::fingerprint;
use crate::kubernetes::objects::failures::ObjectFailures;
use crate::kubernetes::objects::shown::{ObjectState, show_all};

const NOW: OffsetDateTime = datetime!(2026-11-21 12:00 UTC);
const SERVERS: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
const WORKER: &str = "10.0.0.4";

/// A cluster of three control plane nodes and a worker, whose objects are as wanted after [`World::settle`].
struct World {
    cluster: Cluster,
    images: ConfiguredDnsImages,
    user: ReadResources,
    answers: ObjectAnswers,
    server_versions: BTreeMap<String, String>,
    failures: ObjectFailures,
    healthy: BTreeSet<&'static str>,
    busy: BTreeSet<String>,
    is_guarded: bool,
    is_removal_agreed: bool,
}

fn node(address: &str) -> Node {
    let control_plane = SERVERS.contains(&address);
    Node { address: address.to_owned(), control_plane, ..Node::default() }
}

fn registered(name: &str) -> NodeObject {
    NodeObject { name: name.to_owned(), is_ready: true, ..NodeObject::default() }
}

impl World {
    /// An API server without any object of the service.
    fn new() -> Self {
        let names = SERVERS.into_iter().chain([WORKER]);
        let mut world = Self {
            cluster: Cluster { nodes: names.clone().map(node).collect(), ..Cluster::default() },
            images: ConfiguredDnsImages::default(),
            user: ReadResources::default(),
            answers: ObjectAnswers {
                nodes: Some(names.map(registered).collect()),
                ..ObjectAnswers::default()
            },
            server_versions: SERVERS.map(|address| (address.to_owned(), "1.34".to_owned())).into(),
            failures: ObjectFailures::default(),
            healthy: SERVERS.into(),
            busy: BTreeSet::new(),
            is_guarded: false,
            is_removal_agreed: false,
        };
        for object in compared_objects("") {
            world.answers.contents.insert(object.key, FoundObject::Missing);
        }
        for resource in static_with_images(&world.images, &world.answers) {
            world.answers.resources.insert(resource.key, FoundObject::Missing);
        }
        world.set(&service_account(), FoundObject::Exists(json!({})));
        world
    }

    fn settled() -> Self {
        let mut world = Self::new();
        world.settle();
        world
    }

    fn set(&mut self, object: &ObjectName, found: FoundObject<Value>) {
        self.answers.contents.insert(object.key.clone(), found);
    }

    fn user(&mut self, name: &str) {
        let key = format!("{}{name}", madako_domain::keys::RESOURCES);
        let parsed = ResourceKey::parse(name).unwrap();
        let metadata = json!({"name": parsed.name, "namespace": parsed.namespace});
        let text = json!({"apiVersion": "v1", "kind": parsed.kind, "metadata": metadata}).to_string();
        let mut stored = UserResources::default();
        stored.0.insert(key, (text.into(), 7));
        self.user.wanted.extend(ReadResources::new(&stored).wanted);
        self.answers.resources.insert(parsed, FoundObject::Missing);
    }

    fn input(&self) -> ObjectsInput<'_> {
        ObjectsInput {
            now: NOW,
            cluster: &self.cluster,
            domain: "cluster.local",
            images: &self.images,
            user: &self.user,
            answers: &self.answers,
            server_versions: &self.server_versions,
            failed: self.failures.failed(),
            healthy: &self.healthy,
            busy: &self.busy,
            is_guarded: self.is_guarded,
            is_removal_agreed: self.is_removal_agreed,
        }
    }

    fn decide(&self) -> ObjectsDecision {
        decide(&self.input())
    }

    /// The state of an object that `madako resource status` shows.
    fn state(&self, key: &str) -> (ObjectState, String) {
        let shown = show_all(&self.input());
        let (state, why) = &shown[&ResourceKey::parse(key).unwrap()];
        (*state, why.join("; "))
    }

    /// Names and targets of the operations.
    fn operations(&self) -> Vec<String> {
        let operations = self.decide().operations;
        operations.iter().map(|due| format!("{} {}", due.name, due.command.target())).collect()
    }

    fn held(&self) -> Vec<(String, &'static str)> {
        self.decide().held.into_iter().map(|held| (held.key.to_string(), held.reason.name())).collect()
    }

    /// Carries all operations out, until none is left.
    fn settle(&mut self) {
        for _ in 0..20 {
            let operations = self.decide().operations;
            if operations.is_empty() {
                return;
            }
            for due in operations {
                self.carry_out(&due.command);
            }
        }
        panic!("not settled: {:?}", self.operations());
    }

    fn carry_out(&mut self, command: &Command) {
        if let Some(manifest) = command.manifest() {
            let key = manifest.name().key.clone();
            if let Some(found) = self.answers.resources.get_mut(&key) {
                let annotations = manifest.content()["metadata"]["annotations"].clone();
                *found = FoundObject::Exists(serde_json::from_value(annotations).unwrap());
            }
            let mut content = manifest.content().clone();
            if key.kind == "Service" && content["spec"]["clusterIP"].is_null() {
                content["spec"]["clusterIP"] = json!("10.68.0.10");
            }
            if let Some(found) = self.answers.contents.get_mut(&key) {
                *found = FoundObject::Exists(content);
            }
        }
        let nodes = self.answers.nodes.as_mut().unwrap();
        match command {
            Command::UpdateNodes(changes) => {
                for change in changes {
                    let node = nodes.iter_mut().find(|node| node.name == change.name).unwrap();
                    node.labels.extend(
                        change.labels.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?))),
                    );
                }
            }
            Command::RemoveNodes(names) => nodes.retain(|node| !names.contains(&node.name)),
            _ => {}
        }
    }
}

#[test]
fn everything_waits_for_the_controller_manager() {
    let mut world = World::new();
    let account = "ServiceAccount/kube-system/default";
    for (found, reason, state) in [
        (Some(FoundObject::Missing), "not-initialized", ObjectState::Held),
        (Some(FoundObject::Unread("silence".to_owned())), "unread", ObjectState::Unknown),
        (Some(FoundObject::KindUnknown), "unread", ObjectState::Unknown),
        (None, "unread", ObjectState::Unknown),
    ] {
        world.answers.contents.remove(&service_account().key);
        world.answers.contents.extend(found.map(|found| (service_account().key, found)));
        assert_eq!(world.operations(), [""; 0]);
        assert_eq!(world.held(), [(account.to_owned(), reason)]);
        assert_eq!(world.state(account).0, state);
        let missing = (ObjectState::Held, "the object does not exist".to_owned());
        assert_eq!(
            world.state("Deployment/kube-system/cluster-dns"),
            missing,
            "no object is said to be good"
        );
    }
}

#[test]
fn objects_of_a_new_cluster_follow_in_ckes_order() {
    let mut world = World::new();
    assert_eq!(
        world.operations(),
        [
            "resource-apply ServiceAccount/kube-system/cke-cluster-dns@1",
            "create-cluster-dns-configmap kube-system",
            "create-endpoints 10.0.0.1,10.0.0.2,10.0.0.3",
            "create-endpointslice 10.0.0.1,10.0.0.2,10.0.0.3",
            "create-etcd-service ",
            "create-endpoints 10.0.0.1,10.0.0.2,10.0.0.3",
            "create-endpointslice 10.0.0.1,10.0.0.2,10.0.0.3",
            "update-node 10.0.0.1,10.0.0.2,10.0.0.3",
        ]
    );
    world.settle();
    assert_eq!(world.decide(), ObjectsDecision::default());
    let unbound = world.found_text("ConfigMap/kube-system/node-dns", UNBOUND_CONF);
    assert!(unbound.contains("stub-addr: 10.68.0.10\n"), "{unbound}");
}

impl World {
    fn found_text(&self, key: &str, file: &str) -> String {
        let found = self.answers.contents[&ResourceKey::parse(key).unwrap()].content().unwrap();
        found["data"][file].as_str().unwrap().to_owned()
    }
}

#[test]
fn refused_resource_holds_neither_endpoints_nor_nodes_nor_resources_of_its_rank() {
    let mut world = World::settled();
    for name in ["ConfigMap/a/bad", "ConfigMap/a/good"] {
        world.user(name);
    }
    let due = world.decide().operations;
    for (key, wanted) in due[0].command.objects() {
        assert_eq!(key.to_string(), "ConfigMap/a/bad");
        world.failures.record_failure(key, &wanted, "refused", NOW);
    }
    world.healthy.remove(SERVERS[1]);
    assert_eq!(
        world.operations(),
        [
            "resource-apply ConfigMap/a/good@7",
            "update-endpoints 10.0.0.1,10.0.0.3",
            "update-endpointslice 10.0.0.1,10.0.0.2,10.0.0.3",
        ]
    );
    assert_eq!(world.held(), [("ConfigMap/a/bad".to_owned(), "backing-off")]);
}

#[test]
fn unreadable_and_unknown_resources_are_named_and_hold_nothing() {
    let mut world = World::settled();
    world.user("Widget/a/w");
    world.user("ConfigMap/a/c");
    world.user("Secret/a/s");
    let key = |text: &str| ResourceKey::parse(text).unwrap();
    world.answers.resources.insert(key("Widget/a/w"), FoundObject::KindUnknown);
    world.answers.resources.insert(key("Secret/a/s"), FoundObject::Unread("503".to_owned()));
    world.user.faults.insert("resource/Role/a/r".to_owned(), "line 1".to_owned());
    assert_eq!(world.operations(), ["resource-apply ConfigMap/a/c@7"]);
    let expected =
        [("Widget/a/w", "kind-unknown"), ("Secret/a/s", "unread"), ("Role/a/r", "unreadable-definition")];
    assert_eq!(world.held(), expected.map(|(key, reason)| (key.to_owned(), reason)));
}

#[test]
fn endpoints_follow_while_api_servers_of_two_versions_serve_and_resources_do_not() {
    let mut world = World::settled();
    world.user("ConfigMap/a/c");
    world.busy.insert(SERVERS[0].to_owned());
    world.server_versions = [(SERVERS[0], "1.33"), (SERVERS[1], "1.34")]
        .map(|(address, version)| (address.to_owned(), version.to_owned()))
        .into();
    let names: Vec<&str> = world.decide().operations.iter().map(|due| due.name.name()).collect();
    assert_eq!(
        names,
        ["update-endpoints", "update-endpointslice", "update-endpoints", "update-endpointslice"]
    );
    assert_eq!(world.held(), [("ConfigMap/a/c".to_owned(), "mixed-versions")]);
    // A server that does not report its version may have another one.
    world.server_versions = [(SERVERS[0].to_owned(), "1.34".to_owned())].into();
    assert_eq!(world.held(), [("ConfigMap/a/c".to_owned(), "unknown-version")]);
    world.healthy = [SERVERS[1]].into();
    let held = [("ConfigMap/a/c".to_owned(), "unknown-version")];
    assert_eq!(world.held(), held, "another API server serves on a node without a known state");
    world.server_versions.insert(SERVERS[1].to_owned(), "1.33".to_owned());
    assert_eq!(world.held(), [("ConfigMap/a/c".to_owned(), "mixed-versions")]);
    world.server_versions.clear();
    assert_eq!(world.held(), [], "a single API server serves");
}

#[test]
fn an_api_server_is_ready_while_one_is_healthy_even_if_all_nodes_leave() {
    let mut world = World::settled();
    world.busy = SERVERS.map(str::to_owned).into();
    assert_eq!(world.operations(), [""; 0]);
    world.healthy = [SERVERS[1]].into();
    let names: Vec<&str> = world.decide().operations.iter().map(|due| due.name.name()).collect();
    assert_eq!(names, ["update-endpoints", "update-endpointslice"], "the unhealthy one is not ready");
}

#[test]
fn definition_of_a_user_replaces_a_static_resource() {
    let mut world = World::settled();
    world.user("Service/kube-system/cluster-dns");
    assert_eq!(world.operations(), ["resource-apply Service/kube-system/cluster-dns@7"]);
    let difference = "the object does not exist".to_owned();
    assert_eq!(world.state("Service/kube-system/cluster-dns"), (ObjectState::Due, difference));
    world.settle();
    assert_eq!(world.decide(), ObjectsDecision::default(), "both do not take turns");
}

#[test]
fn objects_that_the_service_derives_have_no_definition_of_a_user() {
    let mut world = World::settled();
    let derived = ["ConfigMap/kube-system/cluster-dns", "Endpoints/default/kubernetes", "Node/10.0.0.1"];
    for key in derived {
        world.user(key);
    }
    assert_eq!(world.operations(), [""; 0]);
    assert_eq!(world.held(), derived.map(|key| (key.to_owned(), "kept-by-service")));
    assert_eq!(world.state(derived[1]).0, ObjectState::Held);
}

#[test]
fn states_name_the_difference_and_the_obstacle() {
    let mut world = World::settled();
    assert!(show_all(&world.input()).values().all(|(state, _)| *state == ObjectState::Good));
    for name in ["Namespace/bad", "Widget/a/w", "Secret/a/s", "ConfigMap/a/c"] {
        world.user(name);
    }
    let key = |text: &str| ResourceKey::parse(text).unwrap();
    world.answers.resources.insert(key("Widget/a/w"), FoundObject::KindUnknown);
    world.answers.resources.insert(key("Secret/a/s"), FoundObject::Unread("503".to_owned()));
    world.failures.record_failure(
        key("Namespace/bad"),
        &fingerprint(&world.user.wanted[0].manifest),
        "refused",
        NOW,
    );
    for (key, state, why) in [
        ("Namespace/bad", ObjectState::Held, "the object does not exist; it failed, and is tried again at"),
        ("Widget/a/w", ObjectState::Held, "the object does not exist; the API server does not know the kind"),
        ("Secret/a/s", ObjectState::Unknown, "its present state cannot be read: 503"),
        ("ConfigMap/a/c", ObjectState::Held, "the object does not exist; Namespace/bad comes first"),
    ] {
        let (found, told) = world.state(key);
        assert!(found == state && told.starts_with(why), "{key}: {found:?} {told}");
    }
}

#[test]
fn deployment_waits_for_half_of_the_nodes() {
    let mut world = World::settled();
    world.user("Deployment/a/d");
    for node in world.answers.nodes.iter_mut().flatten().skip(2) {
        node.is_ready = false;
    }
    assert_eq!(world.held(), [("Deployment/a/d".to_owned(), "few-nodes-ready")]);
    // A ready node outside of the cluster is not a place.
    world.answers.nodes.as_mut().unwrap().push(registered("10.0.0.9"));
    assert_eq!(world.held()[0].1, "few-nodes-ready");
    world.answers.nodes.as_mut().unwrap().pop();
    world.answers.nodes.as_mut().unwrap()[2].is_ready = true;
    assert_eq!(world.operations(), ["resource-apply Deployment/a/d@7"]);
}

#[test]
fn upstream_of_both_dns_servers_is_the_configured_service() {
    let mut world = World::settled();
    "dns/upstream".clone_into(&mut world.cluster.dns_service);
    world.cluster.dns_servers = vec!["192.0.2.1".to_owned()];
    let service = ObjectName::new("v1", "Service", "dns", "upstream");
    world.set(&service, FoundObject::Unread("silence".to_owned()));
    assert_eq!(world.operations(), [""; 0], "an unknown upstream changes nothing");
    assert_eq!(world.held(), [("ConfigMap/kube-system/cluster-dns".to_owned(), "unread")]);
    world.set(&service, FoundObject::Missing);
    world.settle();
    assert!(
        world.found_text("ConfigMap/kube-system/cluster-dns", COREFILE).contains("forward . 192.0.2.1\n")
    );
    world.set(&service, FoundObject::Exists(json!({"spec": {"clusterIP": "10.68.0.9"}})));
    let due = ["update-cluster-dns-configmap kube-system", "update-node-dns-configmap kube-system"];
    assert_eq!(world.operations(), due);
    world.settle();
    assert!(
        world.found_text("ConfigMap/kube-system/cluster-dns", COREFILE).contains("forward . 10.68.0.9\n")
    );
}

#[test]
fn present_objects_keep_their_images_until_others_are_configured() {
    let mut world = World::settled();
    let key = ResourceKey::parse("Deployment/kube-system/cluster-dns").unwrap();
    if let Some(FoundObject::Exists(annotations)) = world.answers.resources.get_mut(&key) {
        annotations.insert(ANNOTATION_IMAGE.to_owned(), "coredns:9".to_owned());
    }
    assert_eq!(world.operations(), [""; 0]);
    world.images.coredns = Some("coredns:10".to_owned());
    assert_eq!(world.operations(), ["resource-apply Deployment/kube-system/cluster-dns@4"]);
}

#[test]
fn surplus_node_objects_are_removed_with_the_removal_guard() {
    let mut world = World::settled();
    let add = |world: &mut World, name: &str| world.answers.nodes.as_mut().unwrap().push(registered(name));
    add(&mut world, "10.0.0.8");
    assert_eq!(world.operations(), ["remove-node 10.0.0.8"]);
    world.is_guarded = true;
    assert_eq!(world.held(), [("Node/10.0.0.8".to_owned(), "registry-guard")]);
    world.is_guarded = false;
    add(&mut world, "10.0.0.9");
    assert_eq!(world.operations(), [""; 0], "two of six are many");
    assert_eq!(world.held()[1], ("Node/10.0.0.9".to_owned(), "removal-guard"));
    world.is_removal_agreed = true;
    assert_eq!(world.operations(), ["remove-node 10.0.0.8,10.0.0.9"]);
    world.failures.record_failure(node_key("10.0.0.8"), "removed", "refused", NOW);
    assert_eq!(world.operations(), ["remove-node 10.0.0.9"]);
}

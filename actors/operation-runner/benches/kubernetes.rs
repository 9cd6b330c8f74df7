//! Cost of a decision about the components and objects of Kubernetes on 1,000 nodes.
//!
//! `cargo bench --workspace --bench kubernetes` prints a table of wall-clock times on one thread. In the first case every component
//! runs as wanted with its file, and every object is as wanted. In the second, each component has another image and argument, and
//! each kubelet and proxy another file. In the third, the same nodes have files that no decision has seen before.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(clippy::print_stdout, reason = "a benchmark's output is its table")]

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::time::{Duration, Instant};

use madako_domain::cluster::{Cluster, Node};
use madako_domain::component::Component;
use madako_domain::containers::{Container, ContainerOptions, ServiceParams};
use madako_domain::node_status::{
    ConfigVersion, ContainerStatus, EtcdMember, EtcdStatus, FleetStatus, KubernetesAnswers, NodeStatus,
};
use madako_domain::objects::{FoundObject, NodeObject, ObjectAnswers, ObjectName};
use madako_domain::reboot::RebootQueueEntry;
use madako_domain::repair::queue::Items;
use madako_domain::status::OperationPhase;
use madako_json::go::RawJson;
use madako_operation_runner::command::Command;
use madako_operation_runner::kubernetes::configuration::{Configuration, Unknown};
use madako_operation_runner::kubernetes::objects::decide::compared_objects;
use madako_operation_runner::kubernetes::objects::operation::ObjectCommand;
use madako_operation_runner::kubernetes::objects::static_resources::{DnsImages, static_resources};
use madako_operation_runner::kubernetes::options::KubernetesOptions;
use madako_operation_runner::kubernetes::params::builtin_parameters;
use madako_operation_runner::wanted::{
    InitialCluster, etcd_parameters, etcd_rivers, peer_url, rivers_parameters,
};
use madako_operation_runner::{
    Decision, Images, Input, KubernetesMode, KubernetesPart, ObjectsPart, Settings, decide,
};
use serde_json::{Value, json};
use time::OffsetDateTime;

/// Timed runs of each case, after one untimed run.
const RUNS: usize = 31;
const NODES: usize = 1_000;
const CONTROL_PLANE: usize = 3;
/// Passes that the objects of a new cluster need at most.
const PASSES: usize = 50;

const OTHER: &str = r#"{
    "kube-api": {"extra_args": ["--v=2"]}, "kube-controller-manager": {"extra_args": ["--v=2"]},
    "kube-scheduler": {"extra_args": ["--v=2"]},
    "kubelet": {"extra_args": ["--v=2"], "config": {"maxPods": 200}},
    "kube-proxy": {"extra_args": ["--v=2"], "config": {"mode": "ipvs"}}
}"#;

fn read_options(text: &str) -> KubernetesOptions {
    let text = RawJson::from_text(text.to_owned()).expect("it is JSON");
    KubernetesOptions::read(&text).expect("these are options")
}

fn make_cluster() -> Cluster {
    let node = |number: usize| Node {
        address: format!("10.0.{}.{}", number / 250, number % 250 + 1),
        hostname: format!("node-{number}"),
        control_plane: number < CONTROL_PLANE,
        labels: BTreeMap::from([("topology.kubernetes.io/zone".to_owned(), format!("rack-{}", number / 30))]),
        ..Node::default()
    };
    Cluster {
        name: "bench".to_owned(),
        nodes: (0..NODES).map(node).collect(),
        service_subnet: "10.68.0.0/16".to_owned(),
        ..Cluster::default()
    }
}

fn running_container(image: &str, builtin: ServiceParams) -> ContainerStatus {
    ContainerStatus { running: true, image: image.to_owned(), builtin, ..ContainerStatus::default() }
}

/// The state in which everything runs. `comment` is added to each configuration file.
fn running_fleet(
    cluster: &Cluster,
    options: &KubernetesOptions,
    comment: &dyn Fn(&Node) -> String,
) -> FleetStatus {
    let images = Images::default();
    let mut answers = KubernetesAnswers::default();
    let mut nodes = BTreeMap::new();
    for node in &cluster.nodes {
        let mut state = NodeStatus { reachable: true, ..NodeStatus::default() };
        let mut run = |name: &str, container| drop(state.containers.insert(name.to_owned(), container));
        run(Container::Rivers.name(), running_container(&images.tools, rivers_parameters(cluster)));
        if node.control_plane {
            run(Container::EtcdRivers.name(), running_container(&images.tools, etcd_rivers(cluster)));
            let member = etcd_parameters(&node.address, InitialCluster::None);
            run(Container::Etcd.name(), running_container(&images.etcd, member));
        }
        for component in Component::ALL {
            if component.is_of_control_plane() && !node.control_plane {
                continue;
            }
            let builtin = builtin_parameters(component, cluster, options, node);
            run(component.name(), running_container(&images.kubernetes, builtin));
            answers.health.entry(node.address.clone()).or_default().insert(component, Ok(()));
        }
        for component in
            Component::ALL.into_iter().filter(|it| node.control_plane || !it.is_of_control_plane())
        {
            let wanted = Configuration::build_wanted(component, options, node, None, Unknown::Drop);
            if let Some(wanted) = wanted {
                let text = wanted.to_yaml().expect("it has a text");
                state.configurations.insert(component, Some(format!("{text}{}", comment(node))));
            }
        }
        (state.etcd_data, state.etcd_mark) = (node.control_plane, node.control_plane);
        nodes.insert(node.address.clone(), state);
    }
    let member = |(id, node): (u64, &Node)| EtcdMember {
        id,
        name: node.address.clone(),
        peer_urls: vec![peer_url(&node.address)],
        in_sync: Some(true),
        ..EtcdMember::default()
    };
    let members = (1..).zip(cluster.control_plane()).map(member).collect();
    answers.registered = Some(cluster.nodes.iter().map(|node| node.name().to_owned()).collect());
    answers.server_versions =
        cluster.control_plane().map(|node| (node.address.clone(), "1.34".to_owned())).collect();
    answers.objects = Some(missing_objects(cluster));
    FleetStatus {
        config_version: ConfigVersion::Two,
        nodes,
        etcd: Some(EtcdStatus { healthy: true, members }),
        bootstrap: None,
        interrupted_removals: BTreeSet::new(),
        etcd_image_version: None,
        kubernetes: Some(answers),
    }
}

/// The objects of a new cluster: the Node objects, and the service account that a controller manager makes.
fn missing_objects(cluster: &Cluster) -> ObjectAnswers {
    let node = |node: &Node| NodeObject {
        name: node.name().to_owned(),
        resource_version: "1".to_owned(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        taints: Vec::new(),
        is_ready: true,
        reported_at: None,
        kubelet_version: None,
        is_deleted: false,
    };
    let resources = static_resources(&DnsImages::default_images()).into_iter();
    let content = |object: ObjectName| {
        let is_made = object.key.kind == "ServiceAccount";
        (object.key, if is_made { FoundObject::Exists(json!({})) } else { FoundObject::Missing })
    };
    ObjectAnswers {
        nodes: Some(cluster.nodes.iter().map(node).collect()),
        resources: resources.map(|resource| (resource.key, FoundObject::Missing)).collect(),
        certificates: BTreeMap::new(),
        contents: compared_objects(&cluster.dns_service).into_iter().map(content).collect(),
    }
}

fn carry_out(objects: &mut ObjectAnswers, command: &ObjectCommand) {
    if let Some(manifest) = command.manifest() {
        let key = &manifest.name().key;
        let mut content = manifest.content().clone();
        if key.kind == "Service" && content["spec"]["clusterIP"].is_null() {
            content["spec"]["clusterIP"] = json!("10.68.0.10");
        }
        if let Some(found) = objects.resources.get_mut(key) {
            let annotations: Value = content["metadata"]["annotations"].clone();
            *found = FoundObject::Exists(serde_json::from_value(annotations).expect("these are texts"));
        }
        if let Some(found) = objects.contents.get_mut(key) {
            *found = FoundObject::Exists(content);
        }
    }
    if let ObjectCommand::UpdateNodes(changes) = command {
        for change in changes {
            let mut nodes = objects.nodes.iter_mut().flatten();
            if let Some(node) = nodes.find(|node| node.name == change.name) {
                let set =
                    change.labels.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?)));
                node.labels.extend(set);
            }
        }
    }
}

/// Decides with everything that does not differ between the cases.
fn decide_on<T>(
    (cluster, options, status): (&Cluster, &KubernetesOptions, &FleetStatus),
    image: Option<&str>,
    act: impl FnOnce(&Input<'_>) -> T,
) -> T {
    let containers = ContainerOptions::read(&RawJson::default()).expect("absent options can be read");
    let (nothing, reboots) = (BTreeSet::new(), Items::<RebootQueueEntry>::new());
    let mut settings = Settings { kubernetes: KubernetesMode::Act, ..Settings::default() };
    if let Some(image) = image {
        image.clone_into(&mut settings.images.kubernetes);
    }
    act(&Input {
        cluster,
        options: &containers,
        status,
        now: OffsetDateTime::UNIX_EPOCH,
        backing_off: &nothing,
        restarts: &nothing,
        restore: None,
        stale: &nothing,
        authorities: None,
        kubernetes: Some(KubernetesPart {
            options: Ok(options),
            busy: &nothing,
            settling: &nothing,
            ending: &BTreeSet::new(),
            rollout: Ok(None),
            reboots: &reboots,
            reboot_ends: &BTreeMap::new(),
            rotation: Ok(None),
            objects: ObjectsPart::default(),
        }),
        settings: &settings,
    })
}

fn median_duration(mut act: impl FnMut() -> Duration) -> Duration {
    act();
    let mut times: Vec<Duration> = (0..RUNS).map(|_| act()).collect();
    times.sort_unstable();
    times[RUNS / 2]
}

fn time_decision(input: &Input<'_>, phase: &OperationPhase) -> Duration {
    let began = Instant::now();
    let decision: Decision = black_box(decide(black_box(input)));
    let took = began.elapsed();
    assert_eq!(decision.phase, *phase, "the case is what it says: {:?}", decision.held.first());
    took
}

fn print(what: &str, time: Duration) {
    println!("| {what:<44} | {:>7.2} ms |", time.as_secs_f64() * 1e3);
}

fn main() {
    let (cluster, options) = (make_cluster(), read_options("{}"));
    let mut calm = running_fleet(&cluster, &options, &|_| String::new());
    for _ in 0..PASSES {
        let decision = decide_on((&cluster, &options, &calm), None, decide);
        let objects = calm.kubernetes.as_mut().and_then(|answers| answers.objects.as_mut());
        let objects = objects.expect("an API server answers");
        for command in decision.operations.iter().flat_map(|operation| &operation.commands) {
            match command {
                Command::Object(command) => carry_out(objects, command),
                other => panic!("only objects are due, not {other}"),
            }
        }
    }
    println!("| {:<44} | {:>10} |", "1,000 nodes", "wall");
    let calm_decision = || {
        decide_on((&cluster, &options, &calm), None, |input| time_decision(input, &OperationPhase::Completed))
    };
    print("nothing to do", median_duration(calm_decision));

    let other = read_options(OTHER);
    let outdated = || {
        decide_on((&cluster, &other, &calm), Some("kubernetes:2"), |input| {
            time_decision(input, &OperationPhase::K8sStart)
        })
    };
    print("everything is outdated", median_duration(outdated));

    // A comment is no difference, but each text is another one.
    let strange =
        running_fleet(&cluster, &options, &|node| format!("# {}\n", node.address.replace('.', "-")));
    let unseen = || {
        let other = read_options(OTHER);
        decide_on((&cluster, &other, &strange), Some("kubernetes:2"), |input| {
            time_decision(input, &OperationPhase::K8sStart)
        })
    };
    print("everything is outdated, with unseen files", median_duration(unseen));
}

//! Scripted histories of a cluster whose components of Kubernetes start, change and fail.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_datacenter_sim::nodes::{ApiLoad, BAD_ARGUMENT};
use madako_domain::component::Component;
use madako_domain::keys;
use madako_domain::resource::ResourceKey;
use madako_domain::rollout::Rollout;
use madako_simulation::planted::keep_quiet;
use serde_json::json;
use tokio::time::Instant;

use super::site::{Disturbance, INTERVAL, OUTAGE, Site, Stopped, address};
use super::stories::{Point, Stage, Story};
use super::{at_a_site, disturb, play};

/// Longer than waves, their watches and all back-offs.
pub const LONG: Duration = Duration::from_secs(1800);
pub const CONTROL_PLANE: [usize; 3] = [0, 1, 2];
pub const WORKERS: [usize; 2] = [3, 4];
const CHANGED_CONTROL_PLANE: [usize; 3] = [0, 1, 3];
const CHANGED_WORKERS: [usize; 2] = [2, 4];

/// Files below `/etc/kubernetes` on each node.
const FILES: [&str; 7] = [
    "kubelet/config.yml",
    "kubelet/kubeconfig",
    "pki/ca.crt",
    "pki/kubelet.crt",
    "pki/kubelet.key",
    "proxy/config.yml",
    "proxy/kubeconfig",
];

/// Further files on control plane nodes.
const CONTROL_PLANE_FILES: [&str; 14] = [
    "apiserver/encryption.yml",
    "controller-manager/kubeconfig",
    "pki/aggregation-ca.crt",
    "pki/aggregation.crt",
    "pki/aggregation.key",
    "pki/apiserver-etcd-client.crt",
    "pki/apiserver-etcd-client.key",
    "pki/apiserver.crt",
    "pki/apiserver.key",
    "pki/etcd-ca.crt",
    "pki/service-account.crt",
    "pki/service-account.key",
    "scheduler/config.yml",
    "scheduler/kubeconfig",
];

/// The operations that set a cluster up, in their order: the others of the control plane, and kubelets with boot taints, wait
/// until an API server is healthy.
const ORDER: [&str; 16] = [
    "upgrade",
    "rivers-bootstrap",
    "etcd-rivers-bootstrap",
    "etcd-bootstrap",
    "kube-apiserver-restart",
    "kube-proxy-bootstrap",
    "kube-controller-manager-bootstrap",
    "kube-scheduler-bootstrap",
    "kubelet-bootstrap",
    "resource-apply",
    "create-cluster-dns-configmap",
    "create-endpoints",
    "create-endpointslice",
    "create-etcd-service",
    // The Service of the DNS server has its address.
    "create-node-dns-configmap",
    // Kubelets have registered their nodes.
    "update-node",
];

/// Commands of Kubernetes' operations in the stories.
const COMMANDS: [&str; 49] = [
    "kube-apiserver-restart: image-pull",
    "kube-apiserver-restart: make-dirs",
    "kube-apiserver-restart: make-files",
    "kube-apiserver-restart: prepare-apiserver-files",
    "kube-apiserver-restart: run-container",
    "kube-apiserver-restart: stop-container",
    "kube-apiserver-restart: updateEndpointSliceCommand",
    "kube-apiserver-restart: updateEndpointsCommand",
    "kube-apiserver-restart: wait-for-proxies",
    "kube-controller-manager-bootstrap: image-pull",
    "kube-controller-manager-bootstrap: make-files",
    "kube-controller-manager-bootstrap: prepare-controller-manager-files",
    "kube-controller-manager-bootstrap: run-container",
    "kube-controller-manager-restart: image-pull",
    "kube-controller-manager-restart: run-container",
    "kube-proxy-bootstrap: image-pull",
    "kube-proxy-bootstrap: make-files",
    "kube-proxy-bootstrap: prepare-proxy-files",
    "kube-proxy-bootstrap: run-container",
    "kube-proxy-restart: image-pull",
    "kube-proxy-restart: make-files",
    "kube-proxy-restart: prepare-proxy-files",
    "kube-proxy-restart: run-container",
    "kube-scheduler-bootstrap: image-pull",
    "kube-scheduler-bootstrap: make-files",
    "kube-scheduler-bootstrap: prepare-scheduler-files",
    "kube-scheduler-bootstrap: run-container",
    "kube-scheduler-restart: image-pull",
    "kube-scheduler-restart: make-files",
    "kube-scheduler-restart: prepare-scheduler-files",
    "kube-scheduler-restart: run-container",
    "kubelet-bootstrap: empty-dir",
    "kubelet-bootstrap: image-pull",
    "kubelet-bootstrap: install-cni",
    "kubelet-bootstrap: make-dirs",
    "kubelet-bootstrap: make-files",
    "kubelet-bootstrap: prepare-kubelet-files",
    "kubelet-bootstrap: retaint-before-kubelet-boot",
    "kubelet-bootstrap: run-container",
    "kubelet-restart: image-pull",
    "kubelet-restart: make-files",
    "kubelet-restart: prepare-kubelet-config",
    "kubelet-restart: run-container",
    "stop-kube-apiserver: stop-container",
    "stop-kube-apiserver: updateEndpointSliceCommand",
    "stop-kube-apiserver: updateEndpointsCommand",
    "stop-kube-apiserver: wait-for-proxies",
    "stop-kube-controller-manager: kill-containers",
    "stop-kube-scheduler: kill-containers",
];

pub async fn bootstrap(site: &mut Site) -> Result<(), Stopped> {
    bootstrap_with_image(site, "kubernetes:1").await
}

pub async fn bootstrap_with_image(site: &mut Site, image: &str) -> Result<(), Stopped> {
    site.kubernetes = Some(image.to_owned());
    site.images("etcd:1").await;
    site.options = json!({"kubelet": {
        "boot_taints": [{"key": "example.com/boot", "value": "", "effect": "NoSchedule"}],
        "cni_conf_file": {"name": "10-test.conf", "content": "{}"},
    }});
    site.cluster(&CONTROL_PLANE, &WORKERS).await;
    site.settled(&CONTROL_PLANE).await?;
    // The pass after their registration labels the nodes.
    site.pass(INTERVAL).await;
    site.settled(&CONTROL_PLANE).await?;
    for number in CONTROL_PLANE.into_iter().chain(WORKERS) {
        check_node(site, number);
    }
    if !site.is_disturbed {
        check_order(site);
    }
    Ok(())
}

/// A node has its containers and files, and its Node object has the boot taints.
fn check_node(site: &Site, number: usize) {
    let name = address(number);
    let view = site.nodes.view_node(&name).unwrap();
    let is_control_plane = CONTROL_PLANE.contains(&number);
    let components = Component::ALL.into_iter().filter(|it| is_control_plane || !it.is_of_control_plane());
    let wanted: BTreeSet<&str> = components.map(|component| component.name()).collect();
    let kubernetes_certificate_request = |name: &&str| name.starts_with("kube");
    let running: BTreeSet<&str> =
        view.containers.keys().map(String::as_str).filter(kubernetes_certificate_request).collect();
    assert_eq!(running, wanted, "{name}");
    let files: BTreeSet<&str> =
        view.files.keys().filter_map(|path| path.strip_prefix("/etc/kubernetes/")).collect();
    let mut wanted: BTreeSet<&str> = FILES.into();
    if is_control_plane {
        wanted.extend(CONTROL_PLANE_FILES);
    }
    assert_eq!(files, wanted, "{name}");
    assert!(view.files.contains_key("/etc/cni/net.d/10-test.conf"), "{name}");
    assert!(view.files.contains_key("/opt/cni/bin/loopback"), "{name}");
    let taints = site.nodes.registered_taints()[&name].clone();
    let keys: Vec<&str> = taints.iter().map(|taint| taint.key.as_str()).collect();
    assert_eq!(keys, ["example.com/boot"], "{name}");
}

/// Each operation of the bootstrap begins after those before it.
fn check_order(site: &Site) {
    let records = site.records.lock().unwrap();
    let mut begun: Vec<&str> = Vec::new();
    for recorded in records.iter() {
        let operation = recorded.record.operation.as_str();
        if !begun.contains(&operation) {
            begun.push(operation);
        }
    }
    assert_eq!(begun, ORDER);
}

/// The cluster after its bootstrap.
pub async fn live(site: &mut Site) -> Result<(), Stopped> {
    bootstrap(site).await?;
    // Controllers take the boot taints off when a node is ready for pods.
    for number in CONTROL_PLANE.into_iter().chain(WORKERS) {
        site.nodes.remove_taints(&address(number));
    }
    // A kubelet starts again only with them.
    site.nodes.end_container(&address(3), Component::Kubelet);
    site.settled(&CONTROL_PLANE).await?;
    // An API server starts again beside the others.
    site.nodes.end_container(&address(1), Component::ApiServer);
    site.settled(&CONTROL_PLANE).await?;
    // Longer than a check of the API servers is valid, so that the judge excuses no end of the restarted one.
    site.pass(INTERVAL).await;
    // API servers get another argument, one at a time. One ends just before another one is stopped, which must then wait (I13).
    site.options["kube-api"] = json!({"extra_args": ["--v=2"]});
    let known = site.records.lock().unwrap().len();
    site.cluster(&CONTROL_PLANE, &WORKERS).await;
    let restarted = site.wait_begun("kube-apiserver-restart", known).await?;
    let other = CONTROL_PLANE.into_iter().map(address).find(|other| !restarted.contains(other));
    // A planted bug restarts all of them.
    if let Some(other) = other {
        site.nodes.end_container(&other, Component::ApiServer);
    }
    site.settled(&CONTROL_PLANE).await?;
    // All components get another image.
    site.kubernetes = Some("kubernetes:2".to_owned());
    site.images("etcd:1").await;
    site.settled(&CONTROL_PLANE).await?;
    // A worker takes the place of a control plane node, which keeps no component of the control plane.
    site.cluster(&CHANGED_CONTROL_PLANE, &CHANGED_WORKERS).await;
    site.settled(&CHANGED_CONTROL_PLANE).await
}

/// Kubelets get an argument with which none of them serves.
pub async fn fail_roll(site: &mut Site) -> Result<(), Stopped> {
    bootstrap(site).await?;
    // One node at a time, so that nodes are left when the roll halts.
    site.max_concurrent_updates = Some(1);
    site.images("etcd:1").await;
    let kubelet = site.options["kubelet"].clone();
    site.options["kubelet"]["extra_args"] = json!([BAD_ARGUMENT]);
    site.cluster(&CONTROL_PLANE, &WORKERS).await;
    let rollout = site.halted().await?;
    // No further node is updated, however long the roll is halted.
    let before = with_bad_argument(site, Component::Kubelet);
    site.pass(LONG).await;
    if site.world.facts.has_findings() {
        return Err(Stopped);
    }
    if !site.is_disturbed {
        let failed: BTreeSet<String> = rollout.failed.keys().cloned().collect();
        assert_eq!(failed.len(), Rollout::halt_limit(CONTROL_PLANE.len() + WORKERS.len()), "{rollout:?}");
        let after = with_bad_argument(site, Component::Kubelet);
        assert_eq!((&before, &after), (&failed, &failed));
        assert_eq!(site.rollout().await, rollout, "the next leader finds why the roll is halted");
    }
    site.options["kubelet"] = kubelet;
    site.options["kubelet"]["extra_args"] = json!(["--v=2"]);
    site.cluster(&CONTROL_PLANE, &WORKERS).await;
    let mut rollout = site.rollout().await;
    rollout.resume();
    site.put(keys::ROLLOUT, &serde_json::to_string(&rollout).unwrap()).await;
    site.settled(&CONTROL_PLANE).await?;
    // The last wave ends after its nodes were Ready for a while.
    site.pass(OUTAGE).await;
    let rollout = site.rollout().await;
    let is_over = rollout.failed.is_empty() && rollout.watched.is_empty() && !rollout.halted;
    assert!(is_over || site.is_disturbed, "{rollout:?}");
    // Neither a node that has become good after its watch nor one that has left the cluster is a failure of the next roll.
    let mut left = rollout;
    left.failed = [address(1), "10.9.9.9".to_owned()].map(|node| (node, "not Ready".to_owned())).into();
    site.put(keys::ROLLOUT, &serde_json::to_string(&left).unwrap()).await;
    site.pass(OUTAGE).await;
    let failed = site.rollout().await.failed;
    assert!(failed.is_empty() || site.is_disturbed, "{failed:?}");
    Ok(())
}

/// API servers get an argument with which none of them serves, and then another one.
pub async fn correct_argument(site: &mut Site) -> Result<(), Stopped> {
    bootstrap(site).await?;
    site.pass(INTERVAL).await;
    site.options["kube-api"] = json!({"extra_args": [BAD_ARGUMENT]});
    let known = site.records.lock().unwrap().len();
    site.cluster(&CONTROL_PLANE, &WORKERS).await;
    site.wait_begun("kube-apiserver-restart", known).await?;
    site.pass(OUTAGE).await;
    if site.world.facts.has_findings() {
        return Err(Stopped);
    }
    let with_it = with_bad_argument(site, Component::ApiServer).len();
    assert!(with_it == 1 || site.is_disturbed, "{with_it} API servers have the bad argument");
    // The server that does not serve restarts first.
    site.options["kube-api"] = json!({"extra_args": ["--v=2"]});
    site.cluster(&CONTROL_PLANE, &WORKERS).await;
    site.settled(&CONTROL_PLANE).await
}

/// Addresses of the nodes whose component has the bad argument.
fn with_bad_argument(site: &Site, component: Component) -> BTreeSet<String> {
    let has_it = |address: &String| {
        let node = site.nodes.view_node(address).unwrap();
        node.containers.get(component.name()).is_some_and(|it| it.extra.args == [BAD_ARGUMENT])
    };
    CONTROL_PLANE.into_iter().chain(WORKERS).map(address).filter(has_it).collect()
}

#[test]
fn a_bad_argument_costs_one_api_server_whenever_the_leader_ends() {
    keep_quiet();
    let points = play(Story::BadArgument, &[]).points.into_iter();
    let restarts: Vec<Point> = points.filter(|point| point.of.0 == "kube-apiserver-restart").collect();
    assert!(restarts.len() > 8, "{restarts:?}");
    for point in restarts.iter().step_by(PARTS) {
        let played = Story::BadArgument.play(&[(point.at, Disturbance::Killed)]);
        assert_eq!(played.wrong, [""; 0], "{point:?}: {}", played.why);
    }
}

/// The first restart of a kubelet is that of the first failed node.
#[test]
fn a_roll_whose_kubelets_fail_halts_whenever_the_leader_ends_and_goes_on_after_an_operator_resumes_it() {
    keep_quiet();
    let points = play(Story::FailedRoll, &[]).points.into_iter();
    let restarts: Vec<Point> = points.filter(|point| point.of.0 == "kubelet-restart").collect();
    assert!(restarts.len() > 8, "{restarts:?}");
    for point in restarts {
        let played = Story::FailedRoll.play(&[(point.at, Disturbance::Killed)]);
        assert_eq!(played.wrong, [""; 0], "{point:?}: {}", played.why);
    }
}

/// The sizes of the waves in which all kubelets get another argument.
async fn waves_of_kubelets(site: &mut Site, argument: &str) -> Vec<usize> {
    let known = site.records.lock().unwrap().len();
    site.options["kubelet"]["extra_args"] = json!([argument]);
    site.cluster(&CONTROL_PLANE, &WORKERS).await;
    site.settled(&CONTROL_PLANE).await.unwrap();
    site.pass(OUTAGE).await;
    let records = site.records.lock().unwrap();
    let restarts = records[known..].iter().filter(|it| it.record.operation == "kubelet-restart");
    let waves: BTreeMap<i64, usize> = restarts.map(|it| (it.record.id, it.record.targets.len())).collect();
    waves.into_values().collect()
}

#[test]
fn waves_stay_small_while_an_api_server_is_slow() {
    at_a_site(async |site| {
        bootstrap(site).await.unwrap();
        site.pass(OUTAGE).await;
        assert_eq!(waves_of_kubelets(site, "--v=2").await, [1, 2, 2], "twice as many, and the rest");
        site.nodes.set_api_load(&address(1), ApiLoad::Takes(Duration::from_secs(1)));
        site.pass(Duration::from_secs(60)).await;
        assert_eq!(waves_of_kubelets(site, "--v=3").await, [1; 5]);
        site.nodes.set_api_load(&address(1), ApiLoad::TooMany);
        assert_eq!(waves_of_kubelets(site, "--v=4").await, [1; 5]);
        site.nodes.set_api_load(&address(1), ApiLoad::Takes(Duration::ZERO));
        site.pass(OUTAGE).await;
        assert_eq!(waves_of_kubelets(site, "--v=5").await, [1, 2, 2]);
    });
}

/// Addresses that are ready in the Endpoints of the API servers.
fn ready_servers(site: &Site) -> BTreeSet<String> {
    let objects = site.nodes.objects();
    let endpoints = objects.get(&ResourceKey::parse("Endpoints/default/kubernetes").unwrap());
    let ready = endpoints.and_then(|found| found["subsets"][0]["addresses"].as_array().cloned());
    ready.unwrap_or_default().iter().map(|it| it["ip"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_address_becomes_ready_after_its_api_server_passed_three_checks_a_second_apart() {
    at_a_site(async |site| {
        bootstrap(site).await.unwrap();
        site.pass(OUTAGE).await;
        site.options["kube-api"] = json!({"extra_args": ["--v=2"]});
        site.cluster(&CONTROL_PLANE, &WORKERS).await;
        let components = site.nodes.components_port();
        let mut serving_since: BTreeMap<String, Instant> = BTreeMap::new();
        let (mut ready, mut returned) = (ready_servers(site), BTreeSet::new());
        assert_eq!(ready.len(), CONTROL_PLANE.len());
        let patience = Instant::now() + LONG;
        while returned.len() < CONTROL_PLANE.len() {
            assert!(Instant::now() < patience, "only {returned:?}");
            site.pass(Duration::from_millis(250)).await;
            for server in CONTROL_PLANE.into_iter().map(address) {
                match components.check(Component::ApiServer, &server).await {
                    Ok(()) => {
                        serving_since.entry(server).or_insert_with(Instant::now);
                    }
                    Err(_) => {
                        serving_since.remove(&server);
                    }
                }
            }
            let now = ready_servers(site);
            for server in now.difference(&ready) {
                let since = serving_since.get(server).expect("a server that is ready serves");
                assert!(since.elapsed() >= Duration::from_secs(2), "{server}: {:?}", since.elapsed());
                returned.insert(server.clone());
            }
            ready = now;
        }
    });
}

/// The points of one test: every third one, since a test has five minutes. The first part stands for all in `make test`.
const PARTS: usize = 3;

/// Plays the life of a cluster with a disturbance at each stage of each command on components, the first time that it comes.
fn disturb_once(part: usize, disturbance: impl Fn(&Point) -> Disturbance) {
    keep_quiet();
    let mut observed = BTreeSet::new();
    for point in play(Story::KubernetesLife, &[]).points {
        let (operation, command, stage) = &point.of;
        if is_of_kubernetes(operation)
            && observed.insert((operation.clone(), command.clone(), *stage))
            && observed.len() % PARTS == part
        {
            let played = Story::KubernetesLife.play(&[(point.at, disturbance(&point))]);
            assert_eq!(played.wrong, [""; 0], "{point:?}: {}", played.why);
        }
    }
    assert!(observed.len() > 10 * PARTS, "{observed:?}");
}

fn is_of_kubernetes(operation: &str) -> bool {
    operation.starts_with("kube") || operation.starts_with("stop-kube")
}

#[test]
fn leaders_killed_during_a_bootstrap_of_kubernetes_change_nothing_of_its_result() {
    disturb(Story::Kubernetes, |_| Disturbance::Killed);
}

mod leaders_killed_while_components_restart {
    use super::*;

    #[test]
    fn the_first_part_of_the_points_changes_nothing_of_the_result() {
        disturb_once(0, |_| Disturbance::Killed);
    }

    #[test]
    #[ignore = "minutes: make test-long"]
    fn the_second_part_of_the_points_changes_nothing_of_the_result() {
        disturb_once(1, |_| Disturbance::Killed);
    }

    #[test]
    #[ignore = "minutes: make test-long"]
    fn the_third_part_of_the_points_changes_nothing_of_the_result() {
        disturb_once(2, |_| Disturbance::Killed);
    }
}

mod nodes_that_fail_while_components_restart {
    use super::*;

    #[test]
    fn the_first_part_of_the_points_changes_nothing_of_the_result() {
        disturb_once(0, |point| Disturbance::Dead(point.node));
    }

    #[test]
    #[ignore = "minutes: make test-long"]
    fn the_second_part_of_the_points_changes_nothing_of_the_result() {
        disturb_once(1, |point| Disturbance::Dead(point.node));
    }

    #[test]
    #[ignore = "minutes: make test-long"]
    fn the_third_part_of_the_points_changes_nothing_of_the_result() {
        disturb_once(2, |point| Disturbance::Dead(point.node));
    }
}

#[test]
fn the_stories_have_each_command_on_components() {
    keep_quiet();
    let mut stages: BTreeMap<String, BTreeSet<Stage>> = BTreeMap::new();
    for point in play(Story::KubernetesLife, &[]).points {
        let (operation, command, stage) = point.of;
        if is_of_kubernetes(&operation) {
            stages.entry(format!("{operation}: {command}")).or_default().insert(stage);
        }
    }
    let found: Vec<&str> = stages.keys().map(String::as_str).collect();
    assert_eq!(found, COMMANDS, "{found:#?}");
}

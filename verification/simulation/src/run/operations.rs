//! Operations on nodes in a simulated run: the nodes, the new images of etcd and of Kubernetes in the middle of the run, and
//! the state that the nodes must have at the end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::nodes::UnsignedAuthorities;
use madako_domain::cluster::Cluster;
use madako_domain::component::Component;
use madako_domain::containers::Container;
use madako_domain::images::ImageName;
use madako_domain::keys;
use madako_domain::restart::RestartRequest;
use madako_faults::{Scenario, Span};
use madako_supervisor::nodes::{KubernetesMode, Settings};

use super::inject::Injector;
use crate::history::History;
use crate::network::Endpoint;
use crate::nodes::{NodeCounts, Nodes, node_ports};
use crate::repair::RepairJudge;
use crate::world::{PREFIX, World};

/// The image of etcd from the middle of a run on: newer than the default one.
const NEXT_ETCD: &str = "ghcr.io/cybozu/etcd:3.5.16.1";

/// The image of Kubernetes from the middle of a run on: of the minor version after that of the default one.
const NEXT_KUBERNETES: &str = "ghcr.io/cybozu/kubernetes:1.31.1.1";

/// Validity of the certificates of members, as the service asks for it: no run is long enough for a renewal.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);

/// Shortest run that must have a restart of a member before the end of its faults: half an hour is left after the rollout.
const RESTARTS_UNDER_FAULTS: Span = Span::from_seconds(3600);

/// Operations that may fail in a minute, averaged over a run: a third of the waits for etcd if it never had a majority.
const MOST_FAILED_A_MINUTE: u64 = 1;

pub(super) fn enable_operations(scenario: &Scenario, seed: u64, world: &mut World) {
    if !scenario.world.runs_operations() {
        return;
    }
    let nodes = Nodes::new(seed, world.registry.clone(), world.history.clone(), world.facts.clone());
    let authorities = Arc::new(UnsignedAuthorities::new(Arc::clone(&world.clock), CERTIFICATE_LIFE));
    let images = Settings::default().images;
    let mut ports = node_ports(&nodes.nodes, authorities, &images.etcd);
    if scenario.world.runs_kubernetes() {
        ports.settings.kubernetes = KubernetesMode::Act;
        *ports.settings.configured_images.image_mut(ImageName::Kubernetes) = images.kubernetes;
        nodes.nodes.set_clock(world.clock.now());
        if let Some(hosts) = &world.hosts {
            nodes.nodes.run_pods_of(&hosts.kubernetes);
        }
    }
    world.operations = Some(ports);
    world.nodes = Some(nodes);
}

/// Time from the begin of a rollout until the operator first looks for held restarts, and between two looks: a rollout takes minutes.
const BETWEEN_LOOKS: Duration = Duration::from_secs(10 * 60);

/// Number of members of etcd from which on the service restarts an outdated member without a request.
const ENOUGH_MEMBERS: usize = 3;

/// A rollout of the service with other images: one instance after the other restarts with them.
pub(super) struct Rollout {
    begins: Duration,
    /// Time of the operator's next look for held restarts.
    looks_at: Duration,
    /// Instances that have not restarted yet; `None` before the beginning.
    waiting: Option<BTreeSet<&'static str>>,
}

impl Rollout {
    pub(super) fn for_length(length: Duration) -> Self {
        let begins = length / 2;
        Self { begins, looks_at: begins + BETWEEN_LOOKS, waiting: None }
    }

    /// Returns the instance to restart now.
    fn next_due_step(&mut self, now: Duration, injector: &mut Injector) -> Option<&'static str> {
        if now < self.begins {
            return None;
        }
        let waiting = self.waiting.get_or_insert_with(|| {
            if let Some(operations) = &mut injector.world.operations {
                let settings = &mut operations.settings;
                NEXT_ETCD.clone_into(settings.configured_images.image_mut(ImageName::Etcd));
                if settings.kubernetes == KubernetesMode::Act {
                    NEXT_KUBERNETES.clone_into(settings.configured_images.image_mut(ImageName::Kubernetes));
                }
            }
            injector.running.keys().copied().collect()
        });
        // An instance that starts later has the new image.
        waiting.retain(|name| injector.running.contains_key(name));
        let reaches_all = |name: &&'static str| {
            let condition =
                injector.world.network.condition_of(Endpoint::Instance(crate::world::instance_number(name)));
            condition.silent == 0
        };
        let name = waiting.iter().copied().find(reaches_all)?;
        waiting.remove(name);
        Some(name)
    }
}

impl Injector {
    /// Asks for the restart of each member with an older image while etcd has too few members for restarts without a request,
    /// as the reason of such a restart advises.
    async fn request_held_restarts(&mut self, now: Duration) {
        let Some(rollout) = self.rollout.as_mut().filter(|rollout| now >= rollout.looks_at) else { return };
        rollout.looks_at = now + BETWEEN_LOOKS;
        let (Some(nodes), Some(cluster)) = (&self.world.nodes, self.world.checker.current_cluster()) else {
            return;
        };
        let is_outdated = |address: &str| {
            let view = nodes.nodes.view_node(address).filter(|view| view.is_on);
            let etcd = view.and_then(|view| view.containers.get(Container::Etcd.name()).cloned());
            etcd.is_some_and(|etcd| etcd.running && etcd.image != NEXT_ETCD)
        };
        let members: Vec<&str> = cluster.control_plane().map(|node| &*node.address).collect();
        if members.len() >= ENOUGH_MEMBERS {
            return;
        }
        let request = RestartRequest { requested_at: self.world.clock.now() };
        let value = serde_json::to_vec(&request).expect("a time is a string of JSON");
        for address in members.into_iter().filter(|address| is_outdated(address)) {
            let key = format!("{PREFIX}{}", keys::etcd_restart(address));
            let done = match self.world.store.operator_client().await {
                Ok(mut client) => client.put(key, value.clone(), None).await.map(|_| ()),
                Err(error) => Err(error),
            };
            let done = done.map_or_else(|error| format!("in vain: {error}"), |()| "done".to_owned());
            self.world
                .history
                .note("operator", format_args!("asks for a restart of etcd on {address}: {done}"));
        }
    }

    /// Restarts the next instance of the rollout, and asks for restarts of etcd.
    pub(super) async fn roll_out(&mut self, now: Duration) {
        self.request_held_restarts(now).await;
        let Some(mut rollout) = self.rollout.take() else { return };
        let name = rollout.next_due_step(now, self);
        self.rollout = Some(rollout);
        if let Some(running) = name.and_then(|name| self.running.remove(name)) {
            let name = name.unwrap_or_default();
            self.world.history.note(name, "restarts with another image of etcd");
            running.instance.stop().await;
            self.world.network.forget(Endpoint::Instance(crate::world::instance_number(name)));
            self.start(name).await;
        }
    }
}

/// Deviations of nodes and records from the required final state: each control plane node is a member of etcd in sync, all
/// containers run, and no record is unfinished. Where the service keeps Kubernetes, each component is as wanted. (The judge of
/// repairs looks for cordons.)
pub(super) async fn find_deviations(injector: &Injector, repairs: &RepairJudge) -> Vec<String> {
    let world = &injector.world;
    let Some(nodes) = &world.nodes else { return Vec::new() };
    let Some(cluster) = world.checker.current_cluster() else { return Vec::new() };
    let mut found = members_of_etcd(nodes, &cluster).await;
    found.extend(unhealthy_containers(nodes, &cluster, &world.history));
    let settings = world.operations.as_ref().map(|operations| &operations.settings);
    let image = settings
        .filter(|settings| settings.kubernetes == KubernetesMode::Act)
        .and_then(|settings| settings.configured_images.0.get(&ImageName::Kubernetes));
    found.extend(image.into_iter().flat_map(|image| misplaced_components(nodes, &cluster, image)));
    found.extend(repairs.unfinished_records().into_iter().map(|record| format!("{record} is unfinished")));
    found
}

async fn members_of_etcd(nodes: &Nodes, cluster: &Cluster) -> Vec<String> {
    let wanted: Vec<String> = cluster.control_plane().map(|node| node.address.clone()).collect();
    let status = match nodes.nodes.etcd_port().status(&wanted).await {
        Ok(status) => status,
        Err(error) => return vec![error.to_string()],
    };
    let mut found = Vec::new();
    if !status.healthy {
        found.push("etcd grants no lease".to_owned());
    }
    let is_good = |address: &String| {
        let own = status.members.iter().find(|member| member.address() == *address);
        own.is_some_and(|member| member.is_in_sync() && !member.learner)
    };
    let lost = wanted.iter().filter(|address| !is_good(address));
    found.extend(lost.map(|address| format!("{address} is not a member of etcd in sync")));
    let others = status.members.iter().filter(|member| !wanted.contains(&member.address().into_owned()));
    found.extend(others.map(|member| format!("{} is still a member of etcd", member.address())));
    found
}

fn unhealthy_containers(nodes: &Nodes, cluster: &Cluster, history: &History) -> Vec<String> {
    let mut found = Vec::new();
    for node in &cluster.nodes {
        let Some(view) = nodes.nodes.view_node(&node.address).filter(|view| view.is_on) else {
            // A machine that left the registry is reported elsewhere.
            history.note("nodes", format_args!("{} has no power at the end", node.address));
            continue;
        };
        for container in Container::ALL {
            let wanted = node.control_plane || container == Container::Rivers;
            let runs = view.containers.get(container.name()).is_some_and(|container| container.running);
            if wanted != runs {
                let is = if runs { "runs" } else { "does not run" };
                found.push(format!("{container} {is} on {}", node.address));
            }
        }
    }
    found
}

/// Components that do not run with this image, or run where they are not wanted, and nodes without a Node object.
fn misplaced_components(nodes: &Nodes, cluster: &Cluster, image: &str) -> Vec<String> {
    let registered = nodes.nodes.registered_taints();
    let mut found = Vec::new();
    for node in &cluster.nodes {
        let Some(view) = nodes.nodes.view_node(&node.address).filter(|view| view.is_on) else { continue };
        for component in Component::ALL {
            let wanted = (node.control_plane || !component.is_of_control_plane()).then_some(image);
            let container = view.containers.get(component.name()).filter(|container| container.running);
            let runs = container.map(|container| container.image.as_str());
            if runs != wanted {
                found.push(format!("{component} on {}: got {runs:?}, expected {wanted:?}", node.address));
            }
        }
        if !registered.contains_key(node.name()) {
            found.push(format!("{} has no Node object", node.address));
        }
    }
    found
}

/// A finding if operations failed so often that they were repeated without a pause: a node is left out for 30 s after its
/// first failure and longer after further ones, and a wait for etcd takes 18 s.
pub(super) fn check_failure_rate(failed: u64, simulated: Duration) -> Option<String> {
    let most = 20 + MOST_FAILED_A_MINUTE * simulated.as_secs() / 60;
    (failed > most).then(|| format!("{failed} operations failed, where at most {most} were expected"))
}

/// The number of restarts that a run must have, for which the new image in the middle of the run asks. In a short run the
/// faults may last until its end.
pub(super) fn required_restarts(length: Span, under_faults: u64, in_all: u64) -> u64 {
    if length < RESTARTS_UNDER_FAULTS { in_all } else { under_faults }
}

/// Events that a run with operations and a drill must contain, and that this run lacks. `restarted`: see
/// [`required_restarts`].
pub(super) fn missing_events(counts: NodeCounts, restarted: u64) -> Vec<String> {
    let NodeCounts { formed, added, promoted, removed, written, .. } = counts;
    let wanted = [
        ("a cluster of etcd formed", formed),
        ("members of etcd added", added),
        ("members of etcd promoted", promoted),
        ("members of etcd removed", removed),
        ("writes acknowledged by etcd", written),
        ("members of etcd restarted", restarted),
    ];
    let missing = wanted.into_iter().filter(|(_, count)| *count == 0);
    missing.map(|(what, _)| format!("never: {what}")).collect()
}

pub(super) fn report_numbers(counts: NodeCounts, restarted: u64) -> [(String, u64); 7] {
    let NodeCounts { effects, added, promoted, removed, written, reinstalled, .. } = counts;
    [
        ("effects on nodes".to_owned(), effects),
        ("members of etcd added".to_owned(), added),
        ("members of etcd promoted".to_owned(), promoted),
        ("members of etcd removed".to_owned(), removed),
        ("writes acknowledged by etcd".to_owned(), written),
        ("machines installed anew".to_owned(), reinstalled),
        ("members of etcd restarted under faults".to_owned(), restarted),
    ]
}

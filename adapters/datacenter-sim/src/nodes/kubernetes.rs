//! The components of Kubernetes on the simulated nodes: the port [`Components`].
//!
//! A component is healthy a while after its start, if its files are there. An API server needs etcd and the rivers of its
//! node. A kubelet registers its node as soon as an API server is healthy.
//!
//! Pods run elsewhere: this world counts those whose containers restart with a kubelet of another minor version.
//! `objects.rs` has the objects.
//!
//! Does not: keep a lease after the end of its holder (the first healthy candidate holds it).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::cluster::Taint;
use madako_domain::component::Component;
use madako_domain::containers::Container;
use madako_domain::deprecated_api::DeprecatedApi;
use madako_domain::kubernetes::drain::{DrainPurpose, Treatment, treatment_of};
use madako_domain::kubernetes::{Pod, PodPhase};
use madako_json::strict::{Tree, yaml};
use madako_protocol::components::Components;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::node::{ContainerSpec, FileContent, NodeAction};
use madako_protocol::permit::Permit;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep_until};

use super::SimulatedNodes;
use super::faults::{NetworkIsland, NodeFault};
use super::limits::{COMPONENT_DEADLINE, COMPONENT_START_TAKES, LATENCY};
use super::log::{Effect, KubernetesFact, Observed};
use super::machine::Machine;
use super::objects::kubernetes_version_of_image;
use super::world::World;

/// An argument that keeps a component from serving.
pub const BAD_ARGUMENT: &str = "--no-such-flag";
/// The load of an API server, as its answers to lists show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiLoad {
    /// An answer takes so long, and at least the time of the network.
    Takes(Duration),
    /// It refuses lists with status 429.
    TooMany,
}

/// The option of a kubelet with the name of its Node object.
const NODE_NAME: &str = "--hostname-override=";

/// A file without which a component does not serve.
fn needed_file(component: Component) -> &'static str {
    match component {
        Component::ApiServer => "/etc/kubernetes/pki/apiserver.key",
        Component::ControllerManager => "/etc/kubernetes/controller-manager/kubeconfig",
        Component::Scheduler => "/etc/kubernetes/scheduler/kubeconfig",
        Component::Kubelet => "/etc/kubernetes/kubelet/config.yml",
        Component::Proxy => "/etc/kubernetes/proxy/config.yml",
    }
}

pub(super) fn node_name(machine: &Machine) -> Option<String> {
    let kubelet = machine.containers.get(Component::Kubelet.name()).filter(|ran| ran.status.running)?;
    let name = kubelet.args().find_map(|argument| argument.strip_prefix(NODE_NAME));
    name.map(str::to_owned)
}

/// The taints with which a kubelet registers its node.
fn registration_taints(machine: &Machine) -> Vec<Taint> {
    let path = Component::Kubelet.configuration_path();
    let Some(FileContent::Public(text)) = path.and_then(|path| machine.files.get(path)) else {
        return Vec::new();
    };
    // The runner writes the file from a tree. A file that another program broke has no taints.
    let tree = yaml::read_yaml("kubelet", text).unwrap_or(Tree::Null);
    let text =
        |taint: &Tree, field: &str| taint.get(field).and_then(Tree::text).unwrap_or_default().to_owned();
    let taint = |taint: &Tree| Taint {
        key: text(taint, "key"),
        value: text(taint, "value"),
        effect: text(taint, "effect"),
        ..Taint::default()
    };
    tree.get("registerWithTaints")
        .map(|taints| taints.items().iter().map(taint).collect())
        .unwrap_or_default()
}

impl World {
    pub(super) fn is_healthy(&self, component: Component, address: &str) -> bool {
        if component == Component::ApiServer && self.objects.has_server(address) {
            return true;
        }
        let Some(machine) = self.nodes.get(address).filter(|_| self.answers_requests(address)) else {
            return false;
        };
        let has_store = || {
            machine.containers.get(Container::EtcdRivers.name()).is_some_and(|ran| ran.status.running)
                && self.etcd.values().any(|etcd| etcd.quorum == Some(NetworkIsland::Mainland))
        };
        self.serves(component, machine) && (component != Component::ApiServer || has_store())
    }

    /// True if a component runs for long enough, with its file and no bad argument.
    fn serves(&self, component: Component, machine: &Machine) -> bool {
        machine.containers.get(component.name()).is_some_and(|ran| {
            ran.status.running
                && ran.since.is_some_and(|since| since + COMPONENT_START_TAKES <= self.now)
                && !ran.status.foreign
                && machine.files.contains_key(needed_file(component))
                && ran.args().all(|argument| argument != BAD_ARGUMENT)
        })
    }

    /// The nodes whose component an effect restarted and which does not serve since, with the time since that restart. Neither
    /// a lost power nor a later start by an effect is such a restart.
    fn unready_since_restart(&self, component: Component) -> BTreeMap<String, Duration> {
        let of_component = self.restarted.iter().filter(|((restarted, _), _)| *restarted == component);
        let unready = of_component.filter_map(|((_, address), at)| {
            let machine = self.nodes.get(address)?;
            let ran = machine.containers.get(component.name())?;
            let is_same = ran.status.running && ran.since == Some(*at);
            (is_same && !self.serves(component, machine)).then(|| (address.clone(), self.now - *at))
        });
        unready.collect()
    }

    /// Notes the restart of a kubelet or proxy by an action that has just happened.
    fn note_restart(&mut self, effect: &Effect, action: &NodeAction) {
        let NodeAction::RunContainer { spec, restart: true } = action else { return };
        let Ok(component @ (Component::Kubelet | Component::Proxy)) = spec.container.as_str().parse() else {
            return;
        };
        let machine = self.nodes.get(&effect.address);
        let ran = machine.and_then(|machine| machine.containers.get(component.name()));
        if ran.and_then(|ran| ran.since) != Some(self.now) {
            return;
        }
        self.restarted.remove(&(component, effect.address.clone()));
        let unready = self.unready_since_restart(component);
        self.restarted.insert((component, effect.address.clone()), self.now);
        let fact = KubernetesFact::Restarted { effect: effect.clone(), component, unready };
        self.note(Observed::Kubernetes(fact));
    }

    /// Counts the pods whose containers restart with a kubelet of another minor version than `before`, apart from those that a
    /// drain leaves in place.
    fn count_restarted_pods(&mut self, effect: &Effect, before: Option<u64>) {
        let after =
            self.image_of(&effect.address, Component::Kubelet.name()).map(|image| minor_version(image));
        let node = self.nodes.get(&effect.address).and_then(node_name);
        let (Some(pods), Some(node)) = (&self.pods, node) else { return };
        if before.is_none() || before == after {
            return;
        }
        let moves = |pod: &Pod| {
            let treatment = treatment_of(pod, &BTreeSet::new(), DrainPurpose::Reboot);
            pod.phase == PodPhase::Running && treatment != Treatment::Stay
        };
        let all = pods.with_cluster(|cluster| cluster.pods());
        let count = all.iter().filter(|(on, pod)| on.as_ref() == Some(&node) && moves(pod)).count();
        if count > 0 {
            let known = self.restarted_pods.get(&effect.address).map_or(0, |(known, _)| *known);
            self.restarted_pods.insert(effect.address.clone(), (known + count, self.now));
        }
    }

    fn load_of(&self, address: &str) -> ApiLoad {
        self.api_load.get(address).copied().unwrap_or(ApiLoad::Takes(Duration::ZERO))
    }

    /// The nodes with an API server, and whether each is healthy.
    fn api_servers(&self) -> BTreeMap<String, bool> {
        let has_server =
            |(_, machine): &(&String, &Machine)| machine.containers.contains_key(Component::ApiServer.name());
        let servers = self.nodes.iter().filter(has_server);
        servers
            .map(|(address, _)| (address.clone(), self.is_healthy(Component::ApiServer, address)))
            .collect()
    }

    /// Changes the world, and notes the API servers that become healthy, or are healthy no more.
    pub(crate) fn note_api_servers<R>(&mut self, change: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.api_servers();
        let changed = change(self);
        for (address, was_healthy) in before {
            match (was_healthy, self.is_healthy(Component::ApiServer, &address)) {
                (true, false) => self.api_lost.insert(address, self.now),
                (false, true) => self.api_gained.insert(address, self.now),
                _ => None,
            };
        }
        changed
    }

    /// Time for which a healthy API server is so.
    fn healthy_time_of(&self, address: &str) -> Duration {
        let gained = *self.api_gained.get(address).unwrap_or(&self.began());
        let machine = self.nodes.get(address);
        let ran = machine.and_then(|machine| machine.containers.get(Component::ApiServer.name()));
        let started = ran.and_then(|ran| ran.since).map_or(gained, |since| since + COMPONENT_START_TAKES);
        self.now - gained.max(started)
    }

    /// Time for which an API server is not healthy; `None`: it is.
    fn unhealthy_time_of(&self, address: &str) -> Option<Duration> {
        let lost = *self.api_lost.get(address).unwrap_or(&self.began());
        (!self.is_healthy(Component::ApiServer, address)).then(|| self.now - lost)
    }

    /// Notes a change of the ready Endpoints, and the API servers that are ready and were not `before`.
    pub(super) fn note_ready_servers(&mut self, before: &BTreeSet<String>) {
        let ready = self.objects.ready_endpoints();
        if ready != *before {
            let servers = self.api_servers();
            let healthy = servers.iter().filter(|(_, is_healthy)| **is_healthy);
            let healthy_for = healthy.map(|(address, _)| self.healthy_time_of(address)).max();
            let fact = KubernetesFact::EndpointsChanged { is_ready: !ready.is_empty(), healthy_for };
            self.note(Observed::Kubernetes(fact));
        }
        for address in ready.difference(before) {
            let has_served = self.nodes.get(address).is_none_or(|machine| {
                let server = machine.containers.get(Component::ApiServer.name());
                let is_running = server.is_some_and(|ran| ran.status.running);
                !is_running || self.serves(Component::ApiServer, machine)
            });
            let fact = KubernetesFact::ServerReady { address: address.clone(), has_served };
            self.note(Observed::Kubernetes(fact));
        }
    }

    /// Registers the nodes whose kubelets reach an API server. A new Node object has the taints of its kubelet's
    /// configuration.
    pub(crate) fn register(&mut self) {
        if !self.api_servers().values().any(|is_healthy| *is_healthy) {
            return;
        }
        if self.nodes.keys().any(|address| self.is_healthy(Component::ControllerManager, address)) {
            self.objects.initialize();
        }
        let ready: Vec<(String, Vec<Taint>)> = self
            .nodes
            .iter()
            .filter(|(address, _)| self.is_healthy(Component::Kubelet, address))
            .filter_map(|(_, machine)| {
                let since = machine.containers.get(Component::Kubelet.name())?.since;
                let name = node_name(machine).filter(|name| !self.registered.contains_key(name))?;
                (!self.objects.is_removed(&name, since)).then(|| (name, registration_taints(machine)))
            })
            .collect();
        self.registered.extend(ready);
    }

    fn image_of(&self, address: &str, container: &str) -> Option<&String> {
        Some(&self.nodes.get(address)?.containers.get(container)?.status.image)
    }

    /// The start of a component with another image, as it would be noted.
    fn image_change<'a>(
        &self,
        effect: &Effect,
        action: &'a NodeAction,
    ) -> Option<(&'a ContainerSpec, KubernetesFact)> {
        let NodeAction::RunContainer { spec, .. } = action else { return None };
        let component: Component = spec.container.as_str().parse().ok()?;
        if self.image_of(&effect.address, component.name()) == Some(&spec.image) {
            return None;
        }
        let minor_of = |address: &str, component: Component| {
            self.image_of(address, component.name()).map(|image| minor_version(image))
        };
        let healthy = self.nodes.keys().filter(|it| self.is_healthy(Component::ApiServer, it));
        let server = |address: &String| {
            let minor = minor_of(address, Component::ApiServer)?;
            Some((address.clone(), (minor, self.healthy_time_of(address))))
        };
        let others = self.nodes.iter().filter(|(address, _)| **address != effect.address);
        let on_nodes = others.flat_map(|(_, machine)| {
            let of_nodes = [Component::Kubelet, Component::Proxy];
            of_nodes.into_iter().filter_map(|component| machine.containers.get(component.name()))
        });
        let running = on_nodes.filter(|ran| ran.status.running);
        let fact = KubernetesFact::ImageChanged {
            effect: effect.clone(),
            component,
            minor: minor_version(&spec.image),
            servers: healthy.filter_map(server).collect(),
            oldest_on_nodes: running.map(|ran| minor_version(&ran.status.image)).min(),
        };
        Some((spec, fact))
    }

    /// Notes what an action changes of Kubernetes.
    pub(crate) fn watch_kubernetes<R>(
        &mut self,
        effect: &Effect,
        action: &NodeAction,
        act: impl FnOnce(&mut Self) -> R,
    ) -> R {
        self.register();
        let before = self.api_servers();
        let name = |world: &Self| world.nodes.get(&effect.address).and_then(node_name);
        let ran_before = name(self);
        let others = before.keys().filter(|address| **address != effect.address);
        let others = others.map(|address| (address.clone(), self.unhealthy_time_of(address))).collect();
        let healthy_for = self.healthy_time_of(&effect.address);
        let changes = self.image_change(effect, action);
        // The pods of a node outlive a kubelet that ends, and restart with the next one.
        let kubelet =
            self.image_of(&effect.address, Component::Kubelet.name()).map(|image| minor_version(image));
        let result = self.note_api_servers(act);
        let runs = |world: &Self, address: &str| {
            let server =
                world.nodes.get(address).and_then(|it| it.containers.get(Component::ApiServer.name()));
            server.is_some_and(|ran| ran.status.running && ran.since != Some(world.now))
        };
        if before.get(&effect.address) == Some(&true) && !runs(self, &effect.address) {
            let is_ready = self.objects.ready_endpoints().contains(&effect.address);
            let effect = effect.clone();
            let fact = KubernetesFact::ApiServerEnded { effect, healthy_for, others, is_ready };
            self.note(Observed::Kubernetes(fact));
        }
        if let Some((spec, fact)) = changes
            && self.image_of(&effect.address, spec.container.as_str()) == Some(&spec.image)
        {
            self.note(Observed::Kubernetes(fact));
        }
        let starts = matches!(action, NodeAction::RunContainer { .. }) && ran_before.is_none();
        if let Some(node) = name(self).filter(|_| starts) {
            let taints = self.registered.get(&node).cloned();
            let fact = KubernetesFact::KubeletStarted { effect: effect.clone(), node, taints };
            self.note(Observed::Kubernetes(fact));
        }
        self.note_restart(effect, action);
        self.count_restarted_pods(effect, kubelet);
        result
    }
}

fn minor_version(image: &str) -> u64 {
    let version = kubernetes_version_of_image(image);
    // Every image of a simulated fleet has a number in its tag.
    version.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or_default()
}

fn unavailable_error(what: String) -> KubernetesError {
    KubernetesError::Unavailable { what, why: format!("no answer within {COMPONENT_DEADLINE:?}") }
}

impl SimulatedNodes {
    /// Notes that a reboot command takes a node away whose API server has served. Nothing is noted of a node that no effect
    /// reaches.
    pub fn note_reboot(&self, address: &str) {
        self.with_world(|world| {
            let is_reached =
                world.answers_requests(address) && !world.has_fault(address, NodeFault::EngineHangs);
            let has_server = world.is_healthy(Component::ApiServer, address);
            if is_reached && (has_server || world.api_lost.contains_key(address)) {
                let fact = KubernetesFact::Rebooted { address: address.to_owned(), has_server };
                world.note(Observed::Kubernetes(fact));
            }
        });
    }

    /// Number of requests to API servers. Reads of all Node objects are none: a watch keeps them.
    #[must_use]
    pub fn api_requests(&self) -> u64 {
        self.with_world(|world| world.api_requests)
    }

    /// Asks the first of these API servers that is healthy. A node that does not answer costs the whole time-out.
    pub(super) async fn ask_api<R>(
        &self,
        what: String,
        servers: &[String],
        ask: impl FnOnce(&mut World) -> R,
    ) -> Result<R, KubernetesError> {
        self.ask_server(what, servers, |world, _| ask(world)).await
    }

    /// The same; `ask` takes the address of the API server, too.
    pub(super) async fn ask_server<R>(
        &self,
        what: String,
        servers: &[String],
        ask: impl FnOnce(&mut World, &str) -> R,
    ) -> Result<R, KubernetesError> {
        let began = Instant::now();
        sleep_until(began + 2 * LATENCY).await;
        let answer = self.with_world(|world| {
            world.api_requests += 1;
            world.register();
            let server = servers.iter().find(|it| world.is_healthy(Component::ApiServer, it))?;
            Some(ask(world, server))
        });
        if answer.is_none() {
            sleep_until(began + COMPONENT_DEADLINE).await;
        }
        answer.ok_or_else(|| unavailable_error(what))
    }
}

#[async_trait]
impl Components for SimulatedNodes {
    async fn check(&self, component: Component, address: &str) -> Result<(), KubernetesError> {
        let began = Instant::now();
        sleep_until(began + 2 * LATENCY).await;
        let (is_healthy, answers) = self.with_world(|world| {
            // It answers whether it is ready, and lists namespaces.
            world.api_requests += if component == Component::ApiServer { 2 } else { 0 };
            (world.is_healthy(component, address), world.answers_requests(address))
        });
        if is_healthy {
            return Ok(());
        }
        if !answers {
            sleep_until(began + COMPONENT_DEADLINE).await;
        }
        Err(unavailable_error(format!("health of {component} on {address}")))
    }

    async fn time_list(&self, address: &str) -> Result<Duration, KubernetesError> {
        let began = Instant::now();
        let what = format!("list of namespaces at {address}");
        let load = self.ask_api(what.clone(), &[address.to_owned()], |world| world.load_of(address)).await;
        // A silent node refuses no connection. Its time is that until the deadline.
        if load.is_err() && !self.with_world(|world| world.answers_requests(address)) {
            return Ok(began.elapsed());
        }
        match load? {
            ApiLoad::TooMany => {
                Err(KubernetesError::Refused { what, status: 429, why: "slow down".to_owned() })
            }
            ApiLoad::Takes(takes) => {
                sleep_until(began + takes).await;
                Ok(began.elapsed())
            }
        }
    }

    async fn deprecated_apis(&self, address: &str) -> Result<BTreeSet<DeprecatedApi>, KubernetesError> {
        // No client of the simulation requests one.
        self.ask_api(format!("metrics of {address}"), &[address.to_owned()], |_| BTreeSet::new()).await
    }

    async fn leader(
        &self,
        component: Component,
        servers: &[String],
    ) -> Result<Option<String>, KubernetesError> {
        let leader = |world: &mut World| {
            let leader = world.nodes.keys().find(|address| world.is_healthy(component, address));
            leader.map(|address| format!("{address}_1"))
        };
        self.ask_api(format!("lease of {component}"), servers, leader).await
    }

    async fn restarted_containers(
        &self,
        servers: &[String],
        node: &str,
        since: OffsetDateTime,
    ) -> Result<Vec<String>, KubernetesError> {
        let restarted = |world: &mut World| {
            let is_it =
                |address: &&String| world.nodes.get(*address).and_then(node_name).as_deref() == Some(node);
            let is_new = |at| world.wall_time(at).is_none_or(|at| since <= at);
            let known =
                world.restarted_pods.iter().filter(|(address, (_, at))| is_it(address) && is_new(*at));
            known.map(|(_, (count, _))| format!("default/{count}-pods/main")).collect()
        };
        self.ask_api(format!("restarted containers on node {node}"), servers, restarted).await
    }

    async fn read_taints(
        &self,
        servers: &[String],
        node: &str,
    ) -> Result<Option<Vec<Taint>>, KubernetesError> {
        let read = |world: &mut World| world.registered.get(node).cloned();
        self.ask_api(format!("taints of node {node}"), servers, read).await
    }

    async fn add_taints(
        &self,
        permit: &Permit,
        servers: &[String],
        node: &str,
        taints: &[Taint],
    ) -> Result<(), KubernetesError> {
        permit.check(Instant::now())?;
        let add = |world: &mut World| {
            let Some(present) = world.registered.get_mut(node) else { return };
            let before = present.clone();
            for taint in taints {
                let is_same = |known: &&mut Taint| known.key == taint.key && known.effect == taint.effect;
                match present.iter_mut().find(is_same) {
                    Some(known) => known.value.clone_from(&taint.value),
                    None => present.push(taint.clone()),
                }
            }
            // Without an effect, the object keeps its version.
            if *present != before {
                world.objects.touch_node(node);
            }
        };
        self.ask_api(format!("taints of node {node}"), servers, add).await
    }
}

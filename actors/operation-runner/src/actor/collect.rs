//! Collects the states of all nodes and of etcd for one reconcile pass.

mod objects;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::cluster::Cluster;
use madako_domain::component::Component;
use madako_domain::containers::ContainerOptions;
use madako_domain::node_status::{Bootstrap, ConfigVersion, FleetStatus, KubernetesAnswers, NodeStatus};
use madako_domain::objects::NodeObject;
use madako_domain::record::RecordStatus;
use madako_domain::resource::ResourceKey;
use madako_domain::state::ClusterState;
use madako_protocol::actors::{Collected, NodeMessage};
use madako_protocol::authorities::Authorities;
use madako_protocol::components::Components;
use madako_protocol::etcd::EtcdError;
use madako_protocol::mailbox::Envelope;
use ractor::{ActorRef, registry};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::objects::{ObjectsToRead, ask_objects};
use super::{Inputs, RunnerPorts};
use crate::kubernetes::objects::apply::ReadResources;
use crate::limits::{
    ACTOR_DEADLINE, ACTOR_POLL, COLLECT_DEADLINE, FIRST_RECORD, GATE_CHECKS, GATE_PAUSE, MOST_CHECKS,
    OBJECTS_DEADLINE, SERVER_VERSIONS_DEADLINE,
};

/// The answer of a node, with its address.
type Read = (String, Result<NodeStatus, String>);

pub(crate) struct FleetQuestion {
    addresses: Vec<String>,
    control_plane: Vec<String>,
    /// Addresses of all control plane nodes, whose API servers may serve.
    servers: BTreeSet<String>,
    volume: String,
    /// The records show a bootstrap of etcd, or data of etcd were seen before.
    bootstrapped: bool,
    /// A node without a known state may have data of etcd: a fleet of the second form was upgraded, and its history
    /// lacks the first record, which may have been the bootstrap.
    may_have_data: bool,
    asks_authorities: bool,
    /// Ask the components of Kubernetes, too.
    asks_kubernetes: bool,
    /// Addresses of the API servers that have passed the gate since their start. `None`: one check is enough for each.
    passed: Option<BTreeSet<String>>,
    /// The nodes of the present wave of kubelets whose containers must not restart: addresses and names.
    watched: Vec<(String, String)>,
    objects: ObjectsToRead,
}

impl FleetQuestion {
    /// `had_data`: data of etcd were seen before. `refused`: the authorities issued no certificates when they were last asked.
    /// `passed`: the API servers that have passed the gate since their start.
    pub(super) fn new(inputs: &Inputs, had_data: bool, refused: bool, passed: BTreeSet<String>) -> Self {
        let user = inputs.kubernetes.is_some().then_some(&*inputs.resources);
        let question = Self::from_state(&inputs.cluster, &inputs.options, &inputs.state, user);
        let bootstrapped = question.bootstrapped || had_data;
        let watched = watched_kubelets(&inputs.cluster, &inputs.state);
        Self { bootstrapped, asks_authorities: refused, passed: Some(passed), watched, ..question }
    }

    /// `user` are the user-defined resources; `None`: Kubernetes is left to CKE.
    pub(crate) fn from_state(
        cluster: &Cluster,
        options: &ContainerOptions,
        state: &ClusterState,
        user: Option<&ReadResources>,
    ) -> Self {
        Self {
            addresses: cluster.nodes.iter().map(|node| node.address.clone()).collect(),
            control_plane: nodes_to_ask(cluster, state),
            servers: cluster.control_plane().map(|node| node.address.clone()).collect(),
            volume: options.etcd_volume.clone(),
            bootstrapped: state.repair.records.bootstrap().is_some() || state.restored.is_some(),
            may_have_data: state.config_version == Some(ConfigVersion::Two)
                && !state.repair.records.known.contains_key(&FIRST_RECORD),
            asks_authorities: false,
            asks_kubernetes: user.is_some(),
            passed: None,
            watched: Vec::new(),
            objects: user.map(|user| ObjectsToRead::new(cluster, user)).unwrap_or_default(),
        }
    }

    /// The objects of Kubernetes that are read.
    pub(super) fn object_keys(&self) -> BTreeSet<ResourceKey> {
        self.objects.keys()
    }

    pub(super) fn leave_out(&mut self, left_out: &BTreeSet<ResourceKey>) {
        self.objects.leave_out(left_out);
    }

    /// Asks for no restarted containers on nodes where they may restart.
    pub(super) fn accept_restarts(&mut self, on: &BTreeSet<String>) {
        self.watched.retain(|(address, _)| !on.contains(address));
    }

    /// True if etcd has data, as far as the nodes and the records show. Invariant I2 applies then.
    fn has_data(&self, nodes: &BTreeMap<String, NodeStatus>) -> bool {
        let is_known = |address: &String| nodes.get(address).is_some_and(|node| node.reachable);
        self.bootstrapped
            || shows_data(nodes)
            || (self.may_have_data && !self.control_plane.iter().all(is_known))
    }

    /// Reads all nodes at the same time, then etcd, and asks the authorities meanwhile. `observe` reads a node, given its
    /// address and etcd's volume.
    pub(crate) async fn ask<F>(self, ports: RunnerPorts, observe: impl Fn(String, String) -> F) -> Collected
    where
        F: Future<Output = Result<NodeStatus, String>> + Send + 'static,
    {
        let mut running: JoinSet<Read> = JoinSet::new();
        for address in &self.addresses {
            let state = observe(address.clone(), self.volume.clone());
            let address = address.clone();
            running.spawn(async move { (address, state.await) });
        }
        let authorities = self.asks_authorities.then(|| Arc::clone(&ports.authorities));
        let ready = async move { Some(authorities?.ready().await.map_err(|error| error.to_string())) };
        let (ready, mut collected) = tokio::join!(ready, self.read(running, ports));
        collected.authorities = collected.authorities.or(ready);
        collected
    }

    async fn read(&self, mut running: JoinSet<Read>, ports: RunnerPorts) -> Collected {
        let (mut nodes, mut errors) = (BTreeMap::new(), BTreeMap::new());
        while let Some(joined) = running.join_next().await {
            // A task that ended early leaves its node without a state: unreachable.
            let Ok((address, state)) = joined else { continue };
            match state {
                Ok(mut status) => {
                    read_certificates(&mut status, &*ports.authorities);
                    nodes.insert(address, status);
                }
                Err(error) => drop(errors.insert(address, error)),
            }
        }
        let asked_etcd = self.has_data(&nodes);
        let (mut etcd, mut authorities) = (None, None);
        // During a restore, all members may be stale.
        if asked_etcd && !self.control_plane.is_empty() {
            match ports.etcd.status(&self.control_plane).await {
                Ok(status) => etcd = Some(status),
                Err(EtcdError::Certificates { why, .. }) => authorities = Some(Err(why)),
                Err(_) => {}
            }
        }
        let kubernetes = match self.asks_kubernetes {
            true => Some(self.ask_components(&ports, &nodes).await),
            false => None,
        };
        Collected { nodes, errors, asked_etcd, etcd, authorities, kubernetes }
    }

    /// Asks all components that run, then an API server that is healthy. Meanwhile it asks API servers for their versions: also
    /// those on nodes without a known state, which may serve.
    async fn ask_components(
        &self,
        ports: &RunnerPorts,
        nodes: &BTreeMap<String, NodeStatus>,
    ) -> KubernetesAnswers {
        let running = nodes.iter().filter(|(_, node)| node.reachable && node.runs(Component::ApiServer));
        let others = running.map(|(address, _)| address);
        let servers: BTreeSet<String> = self.servers.iter().chain(others).cloned().collect();
        let (answers, server_versions) = tokio::join!(
            self.ask_running_components(ports, nodes),
            read_server_versions(&ports.components, &servers),
        );
        KubernetesAnswers { server_versions, ..answers }
    }

    async fn ask_running_components(
        &self,
        ports: &RunnerPorts,
        nodes: &BTreeMap<String, NodeStatus>,
    ) -> KubernetesAnswers {
        let RunnerPorts { components, authorities, .. } = ports;
        let mut answers = KubernetesAnswers {
            health: self.check_health(components, nodes).await,
            ..KubernetesAnswers::default()
        };
        let serves = |address: &&String| answers.is_healthy(Component::ApiServer, address);
        let servers: Vec<String> = answers.health.keys().filter(serves).cloned().collect();
        if servers.is_empty() {
            return answers;
        }
        let [of_managers, of_schedulers] = [Component::ControllerManager, Component::Scheduler];
        let (objects, manager, scheduler, restarted) = tokio::join!(
            ask_objects(components, authorities, &servers, &self.objects),
            components.leader(of_managers, &servers),
            components.leader(of_schedulers, &servers),
            self.find_restarted(components, &servers, nodes),
        );
        answers.restarted = restarted;
        let names = |nodes: &Vec<NodeObject>| nodes.iter().map(|node| node.name.clone()).collect();
        answers.registered = objects.nodes.as_ref().map(names);
        answers.objects = Some(objects);
        let leaders = [(of_managers, manager), (of_schedulers, scheduler)];
        // Without the leader, the order of restarts is that of the configuration.
        let known = leaders.into_iter().filter_map(|(component, holder)| Some((component, holder.ok()??)));
        answers.leaders.extend(known);
        answers
    }

    /// The containers that restarted with the kubelets of the present wave, whose starts the nodes report.
    async fn find_restarted(
        &self,
        components: &Arc<dyn Components>,
        servers: &[String],
        nodes: &BTreeMap<String, NodeStatus>,
    ) -> BTreeMap<String, Result<Vec<String>, String>> {
        let mut asked = JoinSet::new();
        for (address, name) in &self.watched {
            let kubelet = nodes.get(address).and_then(|node| node.own_container(Component::Kubelet));
            let Some(since) = kubelet.and_then(|kubelet| kubelet.started_at) else { continue };
            let (components, servers) = (Arc::clone(components), servers.to_vec());
            let (address, name) = (address.clone(), name.clone());
            asked.spawn(async move {
                let asking = components.restarted_containers(&servers, &name, since);
                let restarted = match timeout(OBJECTS_DEADLINE, asking).await {
                    Ok(answered) => answered.map_err(|error| error.to_string()),
                    Err(_) => Err(format!("no API server answered within {OBJECTS_DEADLINE:?}")),
                };
                (address, restarted)
            });
        }
        asked.join_all().await.into_iter().collect()
    }

    /// The health of all components that run. An API server that has not passed the gate is healthy when it passes it.
    async fn check_health(
        &self,
        components: &Arc<dyn Components>,
        nodes: &BTreeMap<String, NodeStatus>,
    ) -> ComponentHealth {
        let places = Arc::new(Semaphore::new(MOST_CHECKS));
        let mut running = JoinSet::new();
        for (address, node) in nodes.iter().filter(|(_, node)| node.reachable) {
            for component in Component::ALL.into_iter().filter(|component| node.runs(*component)) {
                let (components, places, address) =
                    (Arc::clone(components), Arc::clone(&places), address.clone());
                let is_new = component == Component::ApiServer
                    && self.passed.as_ref().is_some_and(|passed| !passed.contains(&address));
                let through_rivers = is_new.then(|| server_through_rivers(nodes, &address)).flatten();
                let checks = if is_new && through_rivers.is_none() { GATE_CHECKS } else { 1 };
                let asked = through_rivers.unwrap_or_else(|| address.clone());
                running.spawn(async move {
                    // The semaphore is never closed.
                    let _place = places.acquire().await;
                    let checked = check_repeatedly(checks, || components.check(component, &asked)).await;
                    (address, component, checked.map_err(|error| error.to_string()))
                });
            }
        }
        let mut health = ComponentHealth::new();
        while let Some(joined) = running.join_next().await {
            // A check that ended early leaves its component without an answer.
            let Ok((address, component, checked)) = joined else { continue };
            health.entry(address).or_default().insert(component, checked);
        }
        health
    }
}

/// The other API server that answers the planted gate.
fn server_through_rivers(nodes: &BTreeMap<String, NodeStatus>, address: &str) -> Option<String> {
    let mut others =
        nodes.iter().filter(|(other, node)| *other != address && node.runs(Component::ApiServer));
    others.next().filter(|_| is_planted(Canary::GateAsksThroughRivers)).map(|(other, _)| other.clone())
}

/// The health of components, by the addresses of their nodes.
type ComponentHealth = BTreeMap<String, BTreeMap<Component, Result<(), String>>>;

/// Checks so many times with a pause between two checks, up to the first failure.
async fn check_repeatedly<E, F>(checks: u32, check: impl Fn() -> F) -> Result<(), E>
where
    F: Future<Output = Result<(), E>>,
{
    check().await?;
    for _ in 1..checks {
        sleep(GATE_PAUSE).await;
        check().await?;
    }
    Ok(())
}

/// The versions (major and minor) of the API servers at these addresses. A server that does not answer has none.
pub(super) async fn read_server_versions(
    components: &Arc<dyn Components>,
    servers: &BTreeSet<String>,
) -> BTreeMap<String, String> {
    let mut running: JoinSet<(String, Option<String>)> = JoinSet::new();
    for address in servers.iter().cloned() {
        let components = Arc::clone(components);
        running.spawn(async move {
            let version = components.read_server_version(&address).await.ok();
            (address, version)
        });
    }
    let mut versions = BTreeMap::new();
    let end = Instant::now() + SERVER_VERSIONS_DEADLINE;
    while let Ok(Some(joined)) = timeout_at(end, running.join_next()).await {
        // A read that ended early leaves its server without a version.
        if let Ok((address, Some(version))) = joined {
            versions.insert(address, version);
        }
    }
    versions
}

/// The nodes whose kubelets the present wave has restarted.
fn watched_kubelets(cluster: &Cluster, state: &ClusterState) -> Vec<(String, String)> {
    let Some(rollout) = state.rollout.as_deref() else { return Vec::new() };
    let is_watched =
        |address: &str| rollout.watched.get(address).is_some_and(|of| of == Component::Kubelet.name());
    let watched = cluster.nodes.iter().filter(|node| is_watched(&node.address));
    watched.map(|node| (node.address.clone(), node.name().to_owned())).collect()
}

/// True if a node has data of etcd, or the mark of a member.
pub(super) fn shows_data(nodes: &BTreeMap<String, NodeStatus>) -> bool {
    nodes.values().any(|node| node.etcd_data || node.etcd_mark)
}

/// Adds the validity of certificates, which a node does not report. The text of those of Kubernetes is not kept, since a large
/// fleet has thousands: a renewal issues all certificates that are due.
fn read_certificates(status: &mut NodeStatus, authorities: &dyn Authorities) {
    for certificate in status.etcd_certificates.values_mut() {
        certificate.validity = authorities.validity(&certificate.text);
    }
    for certificate in status.kubernetes_certificates.values_mut() {
        certificate.validity = authorities.validity(&std::mem::take(&mut certificate.text));
    }
}

/// Asks the actor of a node. A node that does not answer within the deadline has no state.
pub(super) async fn observe(name: String, volume: String) -> Result<NodeStatus, String> {
    let state = timeout(COLLECT_DEADLINE, ask_actor(&name, volume)).await;
    state.unwrap_or_else(|_| Err(format!("no answer within {COLLECT_DEADLINE:?}")))
}

async fn ask_actor(name: &str, volume: String) -> Result<NodeStatus, String> {
    let found = || registry::where_is(name).map(ActorRef::<Envelope<NodeMessage>>::from);
    let begun = Instant::now();
    let actor = loop {
        match found() {
            Some(actor) => break actor,
            None if begun.elapsed() >= ACTOR_DEADLINE => {
                return Err("the actor of the node does not run at present".to_owned());
            }
            None => sleep(ACTOR_POLL).await,
        }
    };
    let (reply, answer) = oneshot::channel();
    let gone = "its actor ended during the read";
    actor.cast(NodeMessage::Observe { volume, reply }.into()).map_err(|_| gone)?;
    answer.await.map_err(|_| gone)?.map_err(|error| error.to_string())
}

/// The control plane nodes whose members may be asked: those without data of before a restore.
pub(super) fn nodes_to_ask(cluster: &Cluster, state: &ClusterState) -> Vec<String> {
    let is_stale =
        |address: &String| state.restored.as_ref().is_some_and(|restored| restored.stale.contains(address));
    let control_plane = cluster.control_plane().map(|node| node.address.clone());
    control_plane.filter(|address| !is_stale(address)).collect()
}

/// The newest bootstrap. A restore ends each earlier one, also one that was interrupted.
fn bootstrap(state: &ClusterState) -> Option<Bootstrap> {
    let restored = state.restored.as_ref();
    let restored =
        restored.map(|it| Bootstrap { status: RecordStatus::Completed, targets: vec![it.address.clone()] });
    restored.or_else(|| state.repair.records.bootstrap())
}

/// The input of a decision. `None`: the form of the stored cluster is unknown.
pub(crate) fn fleet_status(
    collected: &Collected,
    state: &ClusterState,
    image_version: Option<madako_domain::node_status::EtcdVersion>,
) -> Option<FleetStatus> {
    Some(FleetStatus {
        config_version: state.config_version?,
        nodes: collected.nodes.clone(),
        etcd: collected.etcd.clone(),
        bootstrap: bootstrap(state),
        interrupted_removals: state.repair.records.interrupted_removals(),
        etcd_image_version: image_version,
        kubernetes: collected.kubernetes.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_gate_is_three_checks_a_second_apart() {
        for (answers, expected, seconds) in [
            (vec![Ok(()); 3], Ok(()), 2),
            (vec![Err("starts")], Err("starts"), 0),
            (vec![Ok(()), Ok(()), Err("ends")], Err("ends"), 2),
        ] {
            let left = RefCell::new(answers.into_iter());
            let began = Instant::now();
            let passed =
                check_repeatedly(GATE_CHECKS, || std::future::ready(left.borrow_mut().next().unwrap())).await;
            assert_eq!((passed, began.elapsed().as_secs(), left.borrow().len()), (expected, seconds, 0));
        }
    }

    fn question(may_have_data: bool, bootstrapped: bool) -> FleetQuestion {
        let control_plane = vec!["a".to_owned(), "b".to_owned()];
        let addresses = control_plane.clone();
        FleetQuestion {
            addresses,
            control_plane,
            servers: BTreeSet::new(),
            volume: "v".to_owned(),
            bootstrapped,
            may_have_data,
            asks_authorities: false,
            asks_kubernetes: false,
            passed: None,
            watched: Vec::new(),
            objects: ObjectsToRead::default(),
        }
    }

    fn nodes(answered: &[&str]) -> BTreeMap<String, NodeStatus> {
        let empty = NodeStatus { reachable: true, ..NodeStatus::default() };
        answered.iter().map(|address| ((*address).to_owned(), empty.clone())).collect()
    }

    #[test]
    fn a_fleet_whose_nodes_do_not_answer_has_data_unless_it_is_known_to_be_new() {
        for answered in [&[][..], &["a"]] {
            assert!(question(true, false).has_data(&nodes(answered)), "{answered:?}");
            assert!(question(false, true).has_data(&nodes(answered)), "{answered:?}");
            assert!(!question(false, false).has_data(&nodes(answered)), "{answered:?}");
        }
        assert!(!question(true, false).has_data(&nodes(&["a", "b"])), "all nodes answered without data");
        let mut marked = nodes(&["a", "b"]);
        marked.get_mut("a").unwrap().etcd_mark = true;
        assert!(question(false, false).has_data(&marked), "a member was added");
    }

    #[test]
    fn a_node_that_does_not_answer_may_have_data_only_after_the_upgrade_and_without_the_first_record() {
        let options = madako_json::go::RawJson::from_text("null".to_owned()).unwrap();
        let options = ContainerOptions::read(&options).unwrap();
        let mut state = ClusterState::default();
        let may = |state: &ClusterState| {
            FleetQuestion::from_state(&Cluster::default(), &options, state, None).may_have_data
        };
        state.config_version = Some(ConfigVersion::One);
        assert!(!may(&state));
        state.config_version = Some(ConfigVersion::Two);
        assert!(may(&state));
        Arc::make_mut(&mut state.repair).records.known.insert(2, 1);
        assert!(may(&state));
        Arc::make_mut(&mut state.repair).records.known.insert(1, 1);
        assert!(!may(&state), "the whole history is there, and has no bootstrap");
    }
}

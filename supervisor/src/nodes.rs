//! The supervisor `nodes`: an actor for each node of the cluster configuration.
//!
//! Its first child, the roster, adds and removes the others. A restart of the supervisor begins with the roster alone.
//!
//! Guarantees: the actors follow the cluster configuration within a second. An actor that fails too often is parked for a
//! while; it costs neither its siblings nor the reign.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::backup::BackupSchedule;
use madako_domain::cluster::Node as ClusterNode;
use madako_domain::host_key::{PinnedKeys, pinned_for};
use madako_domain::settings::{OperationMode, OperationModes};
use madako_domain::state::ClusterState;
pub use madako_node::HostKeyPolicy;
use madako_node::{Node, NodeArguments, PinnedKeyWriter};
pub use madako_operation_runner::page::Mode as OperationsMode;
use madako_operation_runner::page::OpsPage;
pub use madako_operation_runner::{KubernetesMode, RunnerPorts, Settings};
use madako_operation_runner::{Runner, RunnerArguments};
use madako_protocol::backup::EtcdBackups;
use madako_protocol::event::EventSink as InstanceEvents;
use madako_protocol::feed::{HandledSignal, Task, forward_values, send_later};
use madako_protocol::latest::{Publisher, Subscriber};
use madako_protocol::mailbox::{Addressed, Envelope};
use madako_protocol::node::{NodeDriver, NodeTarget};
use madako_protocol::operations::OperationsState;
use madako_protocol::ports::Clock;
use madako_protocol::telemetry::CountedGauge;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::limits::{NODE_BUDGET, NODE_PARKED};
use crate::measured::Measured;
use crate::telemetry::madako_actor_parked;
use crate::tree::{
    BudgetAction, ChildId, ChildSpec, EventSink, Mode, SupervisorRef, SupervisorSpec, actor_name,
};

/// Id of the supervisor in the tree.
pub const NODES: &str = "nodes";
/// Id of its first child.
pub const ROSTER: &str = "node-roster";
/// Label of the nodes' actors in metrics.
pub const NODE: &str = "node";
/// Id of the operation runner in the tree.
pub const RUNNER: &str = "operation-runner";
/// Annotation of a node with the serial of its machine (CKE's).
const ANNOTATION_SERIAL: &str = "cke.cybozu.com/serial";

#[derive(Clone)]
pub struct OperationsPorts {
    pub mode: OperationsMode,
    pub driver: Arc<dyn NodeDriver>,
    pub host_keys: HostKeyPolicy,
    pub settings: Settings,
    pub runner: RunnerPorts,
    /// `None`: the leader makes no backups of etcd.
    pub backups: Option<BackupPorts>,
}

#[derive(Clone)]
pub struct BackupPorts {
    pub schedule: BackupSchedule,
    pub backups: Arc<dyn EtcdBackups>,
}

/// The surroundings of the actors: those of a reign, or of an instance that only observes.
#[derive(Clone)]
pub(crate) struct NodeActorsContext {
    pub(crate) instance: String,
    /// `None`: no epoch; the actors only observe.
    pub(crate) key_writer: Option<PinnedKeyWriter>,
    pub(crate) interval: std::time::Duration,
    pub(crate) seed: u64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) events: Arc<dyn InstanceEvents>,
    pub(crate) state: Subscriber<Arc<ClusterState>>,
    pub(crate) sink: EventSink,
    pub(crate) page: Publisher<Arc<OpsPage>>,
    pub(crate) operations: Publisher<Arc<OperationsState>>,
}

/// The modes of an instance, for commands that depend on them.
pub(crate) fn operation_modes(ports: Option<&OperationsPorts>) -> OperationModes {
    let Some(ports) = ports else {
        return OperationModes { operations: OperationMode::Off, kubernetes: OperationMode::Off };
    };
    OperationModes {
        operations: match ports.mode {
            OperationsMode::Act => OperationMode::Act,
            OperationsMode::Observe => OperationMode::Observe,
        },
        kubernetes: match ports.settings.kubernetes {
            KubernetesMode::Off => OperationMode::Off,
            KubernetesMode::Observe => OperationMode::Observe,
            KubernetesMode::Act => OperationMode::Act,
        },
    }
}

/// The supervisor of the nodes, and the operation runner.
pub(crate) fn node_children(ports: &OperationsPorts, around: &NodeActorsContext) -> [ChildSpec; 2] {
    let roster = RosterArguments { ports: ports.clone(), around: around.clone() };
    let clock = Arc::clone(&around.clock);
    let roster = ChildSpec::for_actor(&around.instance, ROSTER, move || {
        (Measured::new(Roster, ROSTER, &clock), roster.clone())
    });
    let nodes = SupervisorSpec::new(around.instance.as_str(), NODES, around.seed, Arc::clone(&around.sink))
        .with_child(roster);
    let runner = RunnerArguments {
        mode: ports.mode,
        epoch: around.key_writer.as_ref().map_or(0, |key_writer| key_writer.epoch),
        leader: around.key_writer.as_ref().map(|key_writer| key_writer.leader.clone()).unwrap_or_default(),
        nodes: actor_name(&around.instance, &actor_id_of_node("")),
        interval: around.interval,
        settings: ports.settings.clone(),
        ports: ports.runner.clone(),
        clock: Arc::clone(&around.clock),
        events: Arc::clone(&around.events),
        state: around.state.clone(),
        page: around.page.clone(),
        operations: around.operations.clone(),
    };
    let clock = Arc::clone(&around.clock);
    let runner = ChildSpec::for_actor(&around.instance, RUNNER, move || {
        (Measured::new(Runner, RUNNER, &clock), runner.clone())
    });
    [ChildSpec::for_supervisor(nodes), runner]
}

/// The login of a node, and the host key that it must prove.
#[must_use]
pub fn node_target(node: &ClusterNode, host_keys: HostKeyPolicy, pinned: &PinnedKeys) -> NodeTarget {
    let Identity { user, serial } = Identity::from_node(node);
    let pinned = pinned_for(pinned, &node.address, &serial).filter(|_| host_keys == HostKeyPolicy::Pin);
    let pinned = pinned.map(|(key, _)| key.host_key.clone());
    NodeTarget { address: node.address.clone(), user, pinned }
}

/// Id of a node's actor in the tree, below [`NODES`].
#[must_use]
pub fn actor_id_of_node(address: &str) -> ChildId {
    format!("{NODE}/{address}").into()
}

#[derive(Clone)]
struct RosterArguments {
    ports: OperationsPorts,
    around: NodeActorsContext,
}

#[derive(Debug)]
enum RosterMessage {
    /// The state of the store changed.
    State(Arc<ClusterState>, HandledSignal),
    /// An actor failed too often and is gone.
    Parked { address: String },
    /// The pause of a parked node is over.
    Unpark { address: String },
}

impl Addressed for RosterMessage {
    const ACTOR: &'static str = ROSTER;
}

struct Roster;

struct RosterState {
    given: RosterArguments,
    myself: ActorRef<Envelope<RosterMessage>>,
    newest: Option<Arc<ClusterState>>,
    /// Login name and serial of each node with an actor.
    running: BTreeMap<String, Identity>,
    /// Pauses of parked nodes.
    parked: BTreeMap<String, (Task, CountedGauge)>,
    _feed: Task,
}

/// The properties of a node that its actor keeps for its whole life.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    user: String,
    serial: String,
}

impl Identity {
    fn from_node(node: &ClusterNode) -> Self {
        let serial = node.annotations.get(ANNOTATION_SERIAL).cloned().unwrap_or_default();
        Self { user: node.user.clone(), serial }
    }
}

impl Actor for Roster {
    type Msg = Envelope<RosterMessage>;
    type State = RosterState;
    type Arguments = RosterArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Envelope<RosterMessage>>,
        given: RosterArguments,
    ) -> Result<RosterState, ActorProcessingErr> {
        let feed = forward_values(given.around.state.clone(), myself.clone(), RosterMessage::State);
        // The series begins at 0.
        madako_actor_parked(NODE).increment(0.0);
        Ok(RosterState {
            given,
            myself,
            newest: None,
            running: BTreeMap::new(),
            parked: BTreeMap::new(),
            _feed: feed,
        })
    }

    async fn handle(
        &self,
        _: ActorRef<Envelope<RosterMessage>>,
        envelope: Envelope<RosterMessage>,
        state: &mut RosterState,
    ) -> Result<(), ActorProcessingErr> {
        let _handled = match envelope.open() {
            RosterMessage::State(new, handled) => {
                state.newest = Some(new);
                Some(handled)
            }
            RosterMessage::Parked { address } => {
                state.running.remove(&address);
                let again = RosterMessage::Unpark { address: address.clone() };
                let pause = send_later(state.myself.clone(), NODE_PARKED, again);
                state.parked.insert(address, (pause, CountedGauge::new(madako_actor_parked(NODE))));
                None
            }
            RosterMessage::Unpark { address } => {
                state.parked.remove(&address);
                None
            }
        };
        state.follow().await;
        Ok(())
    }
}

impl RosterState {
    /// Adds actors of new nodes, and removes those of nodes that left or changed.
    async fn follow(&mut self) {
        let Some(cluster) = self.newest.as_ref().and_then(|state| state.cluster.clone()) else { return };
        let Some(nodes) = SupervisorRef::find(&self.given.around.instance, NODES) else { return };
        let wanted: BTreeMap<&str, Identity> = cluster
            .value
            .nodes
            .iter()
            .map(|node| (node.address.as_str(), Identity::from_node(node)))
            .collect();
        let gone =
            self.running.iter().filter(|(address, identity)| wanted.get(address.as_str()) != Some(*identity));
        let gone: Vec<String> = gone.map(|(address, _)| address.clone()).collect();
        for address in gone {
            // An unknown child was parked in the meantime.
            let _ = nodes.stop_child(&actor_id_of_node(&address), Mode::Now).await;
            self.running.remove(&address);
        }
        self.parked.retain(|address, _| wanted.contains_key(address.as_str()));
        for (address, identity) in wanted {
            if self.running.contains_key(address) || self.parked.contains_key(address) {
                continue;
            }
            match nodes.add_child(self.child_spec(address, &identity)).await {
                Ok(_) => drop(self.running.insert(address.to_owned(), identity)),
                Err(error) => tracing::warn!(address, %error, "cannot start the actor of a node"),
            }
        }
    }

    fn child_spec(&self, address: &str, identity: &Identity) -> ChildSpec {
        let RosterArguments { ports, around } = &self.given;
        let given = NodeArguments {
            address: address.to_owned(),
            user: identity.user.clone(),
            serial: identity.serial.clone(),
            host_keys: ports.host_keys,
            key_writer: around.key_writer.clone(),
            driver: Arc::clone(&ports.driver),
            state: around.state.clone(),
            seed: seed_of_node(around.seed, address),
        };
        let (clock, roster, parked) = (Arc::clone(&around.clock), self.myself.clone(), address.to_owned());
        ChildSpec::for_actor(&around.instance, actor_id_of_node(address), move || {
            (Measured::new(Node, NODE, &clock), given.clone())
        })
        .with_label(NODE)
        .own_budget(
            NODE_BUDGET,
            BudgetAction::Report(Arc::new(move |exceeded| {
                tracing::error!(%exceeded, "the actor of a node failed too often and is parked");
                // The roster ends with its supervisor.
                let _ = roster.cast(RosterMessage::Parked { address: parked.clone() }.into());
            })),
        )
    }
}

/// A seed for each node, so that their back-offs differ.
fn seed_of_node(seed: u64, address: &str) -> u64 {
    address.bytes().fold(seed, |seed, byte| seed.rotate_left(5) ^ u64::from(byte))
}

//! The actor of operations: it collects the state of all nodes, decides on it, and runs one operation at a time.
//!
//! A reconcile pass begins with a collection. Its decision holds for that collection only: after each operation another one
//! begins. The workflow of `madako-effects` commits each change of a record, and asks permission for, starts and records
//! the command that the change announces.

mod api_load;
mod certificates;
pub(crate) mod collect;
mod decide;
pub(crate) mod execute;
pub(crate) mod kubernetes;
mod objects;
mod reboot;
mod rest;
mod restore_commands;
mod rotation;
mod show;
mod taints;
mod tidy;
mod wave_watch;
mod workflow;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::cluster::Cluster;
use madako_domain::containers::ContainerOptions;
use madako_domain::repair::change::RepairChange;
use madako_domain::resource::ResourceKey;
use madako_domain::rollout::Rollout;
use madako_domain::state::ClusterState;
use madako_domain::status::OperationPhase;
use madako_effects::{EffectEvent, EffectRunner, Permits, Workflow};
use madako_protocol::actors::{Collected, Mutation, OperationEnd, RunnerMessage};
use madako_protocol::authorities::Authorities;
use madako_protocol::components::Components;
use madako_protocol::etcd::EtcdCluster;
use madako_protocol::event::EventSink;
use madako_protocol::feed::{Task, forward_values, send_later};
use madako_protocol::first_seen::FirstSeenTimes;
use madako_protocol::kubernetes_secrets::KubernetesSecrets;
use madako_protocol::latest::{Publisher, Subscriber};
use madako_protocol::leader::commit;
use madako_protocol::mailbox::Envelope;
use madako_protocol::operations::OperationsState;
use madako_protocol::ports::Clock;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::Instant;

use self::api_load::{ApiLoad, measure_later};
use self::collect::{FleetQuestion, observe, shows_data};
use self::execute::Executor;
use self::rest::KeptAnswers;
use self::wave_watch::WaveWatch;
use self::workflow::Announced;
use crate::backing_off::BackingOff;
use crate::decide::Decision;
use crate::early_ends::{EarlyEnds, WantedState};
use crate::input::{Images, KubernetesMode, Settings};
use crate::kubernetes::objects::apply::ReadResources;
use crate::kubernetes::objects::failures::ObjectFailures;
use crate::kubernetes::options::KubernetesOptions;
use crate::limits::LEAST_WAVE_PAUSE;
use crate::operation::{Operation, OperationName};
use crate::page::{Mode, OpsPage};
use crate::stories::NodeStories;

madako_protocol::declare_metrics! {
    "Operations on nodes":
    counter madako_operations_total(operation, outcome) "Operations on nodes: `completed` or `cancelled`.";
    gauge madako_operations_held(reason)
        "Operations on nodes that are due and wait, by reason; `madako ops` names their nodes.";
    gauge madako_operations_held_since_timestamp_seconds(reason) in Seconds
        "Unix time since which operations wait for the reason, as far as this leader knows; 0 if none waits for it.";
    gauge madako_nodes(state)
        "Nodes of the cluster in the last collection: `reachable`, or `unreachable` (its state is not known).";
    gauge madako_nodes_unreachable_since_timestamp_seconds() in Seconds
        "Unix time since which the node that is unreachable for longest is so, as far as this leader knows; 0 if \
         all are reachable.";
    gauge madako_etcd_healthy()
        "1 if the cluster's etcd granted a lease in the last collection, which needs a majority; not exported \
         before etcd has data.";
    gauge madako_etcd_members(state)
        "Members of the cluster's etcd in the last collection: `in-sync`, `out-of-sync`, or `missing` (control \
         plane nodes that are no members); all are 0 without a majority, because then nothing is known of them.";
    gauge madako_etcd_fault_since_timestamp_seconds(state) in Seconds
        "Unix time since which the cluster's etcd has no majority (`no-majority`), members that are `out-of-sync`, \
         or control plane nodes that are no members (`missing`), as far as this leader knows; 0 if it is not so.";
    gauge madako_certificates_end_timestamp_seconds(of) in Seconds
        "Unix time at which the first certificate on a reachable node ends; 0 if none can be read. `of`: `etcd`, or \
         `kubernetes` (of components that run; 0 while `kubernetes.mode` is `off`).";
    gauge madako_nodes_with_unreadable_certificates()
        "Reachable nodes with a certificate that the service cannot read, and so never renews: the server or peer \
         certificate of a running member of etcd, or, unless `kubernetes.mode` is `off`, a certificate of a running \
         component of Kubernetes.";
    histogram madako_operation_command_seconds(command, outcome) in Seconds
        "Duration of the commands of operations on nodes: `succeeded` or `failed`.";
    histogram madako_operations_collect_seconds() in Seconds
        "Duration of reading the state of all nodes and of etcd.";
    histogram madako_operations_decide_seconds() in Seconds "Duration of a decision on the next operations on nodes.";
}

/// The ports to etcd, authorities and Kubernetes.
#[derive(Clone)]
pub struct RunnerPorts {
    pub etcd: Arc<dyn EtcdCluster>,
    pub authorities: Arc<dyn Authorities>,
    pub components: Arc<dyn Components>,
    pub secrets: Arc<dyn KubernetesSecrets>,
}

#[derive(Clone)]
pub struct RunnerArguments {
    pub mode: Mode,
    pub epoch: i64,
    /// Registered name of the leader actor.
    pub leader: String,
    /// Prefix of the registered names of the nodes' actors.
    pub nodes: String,
    /// Time between two passes without operations.
    pub interval: Duration,
    pub settings: Settings,
    pub ports: RunnerPorts,
    pub clock: Arc<dyn Clock>,
    pub events: Arc<dyn EventSink>,
    pub state: Subscriber<Arc<ClusterState>>,
    /// Takes the page of each pass.
    pub page: Publisher<Arc<OpsPage>>,
    /// Takes the findings for other actors.
    pub operations: Publisher<Arc<OperationsState>>,
}

pub struct Runner;

/// The configuration of a decision.
struct Inputs {
    state: Arc<ClusterState>,
    cluster: Arc<Cluster>,
    options: Arc<ContainerOptions>,
    /// `None`: Kubernetes is left to CKE.
    kubernetes: Option<ReadOptions>,
    resources: Arc<ReadResources>,
}

/// The options of a cluster for Kubernetes, or the reason why they cannot be used.
type ReadOptions = Arc<Result<Arc<KubernetesOptions>, String>>;

/// A cache: a new actor reads all of it again.
pub struct RunnerState {
    given: RunnerArguments,
    myself: ActorRef<Envelope<RunnerMessage>>,
    state: Option<Arc<ClusterState>>,
    effects: Workflow<RepairChange, Announced>,
    runner: EffectRunner<RunnerMessage, OperationEnd>,
    executor: Executor,
    backing_off: BackingOff,
    /// Addresses of nodes whose kubelets had the wanted minor version before the present wave; empty unless kubelets of another
    /// one restart in place.
    same_minor: BTreeSet<String>,
    early_ends: EarlyEnds,
    /// Number of the newest collection.
    collection: u64,
    collecting: Option<(Instant, Task)>,
    /// Begin of the newest collection that has ended.
    collection_began: Instant,
    /// The newest collection that no later effect has made obsolete.
    collected: Option<(Instant, Box<Collected>)>,
    /// The question to the authorities. The newest collection stays until the answer.
    asking: Option<Task>,
    /// The authorities issued no certificates when they were last asked. Each collection asks them then, so that what they
    /// hold stays held between two passes.
    refused: bool,
    /// Data of etcd were seen.
    seen_data: bool,
    decision: Option<Decision>,
    /// The phase in the store, as far as this actor wrote it.
    phase: Option<OperationPhase>,
    writing_phase: Option<Task>,
    /// The options of the newest cluster for Kubernetes; `None`: Kubernetes is left to CKE, or there is no cluster.
    kubernetes: Option<ReadOptions>,
    /// The user-defined resources of the newest state.
    resources: Arc<ReadResources>,
    objects: ObjectFailures,
    /// The last collection lacks objects that were applied since.
    is_thinned: bool,
    /// The user-defined resources have changed since the begin of the newest collection.
    has_new_resources: bool,
    kept: KeptAnswers,
    /// The objects that the collection under way does not read.
    left_out: BTreeSet<ResourceKey>,
    /// Node objects outside of the cluster, with the time since which there are no others.
    surplus: Option<(BTreeSet<String>, Instant)>,
    /// The watch over the nodes of the present wave.
    watch: WaveWatch,
    /// The watch over the nodes that failed in a roll that is over.
    recovering: WaveWatch,
    load: ApiLoad,
    /// The next measurement of API servers.
    measuring: Option<Task>,
    /// The roll after the newest decision; `None`: there is none.
    rollout: Option<Rollout>,
    /// The change of the requested drains after the newest decision; `None`: there is none.
    drains: Option<RepairChange>,
    /// Times since which API servers answer to each health check, by address: those that passed the gate after their start.
    serving_since: BTreeMap<String, Instant>,
    /// Times of the first starts of API servers that have not passed the gate since, by address, each with the wanted state.
    started_servers: BTreeMap<String, (Instant, WantedState)>,
    /// The operation of the last command, with the reason, if the command was held.
    last_hold: Option<(&'static str, String)>,
    /// The preparation of a node for its reboot.
    preparing: Option<Task>,
    /// Held operations of the last event.
    held: Vec<String>,
    /// Reasons for which operations wait.
    held_since: FirstSeenTimes<&'static str>,
    unreachable_since: FirstSeenTimes<String>,
    etcd_fault_since: FirstSeenTimes<&'static str>,
    reachable_since: FirstSeenTimes<String>,
    /// The stories of the last decision.
    stories: Arc<NodeStories>,
    timer: Option<Task>,
    /// The end of the first pause of a node.
    wake: Option<Task>,
    /// The removal of expired certificates; `None` in an actor that only observes.
    _tidy: Option<Task>,
    _feed: Task,
}

impl Actor for Runner {
    type Msg = Envelope<RunnerMessage>;
    type State = RunnerState;
    type Arguments = RunnerArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Envelope<RunnerMessage>>,
        given: RunnerArguments,
    ) -> Result<RunnerState, ActorProcessingErr> {
        let feed = forward_values(given.state.clone(), myself.clone(), RunnerMessage::State);
        myself.cast(RunnerMessage::Tick.into())?;
        let permits = Permits { leader: given.leader.clone(), epoch: given.epoch };
        let executor = Executor {
            nodes: given.nodes.clone(),
            etcd: Arc::clone(&given.ports.etcd),
            authorities: Arc::clone(&given.ports.authorities),
            components: Arc::clone(&given.ports.components),
            secrets: Arc::clone(&given.ports.secrets),
            permits: permits.clone(),
            images: Images::default(),
            prepared: Arc::new(Mutex::new(BTreeMap::new())),
            versions: Arc::new(Mutex::new(BTreeMap::new())),
            kubernetes_versions: Arc::default(),
            rewritten: Arc::default(),
        };
        let tidy = (given.mode == Mode::Act).then(|| {
            let authorities = Arc::clone(&given.ports.authorities);
            tidy::tidy_at_interval(given.settings.certs_gc_interval, permits.clone(), authorities)
        });
        Ok(RunnerState {
            runner: EffectRunner::new(myself.clone(), permits, RunnerMessage::Effect),
            given,
            myself,
            state: None,
            effects: Workflow::default(),
            executor,
            backing_off: BackingOff::default(),
            same_minor: BTreeSet::new(),
            early_ends: EarlyEnds::default(),
            collection: 0,
            collecting: None,
            collection_began: Instant::now(),
            collected: None,
            asking: None,
            refused: false,
            seen_data: false,
            decision: None,
            phase: None,
            writing_phase: None,
            kubernetes: None,
            resources: Arc::default(),
            objects: ObjectFailures::default(),
            is_thinned: false,
            has_new_resources: false,
            kept: KeptAnswers::default(),
            left_out: BTreeSet::new(),
            surplus: None,
            watch: WaveWatch::default(),
            recovering: WaveWatch::default(),
            load: ApiLoad::default(),
            measuring: None,
            rollout: None,
            drains: None,
            serving_since: BTreeMap::new(),
            started_servers: BTreeMap::new(),
            last_hold: None,
            preparing: None,
            held: Vec::new(),
            held_since: FirstSeenTimes::default(),
            unreachable_since: FirstSeenTimes::default(),
            etcd_fault_since: FirstSeenTimes::default(),
            reachable_since: FirstSeenTimes::default(),
            stories: Arc::default(),
            timer: None,
            wake: None,
            _tidy: tidy,
            _feed: feed,
        })
    }

    async fn handle(
        &self,
        _: ActorRef<Envelope<RunnerMessage>>,
        envelope: Envelope<RunnerMessage>,
        state: &mut RunnerState,
    ) -> Result<(), ActorProcessingErr> {
        // The mark is dropped at the end of this handler; only then does the feed send the next value.
        let _handled = match envelope.open() {
            RunnerMessage::State(new, handled) => {
                state.handle_new_state(new);
                Some(handled)
            }
            RunnerMessage::Tick => {
                state.tick();
                None
            }
            RunnerMessage::Collected { number, mut collected } => {
                if number != state.collection {
                    return Ok(());
                }
                let left_out = std::mem::take(&mut state.left_out);
                let answers = collected.kubernetes.as_mut().and_then(|answers| answers.objects.as_mut());
                state.kept.complete(number, &left_out, answers);
                if let Some((since, _)) = state.collecting.take() {
                    madako_operations_collect_seconds().record(since.elapsed());
                    if let Some(ready) = &collected.authorities {
                        state.refused = ready.is_err();
                    }
                    state.collection_began = since;
                    // The age counts from the answer: with slow nodes a collection may take longer than an interval.
                    state.seen_data |= shows_data(&collected.nodes) || collected.etcd.is_some();
                    if collected.etcd.as_ref().is_some_and(|etcd| etcd.healthy) {
                        state.backing_off.clear_failures([&OperationName::EtcdWaitCluster.name().to_owned()]);
                    }
                    state.collected = Some((Instant::now(), collected));
                    state.is_thinned = false;
                }
                None
            }
            RunnerMessage::Authorities { number, ready } => {
                state.asking = None;
                state.refused = ready.is_err();
                let collected = state.collected.as_mut().filter(|_| number == state.collection);
                let Some((_, collected)) = collected else { return Ok(()) };
                collected.authorities = Some(ready);
                None
            }
            RunnerMessage::Effect(event) => {
                let actions = state.effects.handle_event(event, Instant::now());
                state.perform_actions(actions);
                None
            }
            RunnerMessage::PrepareReboot { node, reply } => {
                state.prepare_reboot(node, reply);
                return Ok(());
            }
            RunnerMessage::Measured(times) => {
                state.load.note(times, Instant::now());
                state.measuring = None;
                state.measure();
                // The next decision takes it into account.
                return Ok(());
            }
            RunnerMessage::PhaseWritten(result) => {
                state.writing_phase = None;
                if result.is_err() {
                    // The next pass writes it again; at once, a refusal would come at once, too.
                    state.phase = None;
                    return Ok(());
                }
                None
            }
        };
        state.reconcile();
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<Envelope<RunnerMessage>>,
        state: &mut RunnerState,
    ) -> Result<(), ActorProcessingErr> {
        let actions = state.effects.handle_event(EffectEvent::Lost, Instant::now());
        state.perform_actions(actions);
        Ok(())
    }
}

impl RunnerState {
    fn handle_new_state(&mut self, new: Arc<ClusterState>) {
        let revision = |state: &ClusterState| state.cluster.as_ref().map(|cluster| cluster.revision);
        let is_other = self.state.as_deref().and_then(revision) != revision(&new);
        if self.state.as_ref().is_none_or(|last| last.resources != new.resources) {
            self.resources = Arc::new(ReadResources::new(&new.resources));
            // The last collection did not ask for the new ones. One that is under way goes on, so that resources that change again
            // and again delay no decision: the new ones are unread in it, and another one follows.
            self.collected = None;
            self.has_new_resources = true;
        }
        self.state = Some(new);
        if is_other {
            self.kubernetes = self.read_kubernetes();
            // Other nodes: the last states do not cover them.
            self.collected = None;
            self.collecting = None;
        }
    }

    fn tick(&mut self) {
        self.timer = Some(send_later(self.myself.clone(), self.given.interval, RunnerMessage::Tick));
        let actions = self.effects.handle_event(EffectEvent::Passed, Instant::now());
        self.perform_actions(actions);
        self.effects.clear_refusal();
        if self.asking.is_none() {
            self.collected = None;
        }
    }

    /// The configuration of the newest state. `None` while it is older than the last write.
    fn decision_inputs(&self) -> Option<Inputs> {
        let state = self.state.clone().filter(|state| self.effects.may_decide_on(state.revision))?;
        let cluster = Arc::clone(&state.cluster.as_ref()?.value);
        let options = Arc::clone(state.container_options.as_ref()?);
        Some(Inputs {
            state,
            cluster,
            options,
            kubernetes: self.kubernetes.clone(),
            resources: Arc::clone(&self.resources),
        })
    }

    fn read_kubernetes(&self) -> Option<ReadOptions> {
        if self.given.settings.kubernetes == KubernetesMode::Off {
            return None;
        }
        let cluster = &self.state.as_ref()?.cluster.as_ref()?.value;
        let read = KubernetesOptions::read(&cluster.options);
        Some(Arc::new(read.map(Arc::new).map_err(|error| error.to_string())))
    }

    /// Records an ended command, decides on a new collection, or begins one.
    fn reconcile(&mut self) {
        let Some(inputs) = self.decision_inputs() else { return self.publish_unusable_options() };
        if self.given.mode == Mode::Act
            && (self.settle_records(&inputs) || self.effects.announced_effect().is_some())
        {
            return self.publish(&inputs);
        }
        let Some((since, collected)) = self.collected.take() else {
            return self.collect(&inputs);
        };
        if since.elapsed() > self.given.interval && self.asking.is_none() {
            return self.collect(&inputs);
        }
        self.decide(&inputs, &collected);
        self.measure();
        let must_ask = collected.authorities.is_none() && self.needs_certificates();
        self.collected = Some((since, collected));
        self.publish(&inputs);
        if self.is_thinned && self.decision.as_ref().is_some_and(|decision| decision.operations.is_empty()) {
            // An applied object may make others due.
            self.collected = None;
            return self.collect(&inputs);
        }
        if must_ask {
            return self.ask_authorities();
        }
        if self.given.mode == Mode::Act {
            self.write_phase();
            if !self.settle_restore(&inputs.state)
                && !self.settle_rollout(&inputs.state)
                && !self.settle_drains(&inputs.state)
            {
                self.begin_operation(&inputs);
            }
        }
        if self.has_new_resources && self.effects.may_decide_on(inputs.state.revision) {
            // Nothing was begun, and the collection lacks the new resources.
            self.collected = None;
            return self.collect(&inputs);
        }
        let now = Instant::now();
        let pauses = self.backing_off.remaining_pauses(now).map(|(_, until, _)| until - now);
        let watched = self.watch.pause(now).map(|pause| pause.max(LEAST_WAVE_PAUSE));
        let ends = self.early_ends.remaining_pauses(now).map(|(_, until)| until - now);
        let pause = pauses.chain(ends).chain(self.next_object_pause()).chain(watched).min();
        self.wake = pause.map(|pause| send_later(self.myself.clone(), pause, RunnerMessage::Tick));
    }

    /// Measures the API servers after a while, unless a measurement is under way.
    fn measure(&mut self) {
        let acts = self.given.mode == Mode::Act && self.given.settings.kubernetes == KubernetesMode::Act;
        if acts && self.measuring.is_none() && !self.serving_since.is_empty() {
            let servers = self.serving_since.keys().cloned().collect();
            let components = Arc::clone(&self.given.ports.components);
            self.measuring = Some(measure_later(self.myself.clone(), components, servers));
        }
    }

    /// True if the next operation needs certificates.
    fn needs_certificates(&self) -> bool {
        let next = self.decision.as_ref().and_then(|decision| decision.operations.first());
        next.is_some_and(Operation::needs_certificates)
    }

    /// Asks the authorities whether they issue certificates, unless a question is under way.
    fn ask_authorities(&mut self) {
        if self.asking.is_some() {
            return;
        }
        let (number, myself) = (self.collection, self.myself.clone());
        let authorities = Arc::clone(&self.given.ports.authorities);
        self.asking = Some(Task::start_anew(async move {
            let ready = authorities.ready().await.map_err(|error| error.to_string());
            // The actor is gone: its successor asks again.
            let _ = myself.cast(RunnerMessage::Authorities { number, ready }.into());
        }));
    }

    /// Begins a collection, unless one runs.
    fn collect(&mut self, inputs: &Inputs) {
        if self.collecting.is_some() {
            return;
        }
        self.collection += 1;
        self.asking = None;
        self.has_new_resources = false;
        let (number, myself) = (self.collection, self.myself.clone());
        let passed = self.serving_since.keys().cloned().collect();
        let mut question = FleetQuestion::new(inputs, self.seen_data, self.refused, passed);
        self.left_out = self.objects_left_out(&question.object_keys());
        question.leave_out(&self.left_out);
        question.accept_restarts(&self.nodes_with_accepted_restarts(inputs));
        let prefix = self.given.nodes.clone();
        let ports = self.given.ports.clone();
        let task = Task::start_anew(async move {
            let collected = Box::new(
                question.ask(ports, |address, volume| observe(format!("{prefix}{address}"), volume)).await,
            );
            // The actor is gone: its successor collects again.
            let _ = myself.cast(RunnerMessage::Collected { number, collected }.into());
        });
        self.collecting = Some((Instant::now(), task));
    }

    fn forget_collected(&mut self) {
        if !is_planted(Canary::OldStatusDecidedOn) {
            self.collected = None;
        }
    }

    fn write_phase(&mut self) {
        let Some(phase) = self.decision.as_ref().map(|decision| decision.phase.clone()) else { return };
        if self.phase.as_ref() == Some(&phase) || self.writing_phase.is_some() {
            return;
        }
        self.phase = Some(phase.clone());
        let (leader, epoch, myself) = (self.given.leader.clone(), self.given.epoch, self.myself.clone());
        self.writing_phase = Some(Task::start_anew(async move {
            let result = commit(&leader, epoch, Mutation::Phase(phase)).await;
            // The actor is gone: its successor writes the phase again.
            let _ = myself.cast(RunnerMessage::PhaseWritten(result).into());
        }));
    }
}

#[cfg(test)]
mod tests;

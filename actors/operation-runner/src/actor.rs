//! The actor of operations: it collects the state of all nodes, decides on it, and runs one operation at a time.
//!
//! A reconcile pass begins with a collection. Its decision holds for that collection only: after each operation another one
//! begins. The workflow of `madako-effects` commits each change of a record, and asks permission for, starts and records
//! the command that the change announces.

mod certificates;
pub(crate) mod collect;
pub(crate) mod execute;
mod kubernetes;
mod restore_commands;
mod show;
mod since;
mod tidy;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::certificate::NodeCertificate;
use madako_domain::cluster::Cluster;
use madako_domain::component::Component;
use madako_domain::containers::ContainerOptions;
use madako_domain::node_status::{EtcdVersion, KubernetesAnswers, NodeStatus};
use madako_domain::repair::change::RepairChange;
use madako_domain::state::ClusterState;
use madako_domain::status::OperationPhase;
use madako_effects::{
    Action, AttemptEnd, Conclusion, Effect, EffectEvent, EffectRunner, Evidence, Permits, Workflow,
};
use madako_protocol::actors::{Collected, Mutation, OperationEnd, RunnerMessage};
use madako_protocol::authorities::Authorities;
use madako_protocol::components::Components;
use madako_protocol::etcd::EtcdCluster;
use madako_protocol::event::{Event, EventSink};
use madako_protocol::feed::{Task, forward_values, send_later};
use madako_protocol::gate::commit;
use madako_protocol::kubernetes_secrets::KubernetesSecrets;
use madako_protocol::latest::{Publisher, Subscriber};
use madako_protocol::mailbox::Envelope;
use madako_protocol::operations::OperationsState;
use madako_protocol::ports::Clock;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use time::OffsetDateTime;
use tokio::time::Instant;
use tracing::Span;

use self::collect::{Question, fleet, observe, shows_data};
use self::execute::{Basis, Executor};
use self::since::FirstSeenTimes;
use crate::backing_off::{self, BackingOff};
use crate::decide::{Decision, decide};
use crate::images::with_images;
use crate::input::{Images, Input, KubernetesMode, KubernetesPart, RequestedRestore, Settings};
use crate::kubernetes::operation::KubernetesOperationName;
use crate::kubernetes::options::KubernetesOptions;
use crate::limits::{API_SETTLED, COMMAND_LOST};
use crate::operation::{Operation, OperationName};
use crate::page::{Mode, OpsPage};
use crate::records::{self, AnnouncedStep, restoring};
use crate::restore;
use crate::stories::{NodeStories, StoryContext, tell_stories};

madako_protocol::declare_metrics! {
    counter madako_operations_total(operation, outcome) "Operations on nodes, by outcome.";
    gauge madako_operations_held(reason) "Operations that are due and wait, by reason.";
    gauge madako_operations_held_since_timestamp_seconds(reason)
        "Unix time since which operations wait for the reason; 0 if none waits.";
    gauge madako_nodes(state) "Nodes of the cluster in the last collection, by state.";
    gauge madako_nodes_unreachable_since_timestamp_seconds()
        "Unix time since which the node that is unreachable for longest is so; 0 if all are reachable.";
    gauge madako_etcd_healthy() "1 if etcd granted a lease in the last collection.";
    gauge madako_etcd_members(state) "Members of the cluster's etcd in the last collection, by state.";
    gauge madako_etcd_certificates_end_timestamp_seconds()
        "Unix time at which the first certificate of a member of etcd ends; 0 if no certificate is known.";
    gauge madako_nodes_with_unreadable_certificates()
        "Control plane nodes with a running member of etcd whose certificates cannot be read and are never renewed.";
    histogram madako_operation_command_seconds(command, outcome) "Duration of commands of operations.";
    histogram madako_operations_collect_seconds() "Duration of reading the state of all nodes.";
    histogram madako_operations_decide_seconds() "Duration of a decision on the next operations.";
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
    /// Time between two rounds without operations.
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

/// A command of an operation with its basis.
#[derive(Clone)]
pub(crate) struct Announced {
    step: AnnouncedStep,
    basis: Basis,
    span: Span,
}

impl Effect for Announced {
    type Outcome = OperationEnd;

    fn attempts(&self) -> u32 {
        1
    }

    fn attempt_limit(&self) -> Duration {
        COMMAND_LOST
    }

    fn pause_limit(&self) -> Duration {
        // There is no second attempt.
        Duration::ZERO
    }
}

/// The configuration of a decision.
struct Inputs {
    state: Arc<ClusterState>,
    cluster: Arc<Cluster>,
    options: Arc<ContainerOptions>,
    /// `None`: Kubernetes is left to CKE.
    kubernetes: Option<ReadOptions>,
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
    /// Nodes of the next wave of restarts.
    wave: usize,
    /// Times since which API servers answer to each health check, by address.
    serving_since: BTreeMap<String, Instant>,
    /// Held operations of the last event.
    held: Vec<String>,
    /// Reasons for which operations wait.
    held_since: FirstSeenTimes<&'static str>,
    unreachable_since: FirstSeenTimes<String>,
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
            wave: 1,
            serving_since: BTreeMap::new(),
            held: Vec::new(),
            held_since: FirstSeenTimes::default(),
            unreachable_since: FirstSeenTimes::default(),
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
                state.changed(new);
                Some(handled)
            }
            RunnerMessage::Tick => {
                state.tick();
                None
            }
            RunnerMessage::Collected { number, collected } => {
                if number != state.collection {
                    return Ok(());
                }
                if let Some((since, _)) = state.collecting.take() {
                    madako_operations_collect_seconds().record(since.elapsed());
                    if let Some(ready) = &collected.authorities {
                        state.refused = ready.is_err();
                    }
                    state.collection_began = since;
                    // The age counts from the answer: with slow nodes a collection may take longer than an interval.
                    state.seen_data |= shows_data(&collected.nodes) || collected.etcd.is_some();
                    if collected.etcd.as_ref().is_some_and(|etcd| etcd.healthy) {
                        state.backing_off.succeeded([&OperationName::EtcdWaitCluster.name().to_owned()]);
                    }
                    state.collected = Some((Instant::now(), collected));
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
                let actions = state.effects.on(event, Instant::now());
                state.perform(actions);
                None
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
        let actions = state.effects.on(EffectEvent::Lost, Instant::now());
        state.perform(actions);
        Ok(())
    }
}

impl RunnerState {
    fn changed(&mut self, new: Arc<ClusterState>) {
        let revision = |state: &ClusterState| state.cluster.as_ref().map(|cluster| cluster.revision);
        let is_other = self.state.as_deref().and_then(revision) != revision(&new);
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
        let actions = self.effects.on(EffectEvent::Passed, Instant::now());
        self.perform(actions);
        self.effects.forgive();
        if self.asking.is_none() {
            self.collected = None;
        }
    }

    /// The configuration of the newest state. `None` while it is older than the last write.
    fn inputs(&self) -> Option<Inputs> {
        let state = self.state.clone().filter(|state| self.effects.may_decide_on(state.revision))?;
        let cluster = Arc::clone(&state.cluster.as_ref()?.value);
        let options = Arc::clone(state.container_options.as_ref()?);
        Some(Inputs { state, cluster, options, kubernetes: self.kubernetes.clone() })
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
        let Some(inputs) = self.inputs() else { return self.say_unusable() };
        if self.given.mode == Mode::Act && (self.settle(&inputs) || self.effects.under_way().is_some()) {
            return self.publish(&inputs);
        }
        let Some((since, collected)) = self.collected.take() else {
            return self.collect(&inputs);
        };
        if since.elapsed() > self.given.interval && self.asking.is_none() {
            return self.collect(&inputs);
        }
        self.decide(&inputs, &collected);
        let must_ask = collected.authorities.is_none() && self.needs_certificates();
        self.collected = Some((since, collected));
        self.publish(&inputs);
        if must_ask {
            return self.ask_authorities();
        }
        if self.given.mode == Mode::Act {
            self.write_phase();
            if !self.settle_restore(&inputs.state) {
                self.begin(&inputs);
            }
        }
        let now = Instant::now();
        let pause = self.backing_off.remaining(now).map(|(_, until)| until - now).min();
        self.wake = pause.map(|pause| send_later(self.myself.clone(), pause, RunnerMessage::Tick));
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
        let (number, myself) = (self.collection, self.myself.clone());
        let question = Question::new(inputs, self.seen_data, self.refused);
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

    fn decide(&mut self, inputs: &Inputs, collected: &Collected) {
        let Some(mut status) = fleet(collected, &inputs.state, None) else {
            self.decision = None;
            return;
        };
        let cluster = &*inputs.cluster;
        let settings = with_images(&self.given.settings, &inputs.state, cluster, &status);
        self.executor.images.clone_from(&settings.images);
        let version: Option<EtcdVersion> = {
            let versions = self.executor.versions.lock().unwrap_or_else(PoisonError::into_inner);
            versions.get(&settings.images.etcd).cloned()
        };
        status.etcd_image_version = version;
        self.backing_off.retain(|address| cluster.nodes.iter().any(|node| node.address == address));
        let started = Instant::now();
        let now = self.given.clock.now();
        let valid = inputs.state.restarts.iter().filter(|(_, request)| request.is_valid(now));
        let restarts = valid.map(|(address, _)| address.clone()).collect();
        let is_under_way = inputs.state.is_restoring();
        let requested = inputs.state.restore.as_ref();
        let requested = requested.filter(|request| is_under_way || request.is_valid(now));
        let nothing = BTreeSet::new();
        let busy = inputs.state.repair.under_way().map(str::to_owned).collect();
        let settling = self.settling(cluster, collected);
        let input = Input {
            cluster,
            options: &inputs.options,
            status: &status,
            now,
            backing_off: &self.backing_off.nodes(started),
            restarts: &restarts,
            restore: requested.map(|request| RequestedRestore { request, is_under_way }),
            stale: inputs.state.restored.as_ref().map_or(&nothing, |restored| &restored.stale),
            authorities: collected
                .authorities
                .as_ref()
                .and_then(|ready| ready.as_ref().err())
                .map(String::as_str),
            kubernetes: inputs.kubernetes.as_ref().map(|read| KubernetesPart {
                options: read.as_ref().as_ref().map(|options| &**options).map_err(String::as_str),
                busy: &busy,
                settling: &settling,
                wave: self.wave,
            }),
            settings: &settings,
        };
        let decision = decide(&input);
        madako_operations_decide_seconds().record(started.elapsed());
        let is_reachable = |address: &&String| status.nodes.get(*address).is_some_and(|node| node.reachable);
        let addresses = || cluster.nodes.iter().map(|node| &node.address);
        self.reachable_since.note(addresses().filter(is_reachable).cloned(), now.unix_timestamp());
        let unreachable = addresses().filter(|address| !is_reachable(address)).cloned();
        self.unreachable_since.note(unreachable, now.unix_timestamp());
        let since = |address: &str, is_reachable: bool| {
            let since = if is_reachable { &self.reachable_since } else { &self.unreachable_since };
            OffsetDateTime::from_unix_timestamp(since.of(&address.to_owned())?).ok()
        };
        let around = StoryContext {
            state: &inputs.state,
            decision: &decision,
            errors: &collected.errors,
            since: &since,
        };
        self.stories = Arc::new(tell_stories(&input, &around));
        self.decision = Some(decision);
    }

    /// Records the end of a command. Returns whether a change is under way.
    fn settle(&mut self, inputs: &Inputs) -> bool {
        let state = &*inputs.state;
        self.resolve(state);
        let now = self.given.clock.now();
        if let Some((announced, conclusion)) = self.effects.conclusion() {
            let (step, basis, span) =
                (announced.step.clone(), announced.basis.clone(), announced.span.clone());
            let failure = failure(conclusion, &step.operation.targets);
            let failed = failure
                .as_ref()
                .map(|(nodes, why)| records::Failed { why: why.clone(), is_final: nodes.is_none() });
            if let Some((change, next)) = records::end(state, &step, failed.as_ref(), now) {
                self.learn(&step, failure, next.is_some());
                let next = next.map(|step| Announced { step, basis, span });
                let action = self.effects.record(change, next, state.revision, Instant::now());
                self.perform(action.into_iter().collect());
                return true;
            }
            self.effects.is_recorded();
        }
        let runs = self.effects.under_way().map(|announced| announced.step.record);
        let change = records::disown(state, runs, now);
        match change.or_else(|| records::forget_restart(state, &inputs.cluster, now)) {
            Some(change) => self.change(change, state),
            None => false,
        }
    }

    /// Commits a change without an effect. Returns whether it is under way.
    fn change(&mut self, change: RepairChange, state: &ClusterState) -> bool {
        let action = self.effects.send_change(change, state.revision, Instant::now());
        self.perform(action.into_iter().collect());
        true
    }

    /// Ends the request of a restore that is refused, over or too old. Returns whether a change is under way.
    fn settle_restore(&mut self, state: &ClusterState) -> bool {
        let etcd = self.collected.as_ref().and_then(|(_, collected)| collected.etcd.as_ref());
        let is_stale = |address: &str| state.restored.as_ref().is_some_and(|it| it.stale.contains(address));
        let address = state.restore.as_ref().map(|request| request.address.as_str());
        let is_done = address.is_some_and(|address| !is_stale(address) && restore::is_done(etcd, address));
        let now = self.given.clock.now();
        let refused = self.decision.as_ref().and_then(|decision| restoring::refuse_request(state, decision));
        match refused.or_else(|| restoring::forget_old_request(state, is_done, now)) {
            Some(change) if self.effects.under_way().is_none() => self.change(change, state),
            _ => false,
        }
    }

    /// Takes the evidence of a newer state about an announcement whose commit was not answered.
    fn resolve(&mut self, state: &ClusterState) {
        let Some(Announced { step, .. }) = self.effects.unconfirmed_announcement() else { return };
        let records = &state.repair.records;
        let evidence = match records.unfinished.get(&step.record) {
            Some(item) if step.is_announced_by(&item.value) => Evidence::Announced,
            None if !records.known.contains_key(&step.record) => Evidence::NotYet,
            // The first command of another operation, or an earlier command of this one, which the conclusion repeats.
            _ => Evidence::Never,
        };
        let actions = self.effects.observe(evidence, Instant::now());
        self.perform(actions);
    }

    /// Counts a command, and leaves out the nodes on which it failed.
    fn learn(&mut self, step: &AnnouncedStep, failure: Option<FailedCommand>, goes_on: bool) {
        let operation = step.operation.name.name();
        let command = step.command();
        if matches!(
            step.operation.name,
            OperationName::Kubernetes(KubernetesOperationName::KubeApiserverRestart)
        ) {
            self.serving_since.retain(|address, _| !step.operation.targets.contains(address));
        }
        self.wave =
            wave(self.wave, step, failure.is_some(), goes_on, self.given.settings.max_concurrent_updates);
        // The collection before an effect says nothing about the nodes after it, nor does its decision.
        self.forget_collected();
        if let Some(decision) = self.decision.as_mut().filter(|_| !goes_on) {
            decision.operations.clear();
        }
        let (what, failed) = match failure {
            None if goes_on => (format!("{command} succeeded"), false),
            None => {
                self.backing_off.succeeded(step.operation.targets.iter().chain([&operation.to_owned()]));
                madako_operations_total(operation, "completed").increment(1);
                (format!("{command} succeeded, and the operation is complete"), false)
            }
            Some((nodes, why)) => {
                if let Some(nodes) = nodes {
                    let nodes = backing_off::causes(&step.operation, command, &nodes);
                    self.backing_off.failed(&self.left_out(step, nodes), Instant::now());
                }
                madako_operations_total(operation, "cancelled").increment(1);
                (format!("{command} failed: {why}"), true)
            }
        };
        self.given.events.emit(Event::Operation { id: step.record, operation, what, failed });
    }

    /// The nodes of the cluster among those on which a command failed. Without one, the operation itself is left out.
    fn left_out(&self, step: &AnnouncedStep, failed: &[String]) -> Vec<String> {
        let cluster = self.state.as_ref().and_then(|state| state.cluster.as_ref());
        let is_node = |address: &&String| {
            cluster.is_some_and(|cluster| cluster.value.nodes.iter().any(|node| node.address == **address))
        };
        let nodes: Vec<String> = failed.iter().filter(is_node).cloned().collect();
        if nodes.is_empty() {
            return vec![step.operation.name.name().to_owned()];
        }
        nodes
    }

    /// Announces the first operation of the decision, unless a record is unfinished.
    fn begin(&mut self, inputs: &Inputs) {
        let Some(operation) = self.decision.as_ref().and_then(|decision| decision.operations.first()) else {
            return;
        };
        let now = self.given.clock.now();
        let Some((change, step)) = records::begin(&inputs.state, &Arc::new(operation.clone()), now) else {
            return;
        };
        let span = tracing::info_span!("operation", operation = operation.name.name(), record = step.record);
        let basis = Basis {
            cluster: Arc::clone(&inputs.cluster),
            options: Arc::clone(&inputs.options),
            asked: collect::asked(&inputs.cluster, &inputs.state),
            certificates: Arc::new(self.certificates(operation)),
            kubernetes: inputs.kubernetes.as_ref().and_then(|read| read.as_ref().as_ref().ok().cloned()),
            kubelets: Arc::new(self.kubelets(operation)),
        };
        let (id, operation) = (step.record, operation.name.name());
        let what = format!("begins on {}", step.operation.targets.join(", "));
        let announced = Announced { step, basis, span };
        let action = self.effects.announce(change, announced, inputs.state.revision, Instant::now());
        if action.is_some() {
            self.given.events.emit(Event::Operation { id, operation, what, failed: false });
            self.forget_collected();
        }
        self.perform(action.into_iter().collect());
    }

    fn certificates(&self, operation: &Operation) -> BTreeMap<String, BTreeMap<String, NodeCertificate>> {
        let nodes = self.collected.iter().flat_map(|(_, collected)| &collected.nodes);
        let targets = nodes.filter(|(address, _)| operation.targets.contains(address));
        targets.map(|(address, status)| (address.clone(), status.etcd_certificates.clone())).collect()
    }

    /// Nodes whose API server is not known to be healthy for [`API_SETTLED`].
    fn settling(&mut self, cluster: &Cluster, collected: &Collected) -> BTreeSet<String> {
        let now = Instant::now();
        let mut settling = BTreeSet::new();
        for node in cluster.control_plane() {
            let serves =
                |answers: &KubernetesAnswers| answers.is_healthy(Component::ApiServer, &node.address);
            if collected.kubernetes.as_ref().is_some_and(serves) {
                let since = *self.serving_since.entry(node.address.clone()).or_insert(now);
                if now - since < API_SETTLED {
                    settling.insert(node.address.clone());
                }
            } else {
                self.serving_since.remove(&node.address);
                settling.insert(node.address.clone());
            }
        }
        self.serving_since.retain(|address, _| cluster.control_plane().any(|node| node.address == *address));
        settling
    }

    /// Configuration files of the kubelets that run on the targets.
    fn kubelets(&self, operation: &Operation) -> BTreeMap<String, String> {
        let nodes = self.collected.iter().flat_map(|(_, collected)| &collected.nodes);
        let targets = nodes.filter(|(address, _)| operation.targets.contains(address));
        let running = targets.filter(|(_, node)| node.runs(Component::Kubelet));
        let file = |node: &NodeStatus| node.configurations.get(&Component::Kubelet)?.clone();
        running.filter_map(|(address, node)| Some((address.clone(), file(node)?))).collect()
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

    fn perform(&mut self, actions: Vec<Action<RepairChange, Announced>>) {
        for action in actions {
            match action {
                Action::Commit { number, change } => {
                    self.runner.commit(number, Mutation::Repair(Box::new(change)));
                }
                Action::Answered { result } => {
                    if let Err(error) = result {
                        let what = "operation";
                        self.given.events.emit(Event::CommitFailed { what, why: error.to_string() });
                    }
                }
                Action::Ask { number, effect } => effect.span.in_scope(|| self.runner.ask(number)),
                Action::Start { number, effect, .. } => self.start(number, effect),
                // No effect has a second attempt.
                Action::Pause { .. } | Action::Decide => {}
                Action::Abort => self.runner.abort(),
                Action::Record { effect, took } => {
                    let is_success = |(_, end): (_, &Conclusion<_>)| {
                        matches!(end, Conclusion::Ended(OperationEnd::Succeeded))
                    };
                    let failed = !self.effects.conclusion().is_none_or(is_success);
                    let outcome = if failed { "failed" } else { "succeeded" };
                    let command = effect.step.command().name();
                    madako_operation_command_seconds(command, outcome).record(took);
                }
                Action::Report { effect, left } => {
                    let record = effect.step.record;
                    tracing::warn!(record, ?left, "the next leader cancels the record of an operation");
                }
            }
        }
        self.runner.wake_at(self.effects.wake());
    }

    /// Executes a command. Each action in it takes a permit of its own.
    fn start(&mut self, number: u64, announced: Announced) {
        let executor = self.executor.clone();
        let Announced { step, basis, span } = announced;
        let _operation = span.entered();
        self.runner.carry_out(async move {
            let end = executor.execute(&step.operation, step.index, &basis).await;
            EffectEvent::Ended { number, end: AttemptEnd::Final(end) }
        });
    }
}

/// The nodes of the next wave of restarts: twice as many after a good one, and one after a failure.
fn wave(now: usize, step: &AnnouncedStep, has_failed: bool, goes_on: bool, most: usize) -> usize {
    use KubernetesOperationName::{KubeProxyRestart, KubeletRestart};
    match step.operation.name {
        OperationName::Kubernetes(KubeletRestart | KubeProxyRestart) if has_failed => 1,
        OperationName::Kubernetes(KubeletRestart | KubeProxyRestart) if !goes_on => {
            (now * 2).min(most.max(1))
        }
        _ => now,
    }
}

/// The failure of a command: the nodes on which it failed, or `None` if nothing backs off, and the reason.
type FailedCommand = (Option<Vec<String>>, String);

/// The failure of a command. An operation that must be held leaves out no node.
fn failure(conclusion: &Conclusion<OperationEnd>, targets: &[String]) -> Option<FailedCommand> {
    match conclusion {
        Conclusion::Ended(OperationEnd::Succeeded) => None,
        Conclusion::Ended(OperationEnd::Failed { nodes, why }) => {
            Some((Some(nodes.iter().cloned().collect()), why.clone()))
        }
        Conclusion::Ended(OperationEnd::Held { why }) => Some((None, why.clone())),
        Conclusion::Withdrawn { why, .. } => Some((Some(Vec::new()), why.clone())),
        Conclusion::Unheard { limit } => Some((
            Some(targets.to_vec()),
            format!("outcome unknown: the command did not end within {limit:?}"),
        )),
    }
}

#[cfg(test)]
mod tests;

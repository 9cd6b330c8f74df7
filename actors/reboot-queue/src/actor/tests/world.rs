//! Test support: fakes of the leader, the host and Kubernetes around the reboot queue's actor.

mod runner;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::invariants::repair::check_repair_change;
use madako_domain::kubernetes::{ANNOTATION_REBOOT, EvictionOutcome, KubeNode, Pod, PodId, PodPhase};
use madako_domain::node_status::{EtcdMember, EtcdStatus};
use madako_domain::reboot::{RebootQueueEntry, RebootSettings};
use madako_domain::record::Record;
use madako_domain::state::ClusterState;
use madako_protocol::actors::{CommitError, Committed, LeaderMessage, Mutation, RebootMessage};
use madako_protocol::event::{Event, EventSink};
use madako_protocol::host::{Host, HostCommand, HostEnd, HostError, HostOutcome};
use madako_protocol::kubernetes::{Kubernetes, KubernetesError};
use madako_protocol::latest::{self, Publisher};
use madako_protocol::mailbox::Envelope;
use madako_protocol::operations::OperationsState;
use madako_protocol::permit::Permit;
use madako_protocol::ports::Clock;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use time::OffsetDateTime;
use tokio::time::Instant;

use self::runner::{FakeRunner, Preparations};
use crate::next_action::Explained;
use crate::testing::{NOW, Store};
use crate::{RebootArguments, RebootQueueActor};

/// Far longer than any wait on paused time.
const PATIENCE: Duration = Duration::from_secs(100_000);
const EPOCH: i64 = 7;
/// Time from the reboot command until the node has booted.
const BOOT_TAKES: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Does {
    Boots,
    Fails,
    IsLost,
    IsKilled,
    Hangs,
}

#[derive(Default)]
struct HostState {
    does: Option<Does>,
    ran: Vec<Vec<String>>,
    /// Times at which nodes have booted.
    booted: BTreeMap<String, Instant>,
}

#[derive(Default)]
pub(super) struct FakeHost(Mutex<HostState>);

impl FakeHost {
    pub(super) fn does(&self, does: Does) {
        self.0.lock().unwrap().does = Some(does);
    }

    /// The node boots now.
    pub(super) fn boot(&self, node: &str) {
        self.0.lock().unwrap().booted.insert(node.to_owned(), Instant::now());
    }

    /// All commands; of equal boot checks one.
    pub(super) fn ran(&self) -> Vec<String> {
        let mut ran: Vec<String> = self.0.lock().unwrap().ran.iter().map(|words| words.join(" ")).collect();
        ran.dedup_by(|later, before| later == before && later.starts_with("check "));
        ran
    }

    /// Seconds from [`NOW`] to the time that the last boot check named.
    pub(super) fn boot_check_since(&self) -> i64 {
        let state = self.0.lock().unwrap();
        let check = state.ran.iter().rfind(|words| words[0] == "check").unwrap();
        check[2].parse::<i64>().unwrap() - NOW.unix_timestamp()
    }
}

#[async_trait]
impl Host for FakeHost {
    async fn run(&self, permit: &Permit, command: HostCommand) -> Result<HostOutcome, HostError> {
        permit.check(Instant::now())?;
        let outcome = |end: HostEnd, stdout: &str| HostOutcome {
            end,
            stdout: stdout.to_owned(),
            stderr: String::new(),
            cut: false,
            took: Duration::from_secs(1),
        };
        let (program, node) = (command.words[0].clone(), command.words[1].clone());
        let does = {
            let mut state = self.0.lock().unwrap();
            state.ran.push(command.words.clone());
            state.does.unwrap_or(Does::Boots)
        };
        if program == "check" {
            let booted = self.0.lock().unwrap().booted.get(&node).is_some_and(|at| *at <= Instant::now());
            return Ok(outcome(HostEnd::Exited { code: 0 }, if booted { "true\n" } else { "false\n" }));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        match does {
            Does::Boots => {
                self.0.lock().unwrap().booted.insert(node, Instant::now() + BOOT_TAKES);
                Ok(outcome(HostEnd::Exited { code: 0 }, ""))
            }
            Does::Fails => Ok(outcome(HostEnd::Exited { code: 1 }, "")),
            Does::IsLost => Err(HostError::Lost { program, why: "its watcher ended".to_owned() }),
            Does::IsKilled => Ok(outcome(HostEnd::Deadline, "")),
            Does::Hangs => std::future::pending().await,
        }
    }
}

#[derive(Default)]
struct KubeState {
    nodes: BTreeMap<String, KubeNode>,
    pods: Vec<(String, Pod)>,
    on_delete: BTreeSet<String>,
    protected: BTreeSet<String>,
    budget: BTreeSet<String>,
    stuck: BTreeSet<String>,
    writes: Vec<String>,
    asked: usize,
    /// Time until an answer about a node or to a dry run, on the paused clock of the tests.
    latency: Duration,
}

#[derive(Default)]
pub(super) struct FakeKubernetes(Mutex<KubeState>);

/// A running pod in the namespace `apps`.
pub(super) fn pod(name: &str, controller: &str) -> Pod {
    Pod {
        id: PodId { namespace: "apps".to_owned(), name: name.to_owned(), uid: name.to_owned() },
        phase: PodPhase::Running,
        controller: Some(controller.to_owned()),
        mirror: false,
        deleted_at: None,
    }
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

impl FakeKubernetes {
    pub(super) fn pods(&self, pods: &[(&str, Pod)]) {
        let pods = pods.iter().map(|(node, pod)| ((*node).to_owned(), pod.clone()));
        self.0.lock().unwrap().pods.extend(pods);
    }

    pub(super) fn on_delete(&self, pods: &[&str]) {
        self.0.lock().unwrap().on_delete = names(pods);
    }

    /// Namespaces whose pods are not deleted.
    pub(super) fn protect(&self, namespaces: &[&str]) {
        self.0.lock().unwrap().protected = names(namespaces);
    }

    /// Pods whose eviction a budget forbids.
    pub(super) fn budget(&self, pods: &[&str]) {
        self.0.lock().unwrap().budget = names(pods);
    }

    /// Pods that do not end; the others that were asked to end are gone.
    pub(super) fn stick(&self, pods: &[&str]) {
        let mut state = self.0.lock().unwrap();
        state.stuck = names(pods);
        let stuck = state.stuck.clone();
        state.pods.retain(|(_, pod)| pod.deleted_at.is_none() || stuck.contains(&pod.id.name));
    }

    pub(super) fn volumes(&self, node: &str, volumes: &[&str]) {
        let volumes = volumes.iter().map(|volume| (*volume).to_owned()).collect();
        self.0.lock().unwrap().node(node).volumes_in_use = volumes;
    }

    pub(super) fn unreachable(&self, node: &str) {
        self.0.lock().unwrap().node(node).ready = None;
    }

    /// Answers about nodes and to dry runs take this long, and show the node at their end.
    pub(super) fn answer_within(&self, latency: Duration) {
        self.0.lock().unwrap().latency = latency;
    }

    /// All writes: `cordon NODE`, `try POD`, `evict POD`, `delete POD`.
    pub(super) fn writes(&self) -> Vec<String> {
        self.0.lock().unwrap().writes.clone()
    }

    pub(super) fn asked(&self) -> usize {
        self.0.lock().unwrap().asked
    }
}

impl KubeState {
    fn node(&mut self, name: &str) -> &mut KubeNode {
        self.asked += 1;
        self.nodes.entry(name.to_owned()).or_insert_with(|| KubeNode {
            name: name.to_owned(),
            ready: Some(true),
            ..KubeNode::default()
        })
    }

    fn end(&mut self, pod: &PodId) {
        let stuck = self.stuck.contains(&pod.name);
        self.pods.retain_mut(|(_, known)| {
            known.deleted_at = if known.id == *pod { Some(NOW) } else { known.deleted_at };
            known.id != *pod || stuck
        });
    }
}

#[async_trait]
impl Kubernetes for FakeKubernetes {
    async fn nodes(&self) -> Result<Vec<KubeNode>, KubernetesError> {
        panic!("a drain reads its node alone")
    }

    async fn node(&self, name: &str) -> Result<Option<KubeNode>, KubernetesError> {
        let latency = self.0.lock().unwrap().latency;
        tokio::time::sleep(latency).await;
        Ok(Some(self.0.lock().unwrap().node(name).clone()))
    }

    async fn namespaces(&self, _: &str) -> Result<BTreeSet<String>, KubernetesError> {
        Ok(self.0.lock().unwrap().protected.clone())
    }

    async fn pods_on(&self, node: &str) -> Result<Vec<Pod>, KubernetesError> {
        let state = self.0.lock().unwrap();
        Ok(state.pods.iter().filter(|(on, _)| on == node).map(|(_, pod)| pod.clone()).collect())
    }

    async fn on_delete_pods(&self, node: &str) -> Result<Vec<PodId>, KubernetesError> {
        let state = self.0.lock().unwrap();
        let pods = state.pods.iter().filter(|(on, pod)| on == node && state.on_delete.contains(&pod.id.name));
        Ok(pods.map(|(_, pod)| pod.id.clone()).collect())
    }

    async fn cordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError> {
        permit.check(Instant::now())?;
        let mut state = self.0.lock().unwrap();
        state.writes.push(format!("cordon {node}"));
        let node = state.node(node);
        node.unschedulable = true;
        node.annotations.insert(ANNOTATION_REBOOT.to_owned(), "true".to_owned());
        Ok(())
    }

    async fn uncordon(&self, _: &Permit, _: &str) -> Result<(), KubernetesError> {
        panic!("the repair queue takes back all cordons")
    }

    async fn evict(
        &self,
        permit: &Permit,
        pod: &PodId,
        dry_run: bool,
    ) -> Result<EvictionOutcome, KubernetesError> {
        let latency = self.0.lock().unwrap().latency;
        tokio::time::sleep(if dry_run { latency } else { Duration::ZERO }).await;
        permit.check(Instant::now())?;
        let mut state = self.0.lock().unwrap();
        state.writes.push(format!("{} {}", if dry_run { "try" } else { "evict" }, pod.name));
        if state.budget.contains(&pod.name) {
            return Ok(EvictionOutcome::Refused { why: "disruption budget".to_owned() });
        }
        if !dry_run {
            state.end(pod);
        }
        Ok(EvictionOutcome::Accepted)
    }

    async fn delete(&self, permit: &Permit, pod: &PodId) -> Result<(), KubernetesError> {
        permit.check(Instant::now())?;
        let mut state = self.0.lock().unwrap();
        state.writes.push(format!("delete {}", pod.name));
        state.end(pod);
        Ok(())
    }
}

struct TestClock(Instant);

impl Clock for TestClock {
    fn now(&self) -> OffsetDateTime {
        NOW + self.0.elapsed()
    }
}

#[derive(Default)]
struct Events(Mutex<Vec<Event>>);

impl EventSink for Events {
    fn emit(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

/// The store behind the leader.
struct LeaderState {
    store: Store,
    state: Publisher<Arc<ClusterState>>,
    /// Invariants that submitted changes would have broken.
    broken: Vec<String>,
}

struct FakeLeader;

impl Actor for FakeLeader {
    type Msg = Envelope<LeaderMessage>;
    type State = Arc<Mutex<LeaderState>>;
    type Arguments = Arc<Mutex<LeaderState>>;

    async fn pre_start(
        &self,
        _: ActorRef<Envelope<LeaderMessage>>,
        leader_state: Arc<Mutex<LeaderState>>,
    ) -> Result<Arc<Mutex<LeaderState>>, ActorProcessingErr> {
        Ok(leader_state)
    }

    async fn handle(
        &self,
        _: ActorRef<Envelope<LeaderMessage>>,
        envelope: Envelope<LeaderMessage>,
        leader_state: &mut Arc<Mutex<LeaderState>>,
    ) -> Result<(), ActorProcessingErr> {
        match envelope.open() {
            LeaderMessage::Permit { epoch, reply } => {
                let _ = reply.send(Some(Permit::give(epoch, Instant::now() + Duration::from_secs(10))));
            }
            LeaderMessage::Commit { mutation: Mutation::Repair(change), reply, .. } => {
                let mut leader_state = leader_state.lock().unwrap();
                let state = leader_state.store.state();
                let cluster = state.cluster.as_ref().map(|cluster| &*cluster.value);
                let violations = check_repair_change(&change, &state.repair, cluster, 0);
                if !violations.is_empty() {
                    leader_state.broken.push(format!("{violations:?}: {change:?}"));
                }
                let result = if leader_state.store.commit(&change) {
                    let state = Arc::new(leader_state.store.state());
                    leader_state.state.publish(state);
                    Ok(Committed { revision: leader_state.store.revision })
                } else {
                    Err(CommitError::Conflict { keys: Vec::new() })
                };
                let _ = reply.send(result);
            }
            other => panic!("{other:?}"),
        }
        Ok(())
    }
}

pub(super) struct World {
    preparations: Preparations,
    leader_state: Arc<Mutex<LeaderState>>,
    pub(super) host: Arc<FakeHost>,
    pub(super) kubernetes: Arc<FakeKubernetes>,
    events: Arc<Events>,
    found: Publisher<Arc<OperationsState>>,
    clock: Arc<TestClock>,
    arguments: RebootArguments,
    actor: Option<ActorRef<Envelope<RebootMessage>>>,
    refresh: Arc<Mutex<OperationsState>>,
}

impl World {
    pub(super) fn new(store: Store) -> Self {
        static WORLDS: AtomicU64 = AtomicU64::new(0);
        let leader = format!("reboot-world-{}/leader", WORLDS.fetch_add(1, Ordering::Relaxed));
        let (publisher, state) = latest::channel();
        let (found, operations) = latest::channel();
        let leader_state = Arc::new(Mutex::new(LeaderState { store, state: publisher, broken: Vec::new() }));
        let (host, kubernetes, events) = (Arc::default(), Arc::default(), Arc::new(Events::default()));
        let clock = Arc::new(TestClock(Instant::now()));
        let arguments = RebootArguments {
            epoch: EPOCH,
            leader,
            interval: Duration::from_secs(10),
            seed: 1,
            settings: RebootSettings::default(),
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            events: Arc::clone(&events) as Arc<dyn EventSink>,
            state,
            operations: Some(operations),
            runner: None,
            host: Some(Arc::clone(&host) as Arc<dyn Host>),
            kubernetes: Some(Arc::clone(&kubernetes) as Arc<dyn Kubernetes>),
            page: latest::channel().0,
        };
        let refresh = OperationsState {
            is_due: false,
            updates_kubelets: true,
            has_data: true,
            unreachable: BTreeSet::new(),
            etcd: Some(Arc::new(EtcdStatus { healthy: true, members: Vec::new() })),
            api_servers: BTreeMap::new(),
            read_at: Instant::now(),
        };
        let refresh = Arc::new(Mutex::new(refresh));
        Self {
            preparations: Arc::default(),
            leader_state,
            host,
            kubernetes,
            events,
            found,
            clock,
            arguments,
            actor: None,
            refresh,
        }
    }

    /// From now on the operation runner prepares nodes.
    pub(super) async fn run_operations(&mut self) {
        let runner = format!("{}/runner", self.arguments.leader);
        Actor::spawn(Some(runner.clone()), FakeRunner, Arc::clone(&self.preparations)).await.unwrap();
        self.arguments.runner = Some(runner);
    }

    /// The reason for which the operation runner refuses reboots.
    pub(super) fn refuse_reboots(&self, why: Option<&str>) {
        self.preparations.lock().unwrap().refusal = why.map(str::to_owned);
    }

    /// Nodes that the operation runner was asked to prepare.
    pub(super) fn prepared(&self) -> Vec<String> {
        self.preparations.lock().unwrap().asked.clone()
    }

    /// Lets preparations take this long.
    pub(super) fn prepare_within(&self, time: Duration) {
        self.preparations.lock().unwrap().takes = time;
    }

    /// Number of preparations that ended without an answer.
    pub(super) fn abandoned(&self) -> usize {
        self.preparations.lock().unwrap().abandoned
    }

    pub(super) async fn begin(&mut self) {
        if ractor::registry::where_is(self.arguments.leader.clone()).is_none() {
            let (leader, leader_state) = (self.arguments.leader.clone(), Arc::clone(&self.leader_state));
            Actor::spawn(Some(leader), FakeLeader, leader_state).await.unwrap();
            // The operation runner reads the nodes once an interval.
            let (found, refresh) = (self.found.clone(), Arc::clone(&self.refresh));
            tokio::spawn(async move {
                loop {
                    let newest =
                        OperationsState { read_at: Instant::now(), ..refresh.lock().unwrap().clone() };
                    found.publish(Arc::new(newest));
                    tokio::time::sleep(Duration::from_secs(5)).await;
                }
            });
        }
        self.change(|_| {});
        let (actor, _) = Actor::spawn(None, RebootQueueActor, self.arguments.clone()).await.unwrap();
        self.actor = Some(actor);
    }

    /// Ends the reboot queue and its tasks at once.
    pub(super) async fn kill(&mut self) {
        self.actor.take().unwrap().kill_and_wait(None).await.unwrap();
    }

    pub(super) fn now(&self) -> OffsetDateTime {
        self.clock.now()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Store)) {
        let mut leader_state = self.leader_state.lock().unwrap();
        change(&mut leader_state.store);
        let state = Arc::new(leader_state.store.state());
        leader_state.state.publish(state);
    }

    /// Sets whether etcd is good, and whether an operation on nodes is due.
    pub(super) fn etcd(&self, good: bool, is_due: bool) {
        let member = EtcdMember { in_sync: Some(good), ..EtcdMember::default() };
        let etcd = Some(Arc::new(EtcdStatus { healthy: true, members: vec![member] }));
        let mut state = self.refresh.lock().unwrap();
        *state = OperationsState { is_due, etcd, read_at: Instant::now(), ..state.clone() };
        self.found.publish(Arc::new(state.clone()));
    }

    pub(super) fn unreachable(&self, nodes: &[&str]) {
        let mut state = self.refresh.lock().unwrap();
        state.unreachable = names(nodes);
        self.found.publish(Arc::new(OperationsState { read_at: Instant::now(), ..state.clone() }));
    }

    pub(super) fn entry(&self, index: i64) -> Option<RebootQueueEntry> {
        let state = self.leader_state.lock().unwrap().store.state();
        state.repair.reboots.get(&index).map(|item| item.value.clone())
    }

    pub(super) fn stored(&self, key: &str) -> Option<String> {
        let leader_state = self.leader_state.lock().unwrap();
        leader_state.store.entries.get(key).map(|entry| String::from_utf8(entry.value.to_vec()).unwrap())
    }

    /// Polls on paused time until there is a value.
    async fn until<T>(&self, what: &str, found: impl Fn() -> Option<T>) -> T {
        let observed = async {
            loop {
                match found() {
                    Some(value) => return value,
                    None => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        };
        let observed = tokio::time::timeout(PATIENCE, observed).await;
        observed.unwrap_or_else(|_| panic!("waited in vain for {what}: {:?}", self.events.0.lock().unwrap()))
    }

    pub(super) async fn until_gone(&self, index: i64) {
        self.until("the removal of an entry", || self.entry(index).is_none().then_some(())).await;
        // The records and `reboots/running` follow at once.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }

    pub(super) async fn until_entry(
        &self,
        index: i64,
        holds: impl Fn(&RebootQueueEntry) -> bool,
    ) -> RebootQueueEntry {
        self.until("an entry", || self.entry(index).filter(&holds)).await
    }

    /// Waits until the record with this place in the history has ended.
    pub(super) async fn until_record(&self, place: usize) {
        let ended = || self.records().get(place).is_some_and(|record| !record.is_unfinished()).then_some(());
        self.until("the end of a record", ended).await;
    }

    pub(super) async fn until_prepared(&self) {
        self.until("a preparation", || (!self.prepared().is_empty()).then_some(())).await;
    }

    pub(super) async fn until_ran(&self, count: usize) {
        self.until("commands", || (self.host.ran().len() >= count).then_some(())).await;
    }

    fn records(&self) -> Vec<Record> {
        let leader_state = self.leader_state.lock().unwrap();
        let records = leader_state.store.entries.iter().filter(|(key, _)| key.starts_with("records/"));
        records.map(|(_, entry)| serde_json::from_slice(&entry.value).unwrap()).collect()
    }

    /// Operation, status, and info or error of each record.
    pub(super) fn history(&self) -> Vec<String> {
        let text = |record: &Record| {
            let info = if record.operation == "reboot-reboot" && record.error.is_empty() {
                ""
            } else {
                &record.info
            };
            format!("{} {} {}{}", record.operation, record.status, info, record.error).trim_end().to_owned()
        };
        self.records().iter().map(text).collect()
    }

    /// Invariants that changes would have broken.
    pub(super) fn broken(&self) -> Vec<String> {
        self.leader_state.lock().unwrap().broken.clone()
    }

    /// The entry on the page `/reboots`.
    pub(super) fn published(&self, index: i64) -> Option<Explained> {
        let page = self.arguments.page.newest()?;
        assert_eq!(page.epoch, EPOCH);
        page.entries.iter().find(|entry| entry.index == index).cloned()
    }

    /// Name of the obstacle that was reported last.
    pub(super) fn waits(&self) -> &'static str {
        let events = self.events.0.lock().unwrap();
        let mut reasons = events.iter().filter_map(|event| match event {
            Event::RebootWaits { reason, .. } => Some(*reason),
            _ => None,
        });
        reasons.next_back().unwrap_or("")
    }
}

//! Test support: fakes of the store, the leader, the host and Kubernetes around the repair queue's actor.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::invariants::Violation;
use madako_domain::invariants::repair::check_repair_change;
use madako_domain::kubernetes::{ANNOTATION_REBOOT, EvictionOutcome, KubeNode, Pod, PodId, PodPhase};
use madako_domain::observation::Observation;
use madako_domain::record::Record;
use madako_domain::repair::change::RepairChange;
use madako_domain::repair::hold::HoldSettings;
use madako_domain::repair::report::Reports;
use madako_domain::repair::{RepairQueueEntry, RepairStatus};
use madako_domain::state::ClusterState;
use madako_domain::store::Condition;
use madako_protocol::actors::{CommitError, Committed, LeaderMessage, Mutation};
use madako_protocol::event::{Event, EventSink};
use madako_protocol::host::{Host, HostCommand, HostEnd, HostError, HostOutcome};
use madako_protocol::kubernetes::{Kubernetes, KubernetesError};
use madako_protocol::latest::{self, Publisher};
use madako_protocol::mailbox::Envelope;
use madako_protocol::permit::Permit;
use madako_protocol::ports::Clock;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use time::OffsetDateTime;
use tokio::time::Instant;

use crate::testing::{NOW, Store};
use crate::{RepairArguments, RepairQueueActor};

/// Far longer than any wait on paused time.
const PATIENCE: Duration = Duration::from_secs(100_000);

const EPOCH: i64 = 7;

#[derive(Debug, Clone)]
pub(super) enum Does {
    Exits(i32),
    /// The machine is healthy afterwards, whatever the exit code.
    CuresAndExits(i32),
    Hangs,
    Takes(Duration),
    GetsLost,
    NotBegin,
}

/// Receives the program of each command.
type Watch = Box<dyn FnMut(&str) + Send>;

#[derive(Default)]
pub(super) struct HostState {
    /// Arguments of every command except checks.
    pub(super) ran: Vec<Vec<String>>,
    pub(super) checks: usize,
    pub(super) checked: BTreeMap<String, usize>,
    /// Machines whose checks succeed.
    pub(super) healthy: BTreeSet<String>,
    /// Machines that `reset` makes healthy.
    pub(super) cured: BTreeSet<String>,
    pub(super) does: BTreeMap<String, Does>,
    /// Running commands except checks; `at_once` is their maximum.
    pub(super) running: usize,
    pub(super) at_once: usize,
    /// Called when a command other than a check starts.
    pub(super) watch: Option<Watch>,
}

#[derive(Default)]
pub(super) struct FakeHost(pub(super) Mutex<HostState>);

struct Runs<'a>(&'a FakeHost);

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().running -= 1;
    }
}

fn outcome(code: i32, stdout: &str) -> HostOutcome {
    HostOutcome {
        end: HostEnd::Exited { code },
        stdout: stdout.to_owned(),
        stderr: String::new(),
        cut: false,
        took: Duration::from_secs(1),
    }
}

#[async_trait]
impl Host for FakeHost {
    async fn run(&self, permit: &Permit, command: HostCommand) -> Result<HostOutcome, HostError> {
        permit.check(Instant::now())?;
        let (program, address) = (command.words[0].clone(), command.words.last().unwrap().clone());
        let does = self.0.lock().unwrap().does.get(&program).cloned().unwrap_or(Does::Exits(0));
        let _runs = (program != "check").then(|| {
            let mut state = self.0.lock().unwrap();
            if let Some(watch) = &mut state.watch {
                watch(&program);
            }
            state.ran.push(command.words.clone());
            state.running += 1;
            state.at_once = state.at_once.max(state.running);
            Runs(self)
        });
        let code = match does {
            Does::Exits(code) => code,
            Does::CuresAndExits(code) => {
                self.0.lock().unwrap().healthy.insert(address.clone());
                code
            }
            Does::Hangs => {
                tokio::time::sleep(command.deadline).await;
                return Ok(HostOutcome { end: HostEnd::Deadline, ..outcome(0, "") });
            }
            Does::Takes(time) => {
                tokio::time::sleep(time).await;
                0
            }
            Does::GetsLost => return Err(HostError::Lost { program, why: "watcher died".to_owned() }),
            Does::NotBegin => {
                return Err(HostError::NotStarted { program, why: "no such file".to_owned() });
            }
        };
        let mut state = self.0.lock().unwrap();
        if program == "check" {
            state.checks += 1;
            *state.checked.entry(address.clone()).or_default() += 1;
            let healthy = state.healthy.contains(&address);
            return Ok(outcome(code, if healthy { "true\n" } else { "false\n" }));
        }
        if program == "reset" && code == 0 && state.cured.contains(&address) {
            state.healthy.insert(address);
        }
        Ok(outcome(code, ""))
    }
}

#[derive(Default)]
pub(super) struct KubeState {
    pub(super) nodes: BTreeMap<String, KubeNode>,
    pub(super) pods: BTreeMap<String, Vec<Pod>>,
    pub(super) protected: BTreeSet<String>,
    /// Names of pods whose eviction is refused.
    pub(super) budget: BTreeSet<String>,
    /// Number of refused evictions for each pod; dry runs do not count.
    pub(super) refusals: BTreeMap<String, usize>,
    /// Names of pods that never end.
    pub(super) stuck: BTreeSet<String>,
    pub(super) down: Option<KubernetesError>,
    /// Duration of each answer.
    pub(super) takes: Duration,
    /// Errors of the next effects, each after its permit has ended.
    pub(super) cut: VecDeque<KubernetesError>,
    pub(super) calls: Vec<String>,
}

#[derive(Default)]
pub(super) struct FakeKubernetes(pub(super) Mutex<KubeState>);

impl FakeKubernetes {
    async fn ask(&self, call: String) -> Result<std::sync::MutexGuard<'_, KubeState>, KubernetesError> {
        let takes = {
            let mut state = self.0.lock().unwrap();
            state.calls.push(call);
            state.takes
        };
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        let state = self.0.lock().unwrap();
        match &state.down {
            Some(error) => Err(error.clone()),
            None => Ok(state),
        }
    }
}

impl FakeKubernetes {
    /// As [`Self::ask`], for requests with a permit.
    async fn act(
        &self,
        permit: &Permit,
        call: String,
    ) -> Result<std::sync::MutexGuard<'_, KubeState>, KubernetesError> {
        permit.check(Instant::now())?;
        let cut = self.0.lock().unwrap().cut.pop_front();
        if let Some(error) = cut {
            self.0.lock().unwrap().calls.push(format!("cut {call}"));
            tokio::time::sleep_until(permit.expires_at()).await;
            return Err(error);
        }
        self.ask(call).await
    }
}

#[async_trait]
impl Kubernetes for FakeKubernetes {
    async fn nodes(&self) -> Result<Vec<KubeNode>, KubernetesError> {
        Ok(self.ask("nodes".to_owned()).await?.nodes.values().cloned().collect())
    }

    async fn namespaces(&self, _: &str) -> Result<BTreeSet<String>, KubernetesError> {
        Ok(self.ask("namespaces".to_owned()).await?.protected.clone())
    }

    async fn pods_on(&self, node: &str) -> Result<Vec<Pod>, KubernetesError> {
        Ok(self.ask(format!("pods {node}")).await?.pods.get(node).cloned().unwrap_or_default())
    }

    async fn on_delete_pods(&self, _: &str) -> Result<Vec<PodId>, KubernetesError> {
        panic!("only reboots delete pods of DaemonSets")
    }

    async fn cordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError> {
        let mut state = self.act(permit, format!("cordon {node}")).await?;
        let known = state.nodes.entry(node.to_owned()).or_default();
        node.clone_into(&mut known.name);
        let node = known;
        node.unschedulable = true;
        node.annotations.insert(ANNOTATION_REBOOT.to_owned(), "true".to_owned());
        Ok(())
    }

    async fn uncordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError> {
        let mut state = self.act(permit, format!("uncordon {node}")).await?;
        let node = state.nodes.entry(node.to_owned()).or_default();
        node.unschedulable = false;
        node.annotations.clear();
        Ok(())
    }

    async fn evict(
        &self,
        permit: &Permit,
        pod: &PodId,
        dry_run: bool,
    ) -> Result<EvictionOutcome, KubernetesError> {
        let what = if dry_run { "try" } else { "evict" };
        let mut state = self.act(permit, format!("{what} {pod}")).await?;
        if state.budget.contains(&pod.name) {
            return Ok(EvictionOutcome::Refused { why: "disruption budget".to_owned() });
        }
        if !dry_run {
            if let Some(left) = state.refusals.get_mut(&pod.name).filter(|left| **left > 0) {
                *left -= 1;
                return Ok(EvictionOutcome::Refused { why: "disruption budget".to_owned() });
            }
            state.end(pod);
        }
        Ok(EvictionOutcome::Accepted)
    }

    async fn delete(&self, permit: &Permit, pod: &PodId) -> Result<(), KubernetesError> {
        self.act(permit, format!("delete {pod}")).await?.end(pod);
        Ok(())
    }
}

impl KubeState {
    fn end(&mut self, pod: &PodId) {
        let stuck = self.stuck.contains(&pod.name);
        for pods in self.pods.values_mut() {
            pods.retain_mut(|known| {
                known.deleted_at = if known.id == *pod { Some(NOW) } else { known.deleted_at };
                known.id != *pod || stuck
            });
        }
    }
}

/// A pod of a replica set in the namespace `apps`.
pub(super) fn pod(name: &str, controller: &str) -> Pod {
    Pod {
        id: PodId { namespace: "apps".to_owned(), name: name.to_owned(), uid: name.to_owned() },
        phase: PodPhase::Running,
        controller: Some(controller.to_owned()),
        mirror: false,
        deleted_at: None,
    }
}

/// The wall clock, driven by paused time.
pub(super) struct TestClock(Instant);

impl Clock for TestClock {
    fn now(&self) -> OffsetDateTime {
        NOW + self.0.elapsed()
    }
}

#[derive(Default)]
pub(super) struct Events(pub(super) Mutex<Vec<Event>>);

impl EventSink for Events {
    fn emit(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

/// The store behind the leader, and the leader's behaviour.
pub(super) struct LeaderState {
    pub(super) store: Store,
    state: Publisher<Arc<ClusterState>>,
    pub(super) committed: Vec<RepairChange>,
    /// Errors of the next commits; the flag says whether the write happens nevertheless.
    pub(super) fails: VecDeque<(bool, CommitError)>,
    /// Failed changes that were not written yet: they may be written later.
    pub(super) lost: Vec<RepairChange>,
    pub(super) permits: bool,
    /// No permits are granted after an announcement.
    pub(super) permits_end: bool,
    /// The repair queue is killed after this many commits; `None`: never.
    pub(super) fuse: Option<usize>,
    /// Published states, until the test takes them.
    pub(super) published: Vec<Arc<ClusterState>>,
    /// Invariants that submitted changes would have broken.
    pub(super) broken: Vec<String>,
}

impl LeaderState {
    fn publish(&mut self) {
        let state = self.store.state();
        self.published.push(Arc::clone(&state));
        self.state.publish(state);
    }

    /// Writes failed changes whose conditions still hold.
    pub(super) fn land(&mut self) {
        for change in std::mem::take(&mut self.lost) {
            if self.store.holds(&change.conditions) {
                let writes = change.encode_writes(&self.store.state().repair).unwrap();
                self.change(|store| store.write(&writes));
            }
        }
    }

    fn find_violations(&self, change: &RepairChange) -> Vec<Violation> {
        let state = self.store.state();
        let cluster = state.cluster.as_ref().map(|cluster| &*cluster.value);
        let maximum = state.constraints.as_ref().map_or(0, |it| it.value.maximum_repair_queue_entries);
        check_repair_change(change, &state.repair, cluster, maximum)
    }

    pub(super) fn change(&mut self, change: impl FnOnce(&mut Store)) {
        change(&mut self.store);
        self.publish();
    }

    fn commit(&mut self, change: &RepairChange) -> Result<Committed, CommitError> {
        let violations = self.find_violations(change);
        if self.store.holds(&change.conditions) && !violations.is_empty() {
            self.broken.extend(violations.iter().map(|broken| format!("{broken:?}: {change:?}")));
            return Err(CommitError::Invariant { violations });
        }
        let failure = self.fails.pop_front();
        if let Some((false, error)) = failure {
            self.lost.push(change.clone());
            return Err(error);
        }
        if !self.store.commit(change) {
            let key = |condition: &Condition| condition.compared_key().to_owned();
            return Err(CommitError::Conflict { keys: change.conditions.iter().map(key).collect() });
        }
        self.committed.push(change.clone());
        self.permits &= !(self.permits_end && self.store.state().repair.records.unfinished.len() == 1);
        if let Some(fuse) = &mut self.fuse {
            *fuse = fuse.saturating_sub(1);
        }
        self.publish();
        match failure {
            Some((_, error)) => Err(error),
            None => Ok(Committed { revision: self.store.revision }),
        }
    }
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
                let until = Instant::now() + Duration::from_secs(10);
                let given = epoch == EPOCH && leader_state.lock().unwrap().permits;
                let _ = reply.send(given.then(|| Permit::give(epoch, until)));
            }
            LeaderMessage::Commit { mutation: Mutation::Repair(change), reply, .. } => {
                let mut leader_state = leader_state.lock().unwrap();
                if leader_state.fuse != Some(0) {
                    let _ = reply.send(leader_state.commit(&change));
                }
            }
            other => panic!("{other:?}"),
        }
        Ok(())
    }
}

pub(super) struct World {
    pub(super) leader_state: Arc<Mutex<LeaderState>>,
    pub(super) host: Arc<FakeHost>,
    pub(super) kubernetes: Arc<FakeKubernetes>,
    pub(super) events: Arc<Events>,
    pub(super) reported: Publisher<Arc<Reports>>,
    pub(super) observed: Publisher<Arc<Observation>>,
    pub(super) arguments: RepairArguments,
    actor: Option<ActorRef<Envelope<madako_protocol::actors::RepairMessage>>>,
}

impl World {
    pub(super) async fn new(store: Store) -> Self {
        static WORLDS: AtomicU64 = AtomicU64::new(0);
        let leader = format!("repair-world-{}/leader", WORLDS.fetch_add(1, Ordering::Relaxed));
        let (publisher, state) = latest::channel();
        let (reported, reports) = latest::channel();
        let (observed, observations) = latest::channel();
        let leader_state = LeaderState {
            store,
            state: publisher,
            committed: vec![],
            fails: VecDeque::new(),
            lost: vec![],
            permits: true,
            permits_end: false,
            fuse: None,
            published: vec![],
            broken: vec![],
        };
        let leader_state = Arc::new(Mutex::new(leader_state));
        leader_state.lock().unwrap().publish();
        Actor::spawn(Some(leader.clone()), FakeLeader, Arc::clone(&leader_state)).await.unwrap();
        let (host, kubernetes, events) = (Arc::default(), Arc::default(), Arc::new(Events::default()));
        let arguments = RepairArguments {
            operations: None,
            epoch: EPOCH,
            leader,
            interval: Duration::from_secs(10),
            seed: 1,
            clock: Arc::new(TestClock(Instant::now())),
            events: Arc::clone(&events) as Arc<dyn EventSink>,
            state,
            reports,
            observations,
            hold: Some(HoldSettings::default()),
            host: Some(Arc::clone(&host) as Arc<dyn Host>),
            kubernetes: Some(Arc::clone(&kubernetes) as Arc<dyn Kubernetes>),
        };
        Self { leader_state, host, kubernetes, events, reported, observed, arguments, actor: None }
    }

    pub(super) async fn begin(&mut self) {
        let (actor, _) = Actor::spawn(None, RepairQueueActor, self.arguments.clone()).await.unwrap();
        self.actor = Some(actor);
    }

    /// Ends the repair queue and its tasks at once.
    pub(super) async fn kill(&mut self) {
        if let Some(actor) = self.actor.take() {
            actor.kill_and_wait(None).await.unwrap();
        }
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Store)) {
        self.leader_state.lock().unwrap().change(change);
    }

    pub(super) fn entry(&self, index: i64) -> Option<RepairQueueEntry> {
        let state = self.leader_state.lock().unwrap().store.state();
        state.repair.entries.get(&index).map(|item| item.value.clone())
    }

    /// Waits until the state satisfies a predicate.
    pub(super) async fn until(&self, what: &str, holds: impl Fn(&ClusterState) -> bool) {
        let mut states = self.arguments.state.clone();
        let observed = tokio::time::timeout(PATIENCE, async { while !holds(&*states.next().await) {} });
        if observed.await.is_err() {
            let entries = self.leader_state.lock().unwrap().store.state().repair.entries.clone();
            panic!("waited in vain for {what}: {entries:?}\n{:?}", self.events.0.lock().unwrap());
        }
    }

    /// Waits until `count` commits failed unwritten, and returns them.
    pub(super) async fn until_lost(&self, count: usize) -> Vec<RepairChange> {
        let lost = || self.leader_state.lock().unwrap().lost.clone();
        // There is no event for them: poll on paused time.
        let observed = async {
            while lost().len() < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, observed).await.unwrap_or_else(|_| panic!("only {:?} failed", lost()));
        lost()
    }

    pub(super) async fn until_status(&self, index: i64, status: RepairStatus) {
        let what = format!("entry {index} to be {status}");
        self.until(&what, |state| {
            state.repair.entries.get(&index).is_some_and(|item| item.value.status == status)
        })
        .await;
    }

    pub(super) fn records(&self) -> Vec<Record> {
        let leader_state = self.leader_state.lock().unwrap();
        let records = leader_state.store.entries.iter().filter(|(key, _)| key.starts_with("records/"));
        records.map(|(_, entry)| serde_json::from_slice(&entry.value).unwrap()).collect()
    }

    /// Operation and status of each record.
    pub(super) fn history(&self) -> Vec<String> {
        self.records().iter().map(|record| format!("{} {}", record.operation, record.status)).collect()
    }

    pub(super) fn ran(&self) -> Vec<String> {
        self.host.0.lock().unwrap().ran.iter().map(|words| words.join(" ")).collect()
    }

    pub(super) fn calls(&self) -> Vec<String> {
        self.kubernetes.0.lock().unwrap().calls.clone()
    }
}

//! The scheduler's actor around the pure [`make_pass`](crate::make_pass): it follows resources and metrics, runs a pass on a
//! change or at a due time, and asks the leader to commit the writes. A pass uses one snapshot. The next pass begins
//! only when the transactions of the last pass have ended and the snapshot shows their writes: nothing is decided
//! twice.

mod stored_memory;
pub(crate) mod telemetry;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::invariants::BindingEvidence;
use madako_domain::keys;
use madako_domain::placement::decision::{Decision, ExplainError, Explanation, WhatIf};
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::kubernetes::Cluster;
use madako_domain::placement::metadata::ResourceRef;
use madako_domain::placement::metrics::MetricsObserved;
use madako_domain::placement::ownership;
use madako_domain::placement::ownership::Ownership;
use madako_domain::store::Snapshot as Kept;
use madako_protocol::actors::{CommitError, Committed, Failure, SchedulerMessage};
use madako_protocol::event::{Event, EventSink};
use madako_protocol::feed::{Task, forward_values, send_later};
use madako_protocol::first_seen::FirstSeenTimes;
use madako_protocol::latest::Subscriber;
use madako_protocol::leader::commit;
use madako_protocol::mailbox::Envelope;
use madako_protocol::placement::follow::{FollowEvent, start_following};
use madako_protocol::placement::objects::{FollowerGap, Objects};
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Span, info_span};

use self::stored_memory::{StoredMemory, stored_memory};
use crate::batch::{Batch, count_moves, split_into_batches};
use crate::config::SchedulerConfig;
use crate::explain::{ExplainedPass, explain};
use crate::limits::{CLOCK_DRIFT, LONGEST_SLEEP, QUICK, RETRY_FIRST, RETRY_MOST};
use crate::memory::{Memory, Moves};
use crate::pass::{Pass, PassInput, make_pass};
use crate::snapshot::Snapshot;

#[derive(Clone)]
pub struct SchedulerArguments {
    pub epoch: i64,
    /// Registered name of the leader actor.
    pub leader: String,
    pub objects: Arc<dyn Objects>,
    /// Store of the data that the scheduler keeps below the prefix.
    pub store: Arc<dyn Store>,
    pub metrics: Subscriber<Arc<MetricsObserved>>,
    pub clock: Arc<dyn Clock>,
    pub events: Arc<dyn EventSink>,
    /// Seed for ties and names.
    pub seed: u64,
    pub config: Arc<SchedulerConfig>,
    /// Owner of placement: only the owning instance decides.
    pub ownership: watch::Receiver<Ownership>,
}

pub struct Scheduler;

/// A cache: a new actor rebuilds all of it.
pub struct SchedulerState {
    given: SchedulerArguments,
    snapshot: Option<Snapshot>,
    metrics: Option<Arc<MetricsObserved>>,
    /// Span of the newest metrics, until a pass uses them.
    fetch_span: Option<Span>,
    /// `None` until the kept data is read: decisions need it.
    memory: Option<Memory>,
    last: BTreeMap<ObjectKey, Decision>,
    explained: ExplainedPass,
    /// Revision of the last commit of resources: older snapshots allow no decision.
    written: i64,
    /// A change arrived since the last pass began.
    changed: bool,
    writing: Option<PassWriter>,
    /// Revision of the history of moves; 0: there is none.
    moves_revision: i64,
    /// Instant of the last pass, and instants of committed moves, on the monotonic clock.
    decided: Instant,
    outcomes_since: FirstSeenTimes<&'static str>,
    made: Vec<(Instant, u64)>,
    /// Pause before the next attempt.
    retry: Option<Duration>,
    /// Earliest time of the next pass, and the task that wakes the actor then.
    rests: Option<(Instant, Option<Task>)>,
    /// Collects changes until it ends.
    debounce: Option<Task>,
    timer: Option<Task>,
    reading: Option<Task>,
    _feeds: [Task; 3],
}

/// Uncommitted transactions of a pass.
struct PassWriter {
    now: OffsetDateTime,
    metrics: Option<Arc<MetricsObserved>>,
    batch: Batch,
    number: usize,
    rest: VecDeque<Batch>,
    failed: bool,
    _task: Task,
}

/// Triggers a pass whenever this instance becomes the owner.
async fn wake_when_owned(
    mut ownership: watch::Receiver<Ownership>,
    scheduler: ActorRef<Envelope<SchedulerMessage>>,
) {
    // An error means that the sender is gone, as at the end of the instance.
    while ownership.changed().await.is_ok() {
        let ours = matches!(*ownership.borrow_and_update(), Ownership::Ours { .. });
        if ours && scheduler.cast(SchedulerMessage::Reconcile.into()).is_err() {
            return;
        }
    }
}

impl Actor for Scheduler {
    type Msg = Envelope<SchedulerMessage>;
    type State = SchedulerState;
    type Arguments = SchedulerArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Envelope<SchedulerMessage>>,
        given: SchedulerArguments,
    ) -> Result<SchedulerState, ActorProcessingErr> {
        let feeds = [
            start_following(Arc::clone(&given.objects), myself.clone(), SchedulerMessage::Followed),
            forward_values(given.metrics.clone(), myself.clone(), SchedulerMessage::Metrics),
            Task::start(wake_when_owned(given.ownership.clone(), myself.clone())),
        ];
        let mut state = SchedulerState {
            given,
            snapshot: None,
            metrics: None,
            fetch_span: None,
            memory: None,
            last: BTreeMap::new(),
            explained: ExplainedPass::default(),
            written: 0,
            changed: false,
            writing: None,
            moves_revision: 0,
            decided: Instant::now(),
            outcomes_since: FirstSeenTimes::default(),
            made: Vec::new(),
            retry: None,
            rests: None,
            debounce: None,
            timer: None,
            reading: None,
            _feeds: feeds,
        };
        state.read(&myself);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Envelope<SchedulerMessage>>,
        envelope: Envelope<SchedulerMessage>,
        state: &mut SchedulerState,
    ) -> Result<(), ActorProcessingErr> {
        // The mark is dropped at the end of this handler; only then does the feed send the next value.
        let _handled = match envelope.open() {
            SchedulerMessage::Remembered(kept) => {
                state.remember(&kept);
                None
            }
            SchedulerMessage::Followed(followed, handled) => {
                state.apply_followed(&myself, followed);
                state.change(&myself);
                Some(handled)
            }
            SchedulerMessage::Metrics(observed, handled) => {
                state.metrics = Some(observed);
                state.fetch_span = Some(Span::current());
                state.change(&myself);
                Some(handled)
            }
            SchedulerMessage::Reconcile => {
                state.debounce = None;
                state.changed = true;
                None
            }
            SchedulerMessage::Written { number, result } => {
                state.take_commit_result(&myself, number, result)?;
                None
            }
            SchedulerMessage::Explain { application, what_if, reply } => {
                // The caller may have stopped waiting.
                let _ = reply.send(state.explain(&application, &what_if).map(Box::new));
                return Ok(());
            }
        };
        state.explained = ExplainedPass::default();
        state.decide(&myself)
    }
}

impl SchedulerState {
    fn apply_followed(&mut self, myself: &ActorRef<Envelope<SchedulerMessage>>, followed: FollowEvent) {
        match (followed, &mut self.snapshot) {
            (FollowEvent::Listed { revision, objects, after }, _) => {
                if let Some(gap) = &after {
                    tracing::info!(%gap, "the scheduler lists resources again");
                }
                if matches!(after, Some(FollowerGap::Relisted { .. })) {
                    // The store may be another one, without the writes and the kept data.
                    self.written = 0;
                    self.read(myself);
                }
                self.snapshot = Some(Snapshot::new(revision, objects));
            }
            (FollowEvent::Changed(changes), Some(snapshot)) => snapshot.apply(&changes),
            // Changes before the first list are ignored.
            (FollowEvent::Changed(_), None) => {}
        }
    }

    /// Handles a change: a pass follows at once, or after the debounce.
    fn change(&mut self, myself: &ActorRef<Envelope<SchedulerMessage>>) {
        let debounce = self.given.config.debounce;
        if debounce.is_zero() {
            self.changed = true;
        } else if self.debounce.is_none() {
            self.debounce = Some(send_later(myself.clone(), debounce, SchedulerMessage::Reconcile));
        }
    }

    /// Reads the kept data; retries until it succeeds.
    fn read(&mut self, myself: &ActorRef<Envelope<SchedulerMessage>>) {
        let (store, events) = (Arc::clone(&self.given.store), Arc::clone(&self.given.events));
        let actor = myself.clone();
        self.memory = None;
        self.reading = Some(Task::start(async move {
            let mut pause = RETRY_FIRST;
            loop {
                match store.list(keys::PLACEMENT).await {
                    Ok(kept) => {
                        // The actor is gone: the data is not needed.
                        let _ = actor.cast(SchedulerMessage::Remembered(kept).into());
                        return;
                    }
                    Err(error) => events.emit(Event::StoreInterrupted { why: error.to_string() }),
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY_MOST);
            }
        }));
    }

    fn remember(&mut self, kept: &Kept) {
        self.reading = None;
        let StoredMemory { memory, last, moves_revision } = stored_memory(kept);
        self.memory = Some(memory);
        self.last = last;
        self.moves_revision = moves_revision;
        // After a failed commit, the pass waits for the end of the retry pause.
        self.changed |= self.retry.is_none();
    }

    fn decide(&mut self, myself: &ActorRef<Envelope<SchedulerMessage>>) -> Result<(), ActorProcessingErr> {
        if !self.changed || self.writing.is_some() || self.debounce.is_some() {
            return Ok(());
        }
        if !matches!(*self.given.ownership.borrow(), Ownership::Ours { .. }) {
            // A change of ownership triggers a pass.
            return Ok(());
        }
        self.recount_moves();
        let (Some(snapshot), Some(memory)) = (&self.snapshot, &self.memory) else { return Ok(()) };
        if snapshot.revision() < self.written {
            // The snapshot does not show the last writes yet.
            return Ok(());
        }
        if let Some((until, timer)) = self.rests.as_mut().filter(|(until, _)| *until > Instant::now()) {
            let rest = until.duration_since(Instant::now());
            timer.get_or_insert_with(|| send_later(myself.clone(), rest, SchedulerMessage::Reconcile));
            return Ok(());
        }
        self.changed = false;
        // The pass, its commits and their effects are children of the span that brought the metrics, however long
        // those waited here.
        let round = self.fetch_span.take();
        let parent = round.as_ref().and_then(Span::id);
        let began = Instant::now();
        let _pass = info_span!(parent: parent, "placement", snapshot = snapshot.revision()).entered();
        let now = self.given.clock.now();
        self.decided = began;
        let decided = make_pass(&self.pass_input(snapshot, memory, now));
        let took = began.elapsed();
        telemetry::record_pass(&decided, took, &mut self.outcomes_since, now.unix_timestamp());
        let gone: Vec<ObjectKey> =
            self.last.keys().filter(|key| snapshot.get(key).is_none()).cloned().collect();
        self.rests = (took > QUICK).then(|| (Instant::now() + took, None));
        self.wake(myself, &decided, now);
        let mut open = VecDeque::from(split_into_batches(&decided.units, &decided.kept, &gone)?);
        for key in gone {
            self.last.remove(&key);
        }
        if let Some(memory) = &mut self.memory {
            memory.waiting = decided.memory.waiting;
            memory.note_moves(0, self.given.config.reschedule_after, now);
        }
        let metrics = self.metrics.clone();
        match open.pop_front() {
            None => self.retry = None,
            Some(first) => self.send(myself, now, metrics, (0, first), open, false)?,
        }
        Ok(())
    }

    /// Counts this epoch's moves on the monotonic clock: a wall clock that jumps ahead would make them expire.
    fn recount_moves(&mut self) {
        let span = self.given.config.reschedule_after;
        let Some(memory) = &mut self.memory else { return };
        self.made.retain(|(at, _)| at.elapsed() + CLOCK_DRIFT < span);
        let now = self.given.clock.now();
        let made = self.made.iter().map(|(at, count)| Moves { at: now - at.elapsed(), count: *count });
        memory.count_at_least(&made.collect::<Vec<_>>(), span, now);
    }

    fn pass_input<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        memory: &'a Memory,
        now: OffsetDateTime,
    ) -> PassInput<'a> {
        let metrics = self.metrics.as_deref();
        PassInput { snapshot, metrics, config: &self.given.config, memory, now, seed: self.given.seed }
    }

    /// Triggers a pass at the next due time.
    fn wake(&mut self, myself: &ActorRef<Envelope<SchedulerMessage>>, decided: &Pass, now: OffsetDateTime) {
        self.timer = decided.again.map(|again| {
            let pause = Duration::try_from(again - now).unwrap_or_default().min(LONGEST_SLEEP);
            send_later(myself.clone(), pause, SchedulerMessage::Reconcile)
        });
    }

    fn send(
        &mut self,
        myself: &ActorRef<Envelope<SchedulerMessage>>,
        now: OffsetDateTime,
        metrics: Option<Arc<MetricsObserved>>,
        (number, mut batch): (usize, Batch),
        rest: VecDeque<Batch>,
        failed: bool,
    ) -> Result<(), ActorProcessingErr> {
        if let Some(memory) = &self.memory {
            count_moves(&mut batch, memory, self.moves_revision, &self.given.config, now)?;
        }
        let mutation = batch.make_mutation(self.binding_evidence(&batch, metrics.as_ref()));
        let (leader, epoch, actor) = (self.given.leader.clone(), self.given.epoch, myself.clone());
        let outdated = self.outdated_keys(&batch);
        let task = Task::start(async move {
            let result = if outdated.is_empty() {
                commit(&leader, epoch, mutation).await
            } else {
                Err(CommitError::Conflict { keys: outdated })
            };
            // The actor is gone: its successor reads the result.
            let _ = actor.cast(SchedulerMessage::Written { number, result }.into());
        });
        self.writing = Some(PassWriter { now, metrics, batch, number, rest, failed, _task: task });
        Ok(())
    }

    /// Keys that a transaction compares and that changed since its decision: the store would reject it, and its
    /// bindings cannot be evaluated on newer state, which may never have allowed them.
    fn outdated_keys(&self, batch: &Batch) -> Vec<String> {
        let Some(snapshot) = &self.snapshot else { return Vec::new() };
        let now = |key: &ObjectKey| snapshot.get(key).map_or(0, |stored| stored.mod_revision);
        let outdated = batch.change.unchanged.iter().filter(|(key, revision)| now(key) != **revision);
        outdated.map(|(key, _)| key.etcd_key()).collect()
    }

    /// Evidence for the bindings of a transaction: the state of its decision, unless it is outdated.
    fn binding_evidence(
        &self,
        batch: &Batch,
        metrics: Option<&Arc<MetricsObserved>>,
    ) -> Vec<BindingEvidence> {
        let Some(snapshot) = &self.snapshot else { return Vec::new() };
        let found = batch.bindings.iter().filter_map(|(application, cluster)| {
            let cluster = snapshot.shared(cluster)?;
            let to = snapshot.typed::<Cluster>(&cluster.key)?.value.status.scheduled_to.as_ref();
            let cloud = to.and_then(ResourceRef::key).and_then(|cloud| snapshot.shared(&cloud));
            Some(BindingEvidence {
                application: snapshot.shared(application)?,
                cluster,
                cloud,
                metrics: metrics.cloned(),
                compared: self.given.config.metric_constraints,
            })
        });
        found.collect()
    }

    fn take_commit_result(
        &mut self,
        myself: &ActorRef<Envelope<SchedulerMessage>>,
        number: usize,
        result: Result<Committed, CommitError>,
    ) -> Result<(), ActorProcessingErr> {
        // An answer to an abandoned transaction.
        let Some(writing) = self.writing.take_if(|writing| writing.number == number) else { return Ok(()) };
        let PassWriter { now, metrics, batch, mut rest, mut failed, .. } = writing;
        telemetry::count_writes(&batch, result.as_ref().err());
        match result {
            Ok(committed) => self.apply_committed(batch, committed, now),
            Err(error) => {
                failed = true;
                self.given.events.emit(Event::CommitFailed { what: "placement", why: error.to_string() });
                match error {
                    // This epoch is over.
                    CommitError::NotLeader { .. } => return Ok(()),
                    // Another leader counted moves that this memory lacks.
                    CommitError::Conflict { keys }
                        if keys.iter().any(|key| key.ends_with(keys::PLACEMENT_MOVES)) =>
                    {
                        rest.clear();
                        self.read(myself);
                    }
                    // This instance is not the owner: the rest would be rejected as well.
                    CommitError::Conflict { keys } if keys.iter().any(|key| key == ownership::KEY) => {
                        rest.clear()
                    }
                    error => match error.failure_class() {
                        // Other decisions remain valid; the watch brings the change.
                        Failure::Outdated | Failure::Rejected => {}
                        // The result is unknown: read everything again before the next decision.
                        Failure::Unknown => {
                            rest.clear();
                            self.read(myself);
                        }
                    },
                }
            }
        }
        match rest.pop_front() {
            Some(next) => self.send(myself, now, metrics, (number + 1, next), rest, failed)?,
            None if failed => {
                let pause = self.retry.map_or(RETRY_FIRST, |pause| (pause * 2).min(RETRY_MOST));
                self.retry = Some(pause);
                self.timer = Some(send_later(myself.clone(), pause, SchedulerMessage::Reconcile));
            }
            None => self.retry = None,
        }
        Ok(())
    }

    fn apply_committed(&mut self, batch: Batch, committed: Committed, now: OffsetDateTime) {
        if !batch.change.objects.is_empty() {
            self.written = self.written.max(committed.revision);
        }
        if batch.moves > 0 {
            self.moves_revision = committed.revision;
            self.made.push((self.decided, batch.moves));
        }
        if let Some(memory) = &mut self.memory {
            memory.note_moves(batch.moves, self.given.config.reschedule_after, now);
            for kept in batch.clusters {
                match kept.memory {
                    Some(cluster) => memory.clusters.insert(kept.cluster, cluster),
                    None => memory.clusters.remove(&kept.cluster),
                };
            }
        }
        for (application, decision) in batch.decisions {
            telemetry::log_decision(&application, &decision);
            self.given.events.emit(Event::Decided {
                application: application.clone(),
                decision: Box::new(decision.clone()),
            });
            self.last.insert(application, decision);
        }
    }

    fn explain(&mut self, application: &ObjectKey, what_if: &WhatIf) -> Result<Explanation, ExplainError> {
        let (Some(snapshot), Some(memory)) = (&self.snapshot, &self.memory) else {
            return Err(ExplainError::NotReady);
        };
        let mut pass = mem::take(&mut self.explained);
        let input = self.pass_input(snapshot, memory, self.given.clock.now());
        let explained = explain(&input, application, what_if, self.last.get(application).cloned(), &mut pass);
        self.explained = pass;
        explained
    }
}

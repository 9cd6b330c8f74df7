//! The leader's actor: it campaigns, watches the store, sends the transactions, and begins and ends the reign.

mod owner;
pub(crate) mod placement;

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::invariants::Id;
use madako_domain::keys;
use madako_domain::placement::ownership;
use madako_domain::placement::ownership::Ownership;
use madako_domain::plan::Action;
use madako_domain::settings::Settings;
use madako_domain::state::{ClusterState, Fault};
use madako_domain::status::OperationPhase;
use madako_domain::store::{Condition, Entry, Epoch, Outcome, StoreError, Transaction, Write};
use madako_protocol::actors::{CommitError, Committed, Failure, LeaderMessage, Mutation};
use madako_protocol::event::{Event, EventSink};
use madako_protocol::feed::{Task, handled_signal};
use madako_protocol::latest::Publisher;
use madako_protocol::mailbox::Envelope;
use madako_protocol::permit::{PERMIT_MARGIN, Permit};
use madako_protocol::ports::Clock;
use madako_protocol::store::{Campaign, CampaignCommand, CampaignEvent, CampaignOptions, Store, WatchEvent};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::info_span;

use self::owner::{claim_placement, show_ownership};
use self::placement::PlacementAccess;
use crate::limits::{RESIGN_DEADLINE, START_RETRY};
use crate::prepare::{PreparedTransaction, prepare_epoch};
use crate::repair;
use crate::transaction::{SeenValues, cluster_transaction, kept_transaction, status_transaction};

/// Starts and ends the actors of an epoch. Calls must not block.
pub trait EpochActorsControl: Send + Sync + 'static {
    fn begin(&self, epoch: &Epoch);
    /// The actors of this epoch must end at once.
    fn end(&self, epoch: &Epoch);
}

#[derive(Clone)]
pub struct LeaderArguments {
    pub store: Arc<dyn Store>,
    /// `None`: the instance only observes, and never becomes leader.
    pub campaign: Option<CampaignOptions>,
    /// Settings of the reign's actors.
    pub settings: Settings,
    pub clock: Arc<dyn Clock>,
    /// URL of this instance's pages; empty without a page.
    pub url: String,
    pub events: Arc<dyn EventSink>,
    pub state: Publisher<Arc<ClusterState>>,
    pub reign: Arc<dyn EpochActorsControl>,
    /// `None`: this instance does not decide about placement.
    pub placement: Option<PlacementAccess>,
}

pub struct Leader;

/// A cache: a new actor rebuilds all of it.
pub struct LeaderState {
    given: LeaderArguments,
    commands: mpsc::Sender<CampaignCommand>,
    /// All keys below the prefix, as of the last watch event.
    entries: BTreeMap<String, Entry>,
    revision: i64,
    interrupted: bool,
    faults: Vec<Fault>,
    epoch: Option<Epoch>,
    /// The reign of the epoch has begun.
    reigning: bool,
    next: u64,
    in_flight: BTreeMap<u64, InFlight>,
    starting: Option<Task>,
    /// The owner's key and its revision; `None`: not read yet.
    owner: Option<(i64, Option<Entry>)>,
    ownership: Ownership,
    claiming: Option<Task>,
    _pumps: Vec<Task>,
}

/// A transaction without an answer.
struct InFlight {
    epoch: Epoch,
    /// Condition on the leader key.
    fence: Condition,
    what: &'static str,
    action: Option<Action>,
    phase: Option<OperationPhase>,
    since: Instant,
    reply: Option<RpcReplyPort<Result<Committed, CommitError>>>,
    _task: Task,
}

madako_protocol::declare_metrics! {
    "Leadership and commits":
    gauge madako_leader() "1 while this instance leads. The sum over all instances should be 1.";
    gauge madako_leader_epoch() "Epoch (the create revision of the leader key) while this instance leads, else 0.";
    gauge madako_leader_since_timestamp_seconds() in Seconds "Unix time since which this instance leads, else 0.";
    gauge madako_store_revision() "Latest revision of the store that this instance has seen.";
    gauge madako_state_faults() "Unusable stored values; the log names them.";
    counter madako_commits_total(subject, outcome)
        "Decisions sent to the leader. `subject`: `cluster`, `removal-guard`, `obstacles`, an operation of the \
         repair queue, or the changed part of placement. `outcome`: `committed`, `conflict` (an input changed \
         meanwhile, and Madako decides again; for placement also: another prefix owns it), `not-leader`, \
         `invariant`, `encoding` (the leader refuses the change as it is, and sends nothing; the log has the \
         reason), `store`.";
    histogram madako_commit_seconds() in Seconds "Duration of a commit's transaction.";
    counter madako_invariant_violations_total(invariant)
        "Mutations that the leader refused because they break an invariant of the design. Each is a fault of \
         Madako: report it.";
    gauge madako_invariant_violation_timestamp_seconds(invariant) in Seconds
        "Unix time of the last mutation that the leader refused because it breaks the invariant; 0 before the first \
         one of this process.";
    gauge madako_placement_owner()
        "1 while this instance leads and owns placement: no other prefix of its etcd does.";
    gauge cke_leader() "As `madako_leader`.";
    gauge cke_operation_phase(phase) "1 for the leader's current phase.";
    gauge cke_operation_phase_timestamp_seconds() in Seconds "Unix time of the last update of the phase.";
}

impl Actor for Leader {
    type Msg = Envelope<LeaderMessage>;
    type State = LeaderState;
    type Arguments = LeaderArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Envelope<LeaderMessage>>,
        given: LeaderArguments,
    ) -> Result<LeaderState, ActorProcessingErr> {
        show_leadership(None, 0);
        // Counters start at 0, so that a rate shows the first violation.
        for invariant in Id::ALL {
            madako_invariant_violations_total(invariant.name()).increment(0);
            madako_invariant_violation_timestamp_seconds(invariant.name()).set(0.0);
        }
        let Campaign { events, commands } = match &given.campaign {
            Some(options) => given.store.campaign(options.clone()),
            // A campaign that has ended.
            None => Campaign { events: mpsc::channel(1).1, commands: mpsc::channel(1).0 },
        };
        let watch = given.store.watch("");
        let mut pumps = vec![
            forward_events(events, myself.clone(), LeaderMessage::Campaign),
            forward_events(watch, myself.clone(), LeaderMessage::Watch),
        ];
        if let Some(access) = &given.placement {
            show_ownership(access, &Ownership::Unknown);
            pumps.push(forward_events(access.root.watch(ownership::KEY), myself, LeaderMessage::Owner));
        }
        Ok(LeaderState {
            given,
            commands,
            entries: BTreeMap::new(),
            revision: 0,
            interrupted: false,
            faults: Vec::new(),
            epoch: None,
            reigning: false,
            next: 0,
            in_flight: BTreeMap::new(),
            starting: None,
            owner: None,
            ownership: Ownership::Unknown,
            claiming: None,
            _pumps: pumps,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Envelope<LeaderMessage>>,
        envelope: Envelope<LeaderMessage>,
        state: &mut LeaderState,
    ) -> Result<(), ActorProcessingErr> {
        match envelope.open() {
            LeaderMessage::Campaign(event, _handled) => state.handle_campaign_event(&myself, event),
            LeaderMessage::Watch(event, _handled) => state.handle_watch_event(event),
            LeaderMessage::Commit { epoch, mutation, reply } => {
                state.commit(&myself, epoch, &mutation, reply);
            }
            LeaderMessage::Permit { epoch, reply } => {
                // The caller stopped waiting: it does not act.
                let _ = reply.send(state.issue_permit(epoch));
            }
            LeaderMessage::Prepared { epoch, placement } => {
                state.finish_preparation(&myself, epoch, placement)
            }
            LeaderMessage::Owner(event, _handled) => state.handle_owner_change(&myself, event),
            LeaderMessage::Claimed { epoch, placement } => state.finish_claim(&myself, epoch, placement),
            LeaderMessage::Done { id, result } => state.finish_commit(id, result),
            LeaderMessage::Yield { pause } => {
                if state.commands.try_send(CampaignCommand::Yield { pause }).is_err() {
                    return Err("the campaign for leadership has ended and takes no more commands".into());
                }
            }
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<Envelope<LeaderMessage>>,
        state: &mut LeaderState,
    ) -> Result<(), ActorProcessingErr> {
        if let Some(epoch) = state.epoch.take() {
            state.given.reign.end(&epoch);
        }
        state.set_ownership(Ownership::Unknown);
        show_leadership(None, 0);
        let (done, resigned) = oneshot::channel();
        let resigning = async {
            // An ended campaign holds no lease.
            if state.commands.send(CampaignCommand::Stop { done }).await.is_ok() {
                // It answers, or its channel closes.
                let _ = resigned.await;
            }
        };
        if tokio::time::timeout(RESIGN_DEADLINE, resigning).await.is_err() {
            tracing::warn!("the session lease was not revoked in time; it expires by itself");
        }
        Ok(())
    }
}

impl LeaderState {
    fn handle_campaign_event(&mut self, myself: &ActorRef<Envelope<LeaderMessage>>, event: CampaignEvent) {
        match event {
            CampaignEvent::Waiting { leader } => self.given.events.emit(Event::Waiting { leader }),
            CampaignEvent::Unavailable(error) => {
                self.given.events.emit(Event::StoreInterrupted { why: error.to_string() });
            }
            CampaignEvent::Elected(epoch) => {
                show_leadership(Some(&epoch), self.given.clock.now().unix_timestamp());
                self.given.events.emit(Event::Elected { epoch: epoch.number });
                self.epoch = Some(epoch.clone());
                self.reigning = false;
                self.start(myself, epoch);
            }
            CampaignEvent::Lost { epoch, why } => {
                if self.epoch.take().is_some_and(|own| own == epoch) {
                    self.starting = None;
                    self.claiming = None;
                    self.reigning = false;
                    self.set_ownership(Ownership::Unknown);
                    self.given.reign.end(&epoch);
                    show_leadership(None, 0);
                    self.given.events.emit(Event::Lost { epoch: epoch.number, why });
                }
            }
        }
    }

    /// Prepares a reign: first marks an unfinished record cancelled, then writes the status.
    fn start(&mut self, myself: &ActorRef<Envelope<LeaderMessage>>, epoch: Epoch) {
        let given = self.given.clone();
        let leader = myself.clone();
        self.starting = Some(Task::start(async move {
            loop {
                match prepare_epoch(&given, &epoch).await {
                    Ok(PreparedTransaction::Ready { with_status }) => {
                        if with_status {
                            show_phase(&OperationPhase::Completed, given.clock.now().unix_timestamp());
                        }
                        break;
                    }
                    // The campaign reports the end of this epoch.
                    Ok(PreparedTransaction::Deposed) => return,
                    Err(error) => {
                        given
                            .events
                            .emit(Event::CommitFailed { what: "start of the epoch", why: error.to_string() });
                        tokio::time::sleep(START_RETRY).await;
                    }
                }
            }
            // Cluster keeping does not wait for placement: a failed claim is retried later.
            let placement = match &given.placement {
                Some(access) => claim_placement(access, &given, &epoch).await,
                None => Ownership::Unknown,
            };
            // The leader is gone: no reign begins.
            let _ = leader.cast(LeaderMessage::Prepared { epoch: epoch.number, placement }.into());
        }));
    }

    fn finish_preparation(
        &mut self,
        myself: &ActorRef<Envelope<LeaderMessage>>,
        epoch: i64,
        placement: Ownership,
    ) {
        if let Some(own) = self.epoch.clone().filter(|own| own.number == epoch) {
            self.starting = None;
            self.reigning = true;
            self.set_ownership(placement);
            self.given.reign.begin(&own);
            self.update_ownership(myself);
        }
    }

    fn take_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn handle_watch_event(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Listed(snapshot) => {
                self.entries = snapshot.entries;
                self.revision = snapshot.revision;
            }
            WatchEvent::Changed { revision, changes } => {
                for change in changes {
                    match change.entry {
                        Some(entry) => self.entries.insert(change.key, entry),
                        None => self.entries.remove(&change.key),
                    };
                }
                self.revision = revision;
            }
            WatchEvent::Interrupted(error) => {
                if !std::mem::replace(&mut self.interrupted, true) {
                    self.given.events.emit(Event::StoreInterrupted { why: error.to_string() });
                }
                return;
            }
        }
        if std::mem::take(&mut self.interrupted) {
            self.given.events.emit(Event::StoreBack);
        }
        self.publish();
    }

    fn publish(&mut self) {
        let last = self.given.state.newest();
        let state = ClusterState::decode(self.revision, &self.entries, last.as_deref());
        madako_store_revision().set(self.revision as f64);
        madako_state_faults().set(state.faults.len() as f64);
        if state.faults != self.faults {
            self.faults.clone_from(&state.faults);
            self.given.events.emit(Event::StateFaults { faults: state.faults.clone() });
        }
        self.given.state.publish(Arc::new(state));
    }

    fn commit(
        &mut self,
        myself: &ActorRef<Envelope<LeaderMessage>>,
        epoch: i64,
        mutation: &Mutation,
        reply: RpcReplyPort<Result<Committed, CommitError>>,
    ) {
        let what = mutation.name();
        // A process that was paused past its lease checks its own clock before it learns of the loss.
        let own = self
            .epoch
            .clone()
            .filter(|own| own.number == epoch && self.reigning)
            .filter(|own| self.given.store.holds_until(own).is_some());
        let Some(own) = own else {
            return answer_commit(reply, what, Err(CommitError::NotLeader { epoch }));
        };
        let SentTransaction { store, fence, transaction } = match self.send_transaction(&own, mutation) {
            Ok(sent) => sent,
            Err(error) => {
                if let CommitError::Invariant { violations } = &error {
                    let now = self.given.clock.now().unix_timestamp();
                    for violation in violations {
                        let invariant = violation.invariant.name();
                        madako_invariant_violations_total(invariant).increment(1);
                        madako_invariant_violation_timestamp_seconds(invariant).set(now as f64);
                    }
                    self.given.events.emit(Event::Violated(violations.clone()));
                }
                return answer_commit(reply, what, Err(error));
            }
        };
        let action = match mutation {
            Mutation::Cluster(planned) => planned.plan.action,
            Mutation::Guard { .. }
            | Mutation::Obstacles { .. }
            | Mutation::Repair(_)
            | Mutation::Phase(_)
            | Mutation::HostKey { .. }
            | Mutation::EtcdBackup { .. }
            | Mutation::Placement(_) => None,
        };
        let writes_status = transaction
            .writes
            .iter()
            .any(|write| matches!(write, Write::Put { key, .. } if key == keys::STATUS));
        let phase = match mutation {
            Mutation::Phase(phase) => Some(phase.clone()),
            _ => writes_status.then_some(OperationPhase::Completed),
        };
        let id = self.take_id();
        let leader = myself.clone();
        // The span of every change: parent of the commit's events and of its consequences.
        let _commit = info_span!("commit", epoch = own.number, what).entered();
        let task = Task::start(async move {
            let result = store.commit(transaction).await;
            // The leader is gone, and with it the caller.
            let _ = leader.cast(LeaderMessage::Done { id, result }.into());
        });
        self.in_flight.insert(
            id,
            InFlight {
                epoch: own,
                fence,
                what,
                action,
                phase,
                since: Instant::now(),
                reply: Some(reply),
                _task: task,
            },
        );
    }

    /// A permit for effects outside etcd, while the epoch certainly holds by this instance's clock.
    fn issue_permit(&self, epoch: i64) -> Option<Permit> {
        let own = self.epoch.as_ref().filter(|own| own.number == epoch && self.reigning)?;
        let until = self.given.store.holds_until(own)?.checked_sub(PERMIT_MARGIN)?;
        (until > Instant::now()).then(|| Permit::give(epoch, until))
    }

    /// Builds the transaction of a mutation and selects its store.
    fn send_transaction(&self, epoch: &Epoch, mutation: &Mutation) -> Result<SentTransaction, CommitError> {
        let what = mutation.name();
        let state = || self.given.state.newest().ok_or(CommitError::StoreUnread { what });
        let transaction = match mutation {
            Mutation::Cluster(planned) => {
                let present = SeenValues {
                    status_lease: self.entries.get(keys::STATUS).map(|entry| entry.lease),
                    choices: self.entries.get(keys::CHOICES),
                };
                cluster_transaction(epoch, planned, &state()?.repair, present, self.given.clock.now())?
            }
            Mutation::Guard { state, revision } => {
                kept_transaction(epoch, keys::REMOVAL_GUARD, state.as_ref(), *revision)?
            }
            Mutation::Obstacles { noted, revision } => {
                let noted = Some(noted).filter(|noted| !noted.is_empty());
                kept_transaction(epoch, keys::OBSTACLES, noted, *revision)?
            }
            Mutation::Repair(change) => repair::repair_transaction(epoch, change, &*state()?)?,
            Mutation::Phase(phase) => status_transaction(epoch, phase, self.given.clock.now())?,
            Mutation::HostKey { address, pinned, revision } => {
                let mut pinned = pinned.clone();
                pinned.pinned_at.get_or_insert(self.given.clock.now());
                kept_transaction(epoch, &keys::host_key(address), Some(&pinned), *revision)?
            }
            Mutation::EtcdBackup { record, revision } => {
                kept_transaction(epoch, keys::ETCD_BACKUP, Some(record), *revision)?
            }
            Mutation::Placement(change) => {
                let access = self.given.placement.as_ref().ok_or(CommitError::PlacementElsewhere { what })?;
                let stored = |key: &_| access.objects.get(key);
                let transaction = placement::placement_transaction(
                    epoch,
                    &access.prefix,
                    &self.ownership,
                    change,
                    &stored,
                )?;
                let fence = ownership::ownership_fence(&access.prefix, epoch);
                return Ok(SentTransaction { store: Arc::clone(&access.root), fence, transaction });
            }
        };
        Ok(SentTransaction {
            store: Arc::clone(&self.given.store),
            fence: epoch.fencing_condition(),
            transaction,
        })
    }

    fn finish_commit(&mut self, id: u64, result: Result<Outcome, StoreError>) {
        let Some(mut ended) = self.in_flight.remove(&id) else { return };
        madako_commit_seconds().record(ended.since.elapsed());
        let result = match result {
            Ok(Outcome::Committed { revision }) => {
                if let Some(phase) = &ended.phase {
                    show_phase(phase, self.given.clock.now().unix_timestamp());
                }
                self.given.events.emit(Event::Committed {
                    what: ended.what,
                    revision,
                    epoch: ended.epoch.number,
                    action: ended.action,
                });
                Ok(Committed { revision })
            }
            Ok(Outcome::Refused { failed }) => {
                Err(describe_refused_commit(&ended.epoch, &ended.fence, &failed))
            }
            Err(error) => Err(CommitError::Store(error)),
        };
        if let Some(reply) = ended.reply.take() {
            answer_commit(reply, ended.what, result);
        }
    }
}

struct SentTransaction {
    store: Arc<dyn Store>,
    /// Condition on the leader key.
    fence: Condition,
    transaction: Transaction,
}

fn describe_refused_commit(epoch: &Epoch, fence: &Condition, failed: &[Condition]) -> CommitError {
    if failed.contains(fence) {
        return CommitError::NotLeader { epoch: epoch.number };
    }
    let keys = failed.iter().map(|condition| condition.compared_key().to_owned()).collect();
    CommitError::Conflict { keys }
}

fn answer_commit(
    reply: RpcReplyPort<Result<Committed, CommitError>>,
    what: &'static str,
    result: Result<Committed, CommitError>,
) {
    let outcome = match &result {
        Ok(_) => "committed",
        Err(CommitError::NotLeader { .. }) => "not-leader",
        Err(CommitError::Conflict { .. }) => "conflict",
        Err(CommitError::Invariant { .. }) => "invariant",
        Err(error) => match error.failure_class() {
            Failure::Outdated | Failure::Rejected => "encoding",
            Failure::Unknown => "store",
        },
    };
    madako_commits_total(what, outcome).increment(1);
    // The caller stopped waiting or restarted: the watch shows it the result.
    let _ = reply.send(result);
}

fn show_leadership(epoch: Option<&Epoch>, since: i64) {
    madako_leader().set(f64::from(epoch.is_some()));
    cke_leader().set(f64::from(epoch.is_some()));
    madako_leader_epoch().set(epoch.map_or(0, |epoch| epoch.number) as f64);
    madako_leader_since_timestamp_seconds().set(since as f64);
}

/// There are no operations yet: the phase of a leader with a cluster is `completed`.
fn show_phase(current: &OperationPhase, now: i64) {
    for phase in OperationPhase::ALL {
        let is_current = phase == current;
        cke_operation_phase(phase.as_str().to_owned()).set(f64::from(is_current));
    }
    cke_operation_phase_timestamp_seconds().set(now as f64);
}

/// Sends events to the leader one at a time, each after the previous one was handled.
fn forward_events<E: Send + 'static>(
    mut events: mpsc::Receiver<E>,
    leader: ActorRef<Envelope<LeaderMessage>>,
    wrap: impl Fn(E, madako_protocol::feed::HandledSignal) -> LeaderMessage + Send + 'static,
) -> Task {
    Task::start(async move {
        while let Some(event) = events.recv().await {
            let (mark, done) = handled_signal();
            if leader.cast(wrap(event, mark).into()).is_err() {
                return;
            }
            // An error means that the mark was dropped: the event was handled, or the leader is gone and the next
            // cast fails.
            let _ = done.await;
        }
    })
}

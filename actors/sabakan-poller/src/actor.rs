//! The poller's actor: its timer, the poll in flight, and the changes of the removal guard's state that it asks the
//! leader to commit.

mod reports;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::guard::GuardState;
use madako_domain::observation::{Observation, Query};
use madako_domain::repair::report::Reports;
use madako_domain::state::ClusterState;
use madako_protocol::actors::{Mutation, PollerMessage};
use madako_protocol::event::{Event, EventSink};
use madako_protocol::feed::{Task, forward_values, send_later};
use madako_protocol::latest::{Publisher, Subscriber};
use madako_protocol::leader::commit;
use madako_protocol::mailbox::Envelope;
use madako_protocol::ports::{Clock, Registry, RegistryMachines};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::Instant;
use tracing::{Instrument, info_span};

use self::reports::ReportPolls;
use crate::guard::{GuardVerdict, HoldEndReason, evaluate};
use crate::shared::shared_addresses;

#[derive(Clone)]
pub struct PollerArguments {
    pub epoch: i64,
    /// Registered name of the leader actor.
    pub leader: String,
    pub interval: Duration,
    pub registry: Arc<dyn Registry>,
    pub clock: Arc<dyn Clock>,
    pub events: Arc<dyn EventSink>,
    pub state: Subscriber<Arc<ClusterState>>,
    pub observations: Publisher<Arc<Observation>>,
    pub reports: Publisher<Arc<Reports>>,
}

pub struct Poller;

/// A cache: a new actor rebuilds all of it.
pub struct PollerState {
    given: PollerArguments,
    state: Option<Arc<ClusterState>>,
    /// Missing nodes whose removal was agreed or confirmed.
    given_up: BTreeSet<String>,
    /// Shared addresses of the last event.
    shared: BTreeMap<String, BTreeSet<String>>,
    /// Number of the newest poll; answers of older ones are ignored.
    poll: u64,
    last_query: Query,
    in_flight: Option<Task>,
    timer: Option<Task>,
    last_failure: Option<String>,
    reports: ReportPolls,
    _feed: Task,
}

madako_protocol::declare_metrics! {
    "The registry":
    counter madako_polls_total(outcome) "Polls of the registry for machines: `answered` or `failed`.";
    gauge madako_observation_machines() "Machines with an address in the last good observation.";
    gauge madako_observation_left_out() "Machines without an IPv4 address in the last good observation.";
    gauge madako_observation_timestamp_seconds() in Seconds
        "Unix time of the last good observation. Madako does not plan on an observation older than three polls.";
    gauge madako_duplicate_addresses() "Addresses that several machines share in the registry; the log names them.";
    gauge madako_removal_guard_vanished() "Nodes whose removal the guard holds back; 0 if it holds none.";

    "Repairs":
    counter madako_report_polls_total(outcome) "Polls of the registry for machines to repair: `answered`, `failed`.";
    gauge madako_reports() "Machines that the registry reported for repair in its last good answer.";
    gauge madako_reports_timestamp_seconds() in Seconds
        "Unix time of the registry's last good answer about machines to repair.";
}

impl Actor for Poller {
    type Msg = Envelope<PollerMessage>;
    type State = PollerState;
    type Arguments = PollerArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Envelope<PollerMessage>>,
        given: PollerArguments,
    ) -> Result<PollerState, ActorProcessingErr> {
        let feed = forward_values(given.state.clone(), myself.clone(), PollerMessage::State);
        myself.cast(PollerMessage::Tick.into())?;
        myself.cast(PollerMessage::ReportsTick.into())?;
        Ok(PollerState {
            given,
            state: None,
            given_up: BTreeSet::new(),
            shared: BTreeMap::new(),
            poll: 0,
            last_query: Query { url: 0, variables: 0 },
            in_flight: None,
            timer: None,
            last_failure: None,
            reports: ReportPolls::new(),
            _feed: feed,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Envelope<PollerMessage>>,
        envelope: Envelope<PollerMessage>,
        state: &mut PollerState,
    ) -> Result<(), ActorProcessingErr> {
        match envelope.open() {
            PollerMessage::Tick => state.tick(&myself),
            PollerMessage::State(new, _handled) => {
                state.reports.handle_state_change(&state.given, state.state.as_deref(), &new, &myself);
                let at_once = requires_new_poll(state.state.as_deref(), &new);
                state.state = Some(new);
                if at_once {
                    state.poll(&myself);
                }
            }
            PollerMessage::Polled { poll, result } if poll == state.poll => {
                state.in_flight = None;
                match result {
                    Ok(fetched) => {
                        // Consequences of the observation, up to the commit and its effects, are children of this
                        // span.
                        let (epoch, observation) = (state.given.epoch, poll);
                        let span = info_span!("observation", epoch, observation);
                        state.handle_answer(fetched).instrument(span).await;
                    }
                    Err(error) => state.note_failure(error.to_string()),
                }
            }
            PollerMessage::Polled { .. } => {}
            PollerMessage::ReportsTick => {
                state.reports.tick(&state.given, state.state.as_deref(), &myself);
            }
            PollerMessage::ReportsPolled { poll, result } => {
                state.reports.handle_poll(&state.given, poll, result);
            }
        }
        Ok(())
    }
}

/// True if a new state requires a poll at once instead of at the next tick.
fn requires_new_poll(old: Option<&ClusterState>, new: &ClusterState) -> bool {
    let Some(old) = old else { return true };
    let confirmed = |state: &ClusterState| state.guard.as_ref().is_some_and(|guard| guard.value.confirmed);
    query(old) != query(new) || (old.disabled && !new.disabled) || (!confirmed(old) && confirmed(new))
}

/// Identity of a state's question; `None`: the registry cannot be asked.
fn query(state: &ClusterState) -> Option<Query> {
    let url = state.url.as_ref()?;
    let variables = state.revision_of(madako_domain::keys::SABAKAN_VARIABLES);
    // Unusable stored variables must not become the defaults, which select other machines.
    (variables == 0 || state.variables.is_some()).then_some(Query { url: url.revision, variables })
}

impl PollerState {
    /// Polls, unless an equal question is unanswered: a registry slower than an interval would never be heard, and
    /// its own deadline ends the question.
    fn tick(&mut self, myself: &ActorRef<Envelope<PollerMessage>>) {
        let wanted = self.state.as_deref().filter(|state| !state.disabled).and_then(query);
        if self.in_flight.is_some() && wanted == Some(self.last_query) {
            self.set_timer(myself);
        } else {
            self.poll(myself);
        }
    }

    fn set_timer(&mut self, myself: &ActorRef<Envelope<PollerMessage>>) {
        let often = is_planted(Canary::PolledEverySecond);
        let interval = if often { Duration::from_secs(1) } else { self.given.interval };
        self.timer = Some(send_later(myself.clone(), interval, PollerMessage::Tick));
    }

    /// Starts a poll, in place of one in flight, and sets the timer for the next.
    fn poll(&mut self, myself: &ActorRef<Envelope<PollerMessage>>) {
        self.set_timer(myself);
        self.in_flight = None;
        let Some(state) = self.state.as_ref().filter(|state| !state.disabled) else { return };
        let (Some(last_query), Some(url)) = (query(state), state.url.as_ref()) else { return };
        self.poll += 1;
        self.last_query = last_query;
        let poll = self.poll;
        let registry = Arc::clone(&self.given.registry);
        let url = url.value.clone();
        let variables = state.variables.as_ref().map(|variables| Arc::clone(&variables.value));
        let reply = myself.clone();
        self.in_flight = Some(Task::start(async move {
            let result = registry.machines(&url, variables.as_deref()).await;
            // The actor is gone: the answer is not needed.
            let _ = reply.cast(PollerMessage::Polled { poll, result }.into());
        }));
    }

    fn note_failure(&mut self, why: String) {
        madako_polls_total("failed").increment(1);
        if self.last_failure.as_ref() != Some(&why) {
            self.given.events.emit(Event::PollFailed { why: why.clone() });
            self.last_failure = Some(why);
        }
    }

    async fn handle_answer(&mut self, fetched: RegistryMachines) {
        madako_polls_total("answered").increment(1);
        let now = self.given.clock.now();
        madako_observation_machines().set(fetched.machines.len() as f64);
        madako_observation_left_out().set(fetched.left_out.len() as f64);
        madako_observation_timestamp_seconds().set(now.unix_timestamp() as f64);
        self.last_failure = None;
        self.report_duplicate_addresses(&fetched);
        self.given
            .events
            .emit(Event::Observed { machines: fetched.machines.len(), left_out: fetched.left_out.len() });
        let addresses: BTreeSet<String> =
            fetched.machines.iter().filter_map(|machine| machine.address().map(str::to_owned)).collect();
        let held = self.evaluate_guard(&addresses).await;
        let left_out = fetched.left_out_serials();
        self.given.observations.publish(Arc::new(Observation {
            machines: Arc::new(fetched.machines),
            addresses: Arc::new(addresses),
            left_out,
            at: now,
            received: Instant::now(),
            query: self.last_query,
            held,
        }));
    }

    fn report_duplicate_addresses(&mut self, fetched: &RegistryMachines) {
        let shared = shared_addresses(&fetched.machines);
        madako_duplicate_addresses().set(shared.len() as f64);
        if shared != self.shared {
            self.given.events.emit(Event::SharedAddresses(shared.clone()));
            self.shared = shared;
        }
    }

    /// Evaluates an answer and keeps the guard's state in the store. Returns the held state.
    async fn evaluate_guard(&mut self, observed: &BTreeSet<String>) -> Option<GuardState> {
        let state = self.state.clone()?;
        let nodes: BTreeSet<String> = state
            .cluster
            .iter()
            .flat_map(|cluster| cluster.value.nodes.iter().map(|node| node.address.clone()))
            .collect();
        let kept = state.guard.as_ref();
        self.given_up.retain(|node| nodes.contains(node) && !observed.contains(node));
        let verdict = evaluate(&nodes, observed, &self.given_up, kept.map(|kept| &kept.value));
        let (wanted, released) = match verdict {
            GuardVerdict::Accept { released } => (None, released),
            GuardVerdict::Hold(guard) => (Some(guard), None),
        };
        if let Some(guard) = &wanted {
            self.given.events.emit(Event::Held(guard.clone()));
        }
        if wanted.as_ref() != kept.map(|kept| &kept.value) {
            let mutation = Mutation::Guard {
                state: wanted.clone(),
                revision: state.revision_of(madako_domain::keys::REMOVAL_GUARD),
            };
            match commit(&self.given.leader, self.given.epoch, mutation).await {
                Ok(_) => {}
                // A hold ends only after the store says so: otherwise a new leader would start its own count.
                Err(error) => {
                    self.given
                        .events
                        .emit(Event::CommitFailed { what: "removal-guard", why: error.to_string() });
                    if wanted.is_none() {
                        return kept.map(|kept| kept.value.clone());
                    }
                }
            }
        }
        if let Some(HoldEndReason::Agreed | HoldEndReason::Confirmed) = released {
            self.given_up.extend(nodes.difference(observed).cloned());
        }
        if let Some(released) = released {
            self.given.events.emit(Event::Released { why: released.describe().to_owned() });
        }
        let vanished = wanted.as_ref().map_or(0, |guard| guard.vanished.len());
        madako_removal_guard_vanished().set(vanished as f64);
        wanted
    }
}

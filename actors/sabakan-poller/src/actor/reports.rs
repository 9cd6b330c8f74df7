//! The poller's second query: machines that need repair (CKE's `docs/sabakan-triggered-repair.md`).
//!
//! It has the interval of the first question and is independent of it: `sabakan/disabled` does not apply here, nor
//! `auto-repair/disabled` there. While auto-repair is disabled, the question is still asked as long as a rack is
//! held, so that the rack's recovery is noticed. The removal guard does not apply: a machine that is no longer
//! reported is healthy again.
//!
//! # Guarantees
//! A failed poll changes nothing. An answer is published whole, with its question and the store's revision at the
//! time of the question.

use std::sync::Arc;

use madako_domain::observation::Query;
use madako_domain::repair::report::{Reports, default_variables};
use madako_domain::state::ClusterState;
use madako_protocol::actors::PollerMessage;
use madako_protocol::event::Event;
use madako_protocol::feed::{Task, send_later};
use madako_protocol::mailbox::Envelope;
use madako_protocol::ports::{RegistryError, RegistryMachines};
use ractor::ActorRef;
use tokio::time::Instant;
use tracing::info_span;

use super::{PollerArguments, madako_report_polls_total, madako_reports, madako_reports_timestamp_seconds};

/// State of the question's polls; a new actor rebuilds it.
pub(crate) struct ReportPolls {
    /// Number of the newest poll; answers of older ones are ignored.
    poll: u64,
    last_query: Query,
    /// The store's revision at the time of the question.
    revision: i64,
    in_flight: Option<Task>,
    timer: Option<Task>,
    last_failure: Option<String>,
}

/// True if a new state requires a poll at once instead of at the next tick.
fn requires_new_poll(old: Option<&ClusterState>, new: &ClusterState) -> bool {
    old.is_none_or(|old| old.reports_query() != new.reports_query())
}

impl ReportPolls {
    pub(crate) fn new() -> Self {
        Self {
            poll: 0,
            last_query: Query { url: 0, variables: 0 },
            revision: 0,
            in_flight: None,
            timer: None,
            last_failure: None,
        }
    }

    pub(crate) fn handle_state_change(
        &mut self,
        given: &PollerArguments,
        old: Option<&ClusterState>,
        new: &ClusterState,
        myself: &ActorRef<Envelope<PollerMessage>>,
    ) {
        if requires_new_poll(old, new) {
            self.poll(given, Some(new), myself);
        }
    }

    /// Runs the next poll. An unanswered equal question is not repeated: its own deadline ends it.
    pub(crate) fn tick(
        &mut self,
        given: &PollerArguments,
        state: Option<&ClusterState>,
        myself: &ActorRef<Envelope<PollerMessage>>,
    ) {
        let wanted = state.and_then(ClusterState::reports_query);
        if self.in_flight.is_some() && wanted == Some(self.last_query) {
            self.set_timer(given, myself);
        } else {
            self.poll(given, state, myself);
        }
    }

    fn set_timer(&mut self, given: &PollerArguments, myself: &ActorRef<Envelope<PollerMessage>>) {
        self.timer = Some(send_later(myself.clone(), given.interval, PollerMessage::ReportsTick));
    }

    /// Starts a poll, in place of one in flight, and sets the timer for the next.
    fn poll(
        &mut self,
        given: &PollerArguments,
        state: Option<&ClusterState>,
        myself: &ActorRef<Envelope<PollerMessage>>,
    ) {
        self.set_timer(given, myself);
        self.in_flight = None;
        // An answer under way belongs to another question, or to none.
        self.poll += 1;
        let Some(state) = state else { return };
        let (Some(last_query), Some(url)) = (state.reports_query(), state.url.as_ref()) else { return };
        (self.last_query, self.revision) = (last_query, state.revision);
        let poll = self.poll;
        let registry = Arc::clone(&given.registry);
        let url = url.value.clone();
        let variables = state.auto_repair_variables.as_ref().map(|variables| Arc::clone(&variables.value));
        // Without own variables the registry would apply the defaults of the other question.
        let variables = variables.unwrap_or_else(|| Arc::new(default_variables()));
        let reply = myself.clone();
        self.in_flight = Some(Task::start(async move {
            let result = registry.machines(&url, Some(&variables)).await;
            // The actor is gone: the answer is not needed.
            let _ = reply.cast(PollerMessage::ReportsPolled { poll, result }.into());
        }));
    }

    pub(crate) fn handle_poll(
        &mut self,
        given: &PollerArguments,
        poll: u64,
        result: Result<RegistryMachines, RegistryError>,
    ) {
        if poll != self.poll {
            return;
        }
        self.in_flight = None;
        match result {
            Ok(fetched) => {
                // Consequences of the reports, up to repair commands, are children of this span.
                let _report = info_span!("report", epoch = given.epoch, report = poll).entered();
                self.handle_answer(given, fetched);
            }
            Err(error) => {
                madako_report_polls_total("failed").increment(1);
                let why = error.to_string();
                if self.last_failure.as_ref() != Some(&why) {
                    given.events.emit(Event::ReportsFailed { why: why.clone() });
                    self.last_failure = Some(why);
                }
            }
        }
    }

    fn handle_answer(&mut self, given: &PollerArguments, fetched: RegistryMachines) {
        madako_report_polls_total("answered").increment(1);
        self.last_failure = None;
        let at = given.clock.now();
        let mut machines = fetched.machines;
        machines.extend(fetched.left_out);
        madako_reports().set(machines.len() as f64);
        madako_reports_timestamp_seconds().set(at.unix_timestamp() as f64);
        given.events.emit(Event::Reported { machines: machines.len() });
        given.reports.publish(Arc::new(Reports {
            machines: Arc::new(machines),
            at,
            received: Instant::now(),
            query: self.last_query,
            revision: self.revision,
        }));
    }
}

#[cfg(test)]
mod tests;

//! Turns the registry's reports into new entries of the queue and into racks to hold.

use std::sync::Arc;

use madako_domain::observation::Observation;
use madako_domain::repair::change::RepairChange;
use madako_domain::repair::hold::HoldSettings;
use madako_domain::repair::report::Reports;
use madako_domain::state::ClusterState;
use madako_protocol::event::Event;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::effects::{AfterCommit, DecidedChange, Subject};
use super::{FIRST_REPORTS_POLLS, RepairState, telemetry};
use crate::hold::times::Times;
use crate::news::ReportedState;
use crate::pass::add_duration;
use crate::racks::{Answers, Racks, held_back};
use crate::requests;
use crate::requests::removals::ObservedRemovals;

#[derive(Default)]
pub(super) struct Requests {
    pub(super) newest: Option<Arc<Reports>>,
    /// An answer was evaluated since this actor started: its racks are in the store, or are written before anything
    /// begins.
    evaluated_once: bool,
    reported_state: ReportedState,
    /// The last evaluated answer, and the change times of its machines.
    evaluated: Option<Arc<Reports>>,
    times: Times,
    removals: ObservedRemovals,
    /// Racks by the newest reports and by the newest observation; each input is scanned once.
    reported: Option<(Arc<Reports>, Racks)>,
    observed: Option<(Arc<Observation>, Racks)>,
    /// Inputs of the last computation of machines in held racks: equal inputs give the same result.
    held_of: Option<HeldInputs>,
    /// The last evaluated state and reports, and the change to write.
    decided: Option<(Arc<ClusterState>, Arc<Reports>, Option<RepairChange>)>,
    /// The metric already shows that nothing is refused.
    shows_none: bool,
}

/// Inputs that decide which machines are in held racks. Equality is identity in memory.
struct HeldInputs {
    state: Arc<ClusterState>,
    reports: Option<Arc<Reports>>,
    observation: Option<Arc<Observation>>,
}

impl HeldInputs {
    /// True if both give the same machines in held racks. The result depends on racks, nodes, and machines with an
    /// entry.
    fn is_same(&self, other: &Self) -> bool {
        fn is<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
            one.map(Arc::as_ptr) == other.map(Arc::as_ptr)
        }
        let (one, two) = (&self.state, &other.state);
        let same_state = Arc::ptr_eq(one, two) || {
            let cluster = |state: &ClusterState| state.cluster.as_ref().map(|cluster| cluster.revision);
            let mut holds = one.holds.iter().zip(&two.holds);
            cluster(one) == cluster(two)
                && Arc::ptr_eq(&one.repair, &two.repair)
                && one.unreadable_holds().eq(two.unreadable_holds())
                && one.holds.len() == two.holds.len()
                && holds.all(|((rack, hold), (other, kept))| rack == other && hold.revision == kept.revision)
        };
        let same_reports = is(self.reports.as_ref(), other.reports.as_ref());
        same_state && same_reports && is(self.observation.as_ref(), other.observation.as_ref())
    }
}

impl Requests {
    fn update_racks(&mut self, settings: &HoldSettings, observation: Option<Arc<Observation>>) {
        if let Some(newest) = &self.newest
            && self.reported.as_ref().is_none_or(|(known, _)| !Arc::ptr_eq(known, newest))
        {
            self.reported =
                Some((Arc::clone(newest), Racks::from_machines(&newest.machines, &settings.label)));
        }
        if let Some(newest) = observation
            && self.observed.as_ref().is_none_or(|(known, _)| !Arc::ptr_eq(known, &newest))
        {
            let racks = Racks::from_machines(&newest.machines, &settings.label);
            self.observed = Some((newest, racks));
        }
    }

    /// Computes the change times of an answer that is new.
    fn update_times(&mut self, reports: &Arc<Reports>, state: &ClusterState, hold: Option<&HoldSettings>) {
        if self.evaluated.as_ref().is_some_and(|evaluated| Arc::ptr_eq(evaluated, reports)) {
            return;
        }
        let came = (reports.at, Some(reports.received));
        self.times = Times::from_answer(&reports.machines, came, hold, &state.holds, &self.times);
        self.removals.forget_answered(reports.revision);
        self.evaluated = Some(Arc::clone(reports));
    }
}

impl RepairState {
    /// Updates the machines in held racks from the store, the reports and the observation.
    pub(super) fn update_held(&mut self, state: &Arc<ClusterState>) {
        self.requests.removals.observe(state);
        let hold = self.given.hold.as_ref();
        let inputs = HeldInputs {
            state: Arc::clone(state),
            reports: self.requests.newest.clone(),
            observation: self.given.observations.newest(),
        };
        let same = self.requests.held_of.as_ref().is_some_and(|before| before.is_same(&inputs));
        let observation = inputs.observation.clone();
        self.requests.held_of = Some(inputs);
        if same {
            return;
        }
        let count = requests::racks_held(state, hold);
        if let Some(settings) = hold.filter(|_| count > 0) {
            self.requests.update_racks(settings, observation);
        }
        let reported = self.requests.reported.as_ref().map(|(_, racks)| racks);
        let observed = self.requests.observed.as_ref().map(|(_, racks)| racks);
        let (machines, kept) = (requests::queried_machines(state), requests::kept_racks(state));
        self.held = held_back(machines, &kept, Answers { reported, observed }, requests::nodes(state), hold);
        telemetry::madako_repair_racks_held().set(count as f64);
    }

    /// Deadline until which steps wait for the registry's first reports; `None`: no waiting.
    ///
    /// A rack may have failed while there was no leader, and only reports show it. The wait applies only if reports
    /// may hold a rack and the registry is asked for them. It lasts at most [`FIRST_REPORTS_POLLS`] intervals: an
    /// unavailable registry must not block an operator's request.
    pub(super) fn reports_awaited(&self, state: &ClusterState) -> Option<OffsetDateTime> {
        let has_query = !state.auto_repair_disabled && state.reports_query().is_some();
        if self.requests.evaluated_once || !has_query || self.given.hold.is_none() {
            return None;
        }
        let (began, since) = self.began;
        let most = self.given.interval * FIRST_REPORTS_POLLS;
        (since.elapsed() < most).then(|| add_duration(began, most))
    }

    /// Evaluates the newest reports. Returns whether a change was sent, which comes first: a hold is durable before
    /// anything begins in its rack.
    pub(super) fn request_repairs(&mut self, state: &Arc<ClusterState>) -> bool {
        let (query, interval) = (state.reports_query(), self.given.interval);
        let newest = self.requests.newest.clone();
        let Some(reports) = newest.filter(|newest| newest.are_good(query, interval, Instant::now())) else {
            // Nothing is refused while auto-repair is off, and refusals of an answer that is too old are not known.
            if !std::mem::replace(&mut self.requests.shows_none, true) {
                telemetry::count_refusals(None);
            }
            self.requests.decided = None;
            return false;
        };
        let known = self.requests.decided.as_ref();
        if known.is_none_or(|(of, on, _)| !Arc::ptr_eq(of, state) || !Arc::ptr_eq(on, &reports)) {
            self.evaluate(state, &reports);
        }
        if self.suspended.contains(&Subject::Reports) {
            return false;
        }
        let Some((_, _, Some(change))) = &self.requests.decided else { return false };
        let (change, event_text) = (change.clone(), String::new());
        self.write(
            state,
            DecidedChange { change, subject: Subject::Reports, event_text, then: AfterCommit::Nothing },
        );
        true
    }

    /// Evaluates good reports against a state of the store, emits news, and keeps the change to write.
    fn evaluate(&mut self, state: &Arc<ClusterState>, reports: &Arc<Reports>) {
        let hold = self.given.hold.as_ref();
        let now = (self.given.interval, Instant::now());
        self.requests.update_times(reports, state, hold);
        let removed = self.requests.removals.removed_since(reports.revision);
        let known = (&self.requests.times, &removed);
        let Some(decision) = requests::decide(state, reports, known, hold, now) else { return };
        self.requests.evaluated_once = true;
        self.requests.shows_none = false;
        telemetry::count_refusals(Some(&decision));
        let mut news = self.requests.reported_state.take_news(&decision, &reports.machines);
        if decision.stop.is_some() {
            // While additions are stopped no report is refused; that does not clear a refusal.
            news.cleared.clear();
        }
        if !news.is_empty() {
            self.given.events.emit(Event::Reports(news));
        }
        let change = requests::change(state, &decision);
        self.requests.decided = Some((Arc::clone(state), Arc::clone(reports), change));
    }
}

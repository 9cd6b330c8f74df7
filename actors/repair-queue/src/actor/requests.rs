//! What the registry reports: entries that are added, racks that are held.

use std::sync::Arc;

use madako_messages::event::Event;
use madako_messages::observation::Observation;
use madako_messages::repair::hold::HoldSettings;
use madako_messages::repair::report::Reports;
use madako_messages::state::ClusterState;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::{FIRST_REPORTS_POLLS, REQUESTS, RepairState, Then, telemetry};
use crate::hold::times::Times;
use crate::news::Told;
use crate::racks::{Racks, held_addresses};
use crate::requests;
use crate::requests::removals::Removals;
use crate::round::later;

/// The newest reports, what was told of them, and what is known of answers before them.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) newest: Option<Arc<Reports>>,
    /// Whether any were judged: what they say of racks is in the store, or is written before anything begins.
    judged_one: bool,
    told: Told,
    /// The answer that was judged last, and the times of its machines.
    judged: Option<Arc<Reports>>,
    times: Times,
    removals: Removals,
    /// Who stands where, by the newest reports and by the newest observation: each is looked through once.
    reported: Option<(Arc<Reports>, Racks)>,
    observed: Option<(Arc<Observation>, Racks)>,
}

impl Requests {
    fn know_racks(&mut self, settings: &HoldSettings, observation: Option<Arc<Observation>>) {
        if let Some(newest) = &self.newest
            && self.reported.as_ref().is_none_or(|(known, _)| !Arc::ptr_eq(known, newest))
        {
            self.reported = Some((Arc::clone(newest), Racks::of(&newest.machines, &settings.label)));
        }
        if let Some(newest) = observation
            && self.observed.as_ref().is_none_or(|(known, _)| !Arc::ptr_eq(known, &newest))
        {
            let racks = Racks::of(&newest.machines, &settings.label);
            self.observed = Some((newest, racks));
        }
    }

    /// Takes in an answer that was not judged before.
    fn take_in(&mut self, reports: &Arc<Reports>, state: &ClusterState, hold: Option<&HoldSettings>) {
        if self.judged.as_ref().is_some_and(|judged| Arc::ptr_eq(judged, reports)) {
            return;
        }
        let kept = requests::kept(state);
        let came = (reports.at, Some(reports.seen));
        self.times = Times::of(&reports.machines, came, hold, &kept, &self.times);
        self.removals.answered(reports.revision);
        self.judged = Some(Arc::clone(reports));
    }
}

impl RepairState {
    /// Which machines stand in a held rack, by what is stored, reported and observed now.
    pub(super) fn know_held(&mut self, state: &ClusterState) {
        self.requests.removals.see(state);
        let hold = self.given.hold.as_ref();
        let count = requests::racks_held(state, hold);
        if let Some(settings) = hold.filter(|_| count > 0) {
            self.requests.know_racks(settings, self.given.observations.newest());
        }
        let reported = self.requests.reported.as_ref().map(|(_, racks)| racks);
        let observed = self.requests.observed.as_ref().map(|(_, racks)| racks);
        let answers: Vec<&Racks> = reported.into_iter().chain(observed).collect();
        self.held = held_addresses(requests::holds(state), &answers, requests::nodes(state), hold);
        telemetry::racks_held(count);
    }

    /// Until when entries that were not begun wait for the registry's first reports; `None`: not, or not any more.
    ///
    /// A rack may have failed while nobody led, and only the reports tell. They are waited for where they may hold a rack
    /// and the registry is asked for them, and no longer than for [`FIRST_REPORTS_POLLS`]: a registry that stays away must
    /// not block what an operator asked for.
    pub(super) fn reports_awaited(&self, state: &ClusterState) -> Option<OffsetDateTime> {
        let asked = !state.auto_repair_disabled && state.reports_query().is_some();
        if self.requests.judged_one || !asked || self.given.hold.is_none() {
            return None;
        }
        let (began, since) = self.began;
        let most = self.given.interval * FIRST_REPORTS_POLLS;
        (since.elapsed() < most).then(|| later(began, most))
    }

    /// Judges the newest reports. Whether something of that is to be written, which comes first: a rack must be known to
    /// be held before anything begins in it.
    pub(super) fn request(&mut self, state: &ClusterState) -> bool {
        let Some(reports) = self.requests.newest.clone() else { return false };
        let (hold, interval, now) = (self.given.hold.as_ref(), self.given.interval, Instant::now());
        if !reports.are_good(state.reports_query(), interval, now) {
            return false;
        }
        self.requests.take_in(&reports, state, hold);
        let removed = self.requests.removals.since(reports.revision);
        let known = (&self.requests.times, &removed);
        let Some(decision) = requests::decide(state, &reports, known, hold, (interval, now)) else {
            // Nothing is refused while nothing is asked for.
            telemetry::refused(None);
            return false;
        };
        self.requests.judged_one = true;
        telemetry::refused(Some(&decision));
        let mut news = self.requests.told.news(&decision);
        if decision.stop.is_some() {
            // Nothing is refused while nothing is asked for; that does not let anybody through.
            news.cleared.clear();
        }
        if !news.is_empty() {
            self.given.events.emit(Event::Reports(news));
        }
        if self.shunned.contains(&REQUESTS) {
            return false;
        }
        let Some(change) = requests::change(state, &decision) else { return false };
        self.write(state, change, REQUESTS, String::new(), String::new(), Then::Nothing);
        true
    }
}

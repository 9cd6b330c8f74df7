//! What the registry reports: entries that are added, racks that are held.

use std::sync::Arc;

use madako_domain::observation::Observation;
use madako_domain::repair::change::RepairChange;
use madako_domain::repair::hold::HoldSettings;
use madako_domain::repair::report::Reports;
use madako_domain::state::ClusterState;
use madako_protocol::event::Event;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::effects::{Decided, Subject, Then};
use super::{FIRST_REPORTS_POLLS, RepairState, telemetry};
use crate::hold::times::Times;
use crate::news::Told;
use crate::racks::{Answers, Racks, held_back};
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
    /// What was looked at for who stands in a held rack: another look at the same finds the same.
    held_of: Option<Looked>,
    /// What was judged last, and what is to be written of it.
    decided: Option<(Arc<ClusterState>, Arc<Reports>, Option<RepairChange>)>,
    /// Whether the metric is known to show that nothing is refused.
    shows_none: bool,
}

/// A state of the store, reports and an observation; each is one as long as it is the same in memory.
struct Looked {
    state: Arc<ClusterState>,
    reports: Option<Arc<Reports>>,
    observation: Option<Arc<Observation>>,
}

impl Looked {
    /// Whether who stands in a held rack is the same by both: looked up are racks, nodes, and machines with an entry.
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
        let came = (reports.at, Some(reports.seen));
        self.times = Times::of(&reports.machines, came, hold, &state.holds, &self.times);
        self.removals.answered(reports.revision);
        self.judged = Some(Arc::clone(reports));
    }
}

impl RepairState {
    /// Which machines stand in a held rack, by what is stored, reported and observed now.
    pub(super) fn know_held(&mut self, state: &Arc<ClusterState>) {
        self.requests.removals.see(state);
        let hold = self.given.hold.as_ref();
        let looked = Looked {
            state: Arc::clone(state),
            reports: self.requests.newest.clone(),
            observation: self.given.observations.newest(),
        };
        let same = self.requests.held_of.as_ref().is_some_and(|before| before.is_same(&looked));
        let observation = looked.observation.clone();
        self.requests.held_of = Some(looked);
        if same {
            return;
        }
        let count = requests::racks_held(state, hold);
        if let Some(settings) = hold.filter(|_| count > 0) {
            self.requests.know_racks(settings, observation);
        }
        let reported = self.requests.reported.as_ref().map(|(_, racks)| racks);
        let observed = self.requests.observed.as_ref().map(|(_, racks)| racks);
        let (asked, kept) = (requests::asked_about(state), requests::kept_racks(state));
        self.held = held_back(asked, &kept, Answers { reported, observed }, requests::nodes(state), hold);
        telemetry::racks_held(count);
    }

    /// Until when what was not begun waits for the registry's first reports; `None`: not, or not any more.
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
    pub(super) fn request(&mut self, state: &Arc<ClusterState>) -> bool {
        let (asked, interval) = (state.reports_query(), self.given.interval);
        let newest = self.requests.newest.clone();
        let Some(reports) = newest.filter(|newest| newest.are_good(asked, interval, Instant::now())) else {
            // Nothing is refused while nothing is asked for, nor known to be by an answer that is too old.
            if !std::mem::replace(&mut self.requests.shows_none, true) {
                telemetry::refused(None);
            }
            self.requests.decided = None;
            return false;
        };
        let known = self.requests.decided.as_ref();
        if known.is_none_or(|(of, on, _)| !Arc::ptr_eq(of, state) || !Arc::ptr_eq(on, &reports)) {
            self.judge(state, &reports);
        }
        if self.shunned.contains(&Subject::Reports) {
            return false;
        }
        let Some((_, _, Some(change))) = &self.requests.decided else { return false };
        let (change, told) = (change.clone(), String::new());
        self.write(state, Decided { change, subject: Subject::Reports, told, then: Then::Nothing });
        true
    }

    /// Judges good reports by a state of the store, tells what is new, and remembers what is to be written.
    fn judge(&mut self, state: &Arc<ClusterState>, reports: &Arc<Reports>) {
        let hold = self.given.hold.as_ref();
        let now = (self.given.interval, Instant::now());
        self.requests.take_in(reports, state, hold);
        let removed = self.requests.removals.since(reports.revision);
        let known = (&self.requests.times, &removed);
        let Some(decision) = requests::decide(state, reports, known, hold, now) else { return };
        self.requests.judged_one = true;
        self.requests.shows_none = false;
        telemetry::refused(Some(&decision));
        let mut news = self.requests.told.news(&decision, &reports.machines);
        if decision.stop.is_some() {
            // Nothing is refused while nothing is asked for; that does not let anybody through.
            news.cleared.clear();
        }
        if !news.is_empty() {
            self.given.events.emit(Event::Reports(news));
        }
        let change = requests::change(state, &decision);
        self.requests.decided = Some((Arc::clone(state), Arc::clone(reports), change));
    }
}

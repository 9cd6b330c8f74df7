//! What the registry reports: entries that are added, racks that are held.

use std::sync::Arc;

use madako_messages::event::Event;
use madako_messages::repair::report::Reports;
use madako_messages::state::ClusterState;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::{FIRST_REPORTS_POLLS, REQUESTS, RepairState, Then, telemetry};
use crate::news::Told;
use crate::requests;
use crate::round::later;

/// The newest reports, and what was told of them.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) newest: Option<Arc<Reports>>,
    /// Whether any were judged: what they say of racks is in the store, or is written before anything begins.
    judged: bool,
    told: Told,
}

impl RepairState {
    /// Which machines stand in a held rack, by what is stored and reported now.
    pub(super) fn know_held(&mut self, state: &ClusterState) {
        let reports = self.requests.newest.as_deref();
        let machines = reports.map_or(&[][..], |reports| &reports.machines[..]);
        let hold = self.given.hold.as_ref();
        self.held = requests::held_addresses(state, machines, hold);
        telemetry::racks_held(requests::racks_held(state, hold));
    }

    /// Until when entries that were not begun wait for the registry's first reports; `None`: not, or not any more.
    ///
    /// A rack may have failed while nobody led, and only the reports tell. They are waited for where they may hold a rack
    /// and the registry is asked for them, and no longer than for [`FIRST_REPORTS_POLLS`]: a registry that stays away must
    /// not block what an operator asked for.
    pub(super) fn reports_awaited(&self, state: &ClusterState) -> Option<OffsetDateTime> {
        let asked = !state.auto_repair_disabled && state.reports_query().is_some();
        if self.requests.judged || !asked || self.given.hold.is_none() {
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
        let (hold, interval) = (self.given.hold.as_ref(), self.given.interval);
        let Some(decision) = requests::decide(state, &reports, hold, interval, Instant::now()) else {
            return false;
        };
        self.requests.judged = true;
        telemetry::refused(&decision);
        let mut news = self.requests.told.news(&decision);
        if state.auto_repair_disabled {
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

//! What the registry reports: entries that are added, racks that are held.

use std::sync::Arc;

use madako_messages::event::Event;
use madako_messages::repair::report::Reports;
use madako_messages::state::ClusterState;
use tokio::time::Instant;

use super::{REQUESTS, RepairState, Then, telemetry};
use crate::news::Told;
use crate::requests;

/// The newest reports, and what was told of them.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) newest: Option<Arc<Reports>>,
    told: Told,
}

impl RepairState {
    /// Judges the newest reports. Whether something of that is to be written, which comes first: a rack must be known to
    /// be held before anything begins in it.
    pub(super) fn request(&mut self, state: &ClusterState) -> bool {
        let reports = self.requests.newest.clone();
        let machines = reports.as_deref().map_or(&[][..], |reports| &reports.machines[..]);
        self.held = requests::held_addresses(state, machines, self.given.hold.as_ref());
        let Some(reports) = reports else { return false };
        let (hold, interval) = (self.given.hold.as_ref(), self.given.interval);
        let Some(decision) = requests::decide(state, &reports, hold, interval, Instant::now()) else {
            return false;
        };
        telemetry::refused(&decision);
        let news = self.requests.told.news(&decision);
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

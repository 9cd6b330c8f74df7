//! The repair queue's metrics, and those of the reboot queue.

mod reboots;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::repair::RepairStatus;
use madako_domain::repair::command::HealthAnswer;
use madako_domain::repair::queue::Item;
use madako_domain::state::ClusterState;
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use time::OffsetDateTime;

use self::reboots::Reboots;
use crate::limiter::Decision;
use crate::news::counts;
use crate::next_action::{BlockedBy, NextAction};

pub fn describe_metrics() {
    describe_gauge!("cke_repair_queue_enabled", "1 if the repair queue is enabled.");
    describe_gauge!("cke_repair_queue_items", "Entries of the repair queue, by status.");
    describe_gauge!("cke_machine_repair_status", "1 if a machine has an entry of this status.");
    describe_gauge!("madako_repair_waiting", "Waiting entries of the repair queue, by reason.");
    describe_gauge!(
        "madako_repair_waiting_since_timestamp_seconds",
        "Unix time since which the oldest waiting entry waits for the reason; 0 if no entry waits for it."
    );
    describe_gauge!("madako_reports_refused", "Refused reports, by the limiter that refuses them.");
    describe_gauge!(
        "madako_repair_racks_held",
        "Held racks: their machines failed together, and their repairs wait."
    );
    describe_counter!("madako_repair_operations_total", "Transitions of entries of the repair queue.");
    describe_counter!("madako_repair_health_checks_total", "Health checks of machines, by outcome.");
    describe_histogram!(
        "madako_repair_command_seconds",
        "Duration of a repair's commands with their retries."
    );
    describe_histogram!("madako_repair_look_seconds", "Duration of a decision about the whole repair queue.");
    reboots::describe_metrics();
}

/// Duration of computing all next actions.
pub(super) fn pass_ended(took: Duration) {
    histogram!("madako_repair_look_seconds").record(took.as_secs_f64());
}

/// Counts refusals by reason; `None`: auto-repair is off.
#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub(super) fn refused(decision: Option<&Decision>) {
    for (reason, count) in counts(decision) {
        gauge!("madako_reports_refused", "reason" => reason).set(count as f64);
    }
}

#[allow(clippy::cast_precision_loss, reason = "a count far below 2^52")]
pub(super) fn racks_held(racks: usize) {
    gauge!("madako_repair_racks_held").set(racks as f64);
}

pub(super) fn done(what: &'static str) {
    counter!("madako_repair_operations_total", "operation" => what).increment(1);
}

pub(super) fn ran(kind: &'static str, outcome: &'static str, took: Duration) {
    histogram!("madako_repair_command_seconds", "kind" => kind, "outcome" => outcome)
        .record(took.as_secs_f64());
}

pub(super) fn checked(answer: Option<&HealthAnswer>) {
    let outcome = match answer {
        Some(HealthAnswer::Healthy) => "healthy",
        Some(HealthAnswer::Unhealthy) => "unhealthy",
        Some(HealthAnswer::Failed(_)) => "failed",
        None => "not-run",
    };
    counter!("madako_repair_health_checks_total", "outcome" => outcome).increment(1);
}

/// Values on display: only changed gauges are set.
#[derive(Default)]
pub(super) struct ShownValues {
    /// Identity of each entry, and the cluster's revision.
    of: Option<(BTreeMap<i64, i64>, i64)>,
    machines: BTreeMap<String, BTreeSet<RepairStatus>>,
    /// Unix time since which each entry waits for each reason.
    since: BTreeMap<(i64, &'static str), i64>,
    reboots: Reboots,
}

impl ShownValues {
    #[allow(clippy::cast_precision_loss, reason = "counts and seconds are far below 2^52")]
    pub(super) fn show(&mut self, state: &ClusterState, actions: &[NextAction], now: OffsetDateTime) {
        self.reboots.show(state);
        gauge!("cke_repair_queue_enabled").set(if state.repair.disabled { 0.0 } else { 1.0 });
        let waiting =
            actions.iter().filter_map(|action| Some((action.index, action.blocked_by.as_ref()?.name())));
        self.since = waiting
            .map(|waits| (waits, self.since.get(&waits).copied().unwrap_or(now.unix_timestamp())))
            .collect();
        for &name in BlockedBy::NAMES {
            let since =
                || self.since.iter().filter(|((_, reason), _)| *reason == name).map(|(_, since)| *since);
            gauge!("madako_repair_waiting", "reason" => name).set(since().count() as f64);
            gauge!("madako_repair_waiting_since_timestamp_seconds", "reason" => name)
                .set(since().min().unwrap_or(0) as f64);
        }
        let revision = |item: &Arc<Item<_>>| item.revision;
        let entries = state.repair.entries.iter().map(|(index, item)| (*index, revision(item))).collect();
        let of = (entries, state.cluster.as_ref().map_or(0, |cluster| cluster.revision));
        if self.of.as_ref() == Some(&of) {
            return;
        }
        self.of = Some(of);
        for status in RepairStatus::ALL {
            let entries = state.repair.entries.values();
            let count = entries.filter(|item| item.value.status == *status).count();
            gauge!("cke_repair_queue_items", "status" => status.as_str().to_owned()).set(count as f64);
        }
        self.show_machines(state);
    }

    /// Shows the union of the cluster's nodes and the entries' machines (CKE). A machine in neither shows 0.
    fn show_machines(&mut self, state: &ClusterState) {
        let nodes = state.cluster.iter().flat_map(|cluster| &cluster.value.nodes);
        let mut machines: BTreeMap<String, BTreeSet<RepairStatus>> =
            nodes.map(|node| (node.address.clone(), BTreeSet::new())).collect();
        for item in state.repair.entries.values() {
            machines.entry(item.value.address.clone()).or_default().insert(item.value.status.clone());
        }
        let gone: Vec<String> =
            self.machines.keys().filter(|address| !machines.contains_key(*address)).cloned().collect();
        let none = BTreeSet::new();
        for (address, statuses) in machines.iter().chain(gone.iter().map(|address| (address, &none))) {
            if self.machines.get(address) == Some(statuses) {
                continue;
            }
            for status in RepairStatus::ALL {
                let has = if statuses.contains(status) { 1.0 } else { 0.0 };
                let (address, status) = (address.clone(), status.as_str().to_owned());
                gauge!("cke_machine_repair_status", "address" => address, "status" => status).set(has);
            }
        }
        self.machines = machines;
    }
}

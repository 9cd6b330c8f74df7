//! The repair queue's metrics, and those of the reboot queue.

mod reboots;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use madako_domain::repair::RepairStatus;
use madako_domain::repair::command::HealthAnswer;
use madako_domain::repair::queue::Item;
use madako_domain::state::ClusterState;
use madako_protocol::telemetry::Gauge;
use time::OffsetDateTime;

use self::reboots::Reboots;
use crate::limiter::Decision;
use crate::news::refusals_by_reason;
use crate::next_action::{BlockedBy, NextAction};

madako_protocol::declare_metrics! {
    "Repairs":
    gauge cke_repair_queue_enabled() "1 if the repair queue is enabled.";
    gauge cke_repair_queue_items(status) "Entries of the repair queue, by status.";
    gauge cke_machine_repair_status(address, status)
        "1 if the machine has an entry of this status in the repair queue; for the cluster's nodes and all machines \
         with entries.";
    gauge madako_repair_waiting(reason)
        "Waiting entries of the repair queue, by reason: `disabled`, `rack-held`, `hold-unreadable` (the stored \
         state of its rack cannot be read, so the rack counts as held), `rack-unknown` (a rack is held, and the \
         rack of the machine is not known yet), `missing` (the configuration has no such procedure or operation), \
         `unusable-configuration`, `no-cluster`, `back-off`, `same-machine`, `slots`, `api-server-repaired`, \
         `api-server-rebooted`, `reboot-drains` (a node has one drain at a time), `quorum` (the members of etcd \
         that stay in sync would be no majority), `operation-due` (an operation on nodes goes first), \
         `command-runs`, `success-command-runs`, `no-kubernetes`, `no-host`, `health-unknown`, `draining`, \
         `watching`, `no-records`, `kept-unreadable`, `reports-awaited` (a new leader does not know yet which racks \
         failed). `madako repair-queue explain` shows the reason of each entry, as far as the store has it.";
    gauge madako_repair_waiting_since_timestamp_seconds(reason) in Seconds
        "Unix time since which the oldest waiting entry of the repair queue waits for the reason, as far as this \
         leader knows; 0 if no entry waits for it.";
    gauge madako_reports_refused(reason)
        "Refused reports of machines to repair, by the refusing rule: `no-address`, `duplicate-address`, \
         `has-entry`, `just-removed`, `rebooting`, `out-of-cluster`, `rack-held`, `too-many`. All are 0 while \
         Madako does not ask for reports (`madako auto-repair disable`), or while the newest answer is older than \
         three intervals. `madako repair-queue explain` shows the rule for each machine.";
    gauge madako_repair_racks_held() "Held racks: their machines failed together, and their repairs wait.";
    counter madako_repair_operations_total(operation)
        "Transitions of entries of the repair queue, by the operation as in the history.";
    counter madako_repair_health_checks_total(outcome)
        "Health checks of machines: `healthy`, `unhealthy`, `failed`, `not-run`.";
    histogram madako_repair_command_seconds(kind, outcome) in Seconds
        "Duration of repair and success commands with their retries. `outcome`: `succeeded`, `failed`, `not-begun`, \
         `stopped` (not tried again), `unknown`.";
    histogram madako_repair_look_seconds() in Seconds "Duration of a decision about the whole repair queue.";

    "Reboots":
    gauge cke_reboot_queue_enabled() "1 if the reboot queue is enabled.";
    gauge cke_reboot_queue_running()
        "1 if `reboots/running` says that the queue is enabled and has entries. The leader writes this key.";
    gauge cke_reboot_queue_entries() "Entries of the reboot queue.";
    gauge cke_reboot_queue_items(status)
        "Entries of the reboot queue by status: `queued`, `draining`, `rebooting`, `cancelled`.";
    gauge cke_node_reboot_status(node, status)
        "1 if the node has an entry of this status in the reboot queue. A node that left the cluster shows 0.";
}

/// Counts refusals by reason; `None`: auto-repair is off.
pub(super) fn count_refusals(decision: Option<&Decision>) {
    for (reason, count) in refusals_by_reason(decision) {
        madako_reports_refused(reason).set(count as f64);
    }
}

pub(super) fn count_health_check(answer: Option<&HealthAnswer>) {
    let outcome = match answer {
        Some(HealthAnswer::Healthy) => "healthy",
        Some(HealthAnswer::Unhealthy) => "unhealthy",
        Some(HealthAnswer::Failed(_)) => "failed",
        None => "not-run",
    };
    madako_repair_health_checks_total(outcome).increment(1);
}

/// Statuses of the entries of each machine or node.
type StatusesByMachine<S> = BTreeMap<String, BTreeSet<S>>;

/// Sets the gauges of `new` that differ from `shown`. A machine that is gone shows 0.
fn show_changed<S: Ord>(
    shown: &mut StatusesByMachine<S>,
    new: StatusesByMachine<S>,
    all: &[S],
    gauge: impl Fn(String, &S) -> Gauge,
) {
    let none = BTreeSet::new();
    let gone = shown.keys().filter(|name| !new.contains_key(*name)).map(|name| (name, &none));
    for (name, statuses) in new.iter().chain(gone) {
        if shown.get(name) != Some(statuses) {
            for status in all {
                gauge(name.clone(), status).set(f64::from(statuses.contains(status)));
            }
        }
    }
    *shown = new;
}

/// Values on display: only changed gauges are set.
#[derive(Default)]
pub(super) struct ShownValues {
    /// Identity of each entry, and the cluster's revision.
    of: Option<(BTreeMap<i64, i64>, i64)>,
    machines: StatusesByMachine<RepairStatus>,
    /// Unix time since which each entry waits for each reason.
    since: BTreeMap<(i64, &'static str), i64>,
    reboots: Reboots,
}

impl ShownValues {
    pub(super) fn show(&mut self, state: &ClusterState, actions: &[NextAction], now: OffsetDateTime) {
        self.reboots.show(state);
        cke_repair_queue_enabled().set(f64::from(!state.repair.disabled));
        let waiting =
            actions.iter().filter_map(|action| Some((action.index, action.blocked_by.as_ref()?.name())));
        self.since = waiting
            .map(|waits| (waits, self.since.get(&waits).copied().unwrap_or(now.unix_timestamp())))
            .collect();
        for &name in BlockedBy::NAMES {
            let since =
                || self.since.iter().filter(|((_, reason), _)| *reason == name).map(|(_, since)| *since);
            madako_repair_waiting(name).set(since().count() as f64);
            let oldest = since().min().unwrap_or(0);
            madako_repair_waiting_since_timestamp_seconds(name).set(oldest as f64);
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
            cke_repair_queue_items(status.as_str().to_owned()).set(count as f64);
        }
        self.show_machines(state);
    }

    /// Shows the union of the cluster's nodes and the entries' machines (CKE). A machine in neither shows 0.
    fn show_machines(&mut self, state: &ClusterState) {
        let nodes = state.cluster.iter().flat_map(|cluster| &cluster.value.nodes);
        let mut machines: StatusesByMachine<RepairStatus> =
            nodes.map(|node| (node.address.clone(), BTreeSet::new())).collect();
        for item in state.repair.entries.values() {
            machines.entry(item.value.address.clone()).or_default().insert(item.value.status.clone());
        }
        show_changed(&mut self.machines, machines, RepairStatus::ALL, |address, status| {
            cke_machine_repair_status(address, status.as_str().to_owned())
        });
    }
}

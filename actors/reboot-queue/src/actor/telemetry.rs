//! The reboot queue's metrics beside CKE's, which the repair queue shows.

use madako_protocol::first_seen::FirstSeenTimes;

use crate::next_action::{BlockedBy, NextAction};

madako_protocol::declare_metrics! {
    "Reboots":
    gauge madako_reboot_waiting(reason)
        "Waiting entries of the reboot queue, by reason: `disabled`, `no-cluster`, `unusable-configuration`, \
         `no-command` (the configuration lacks the reboot command or the boot check), `same-node`, `back-off`, \
         `control-plane-busy`, `workers-first`, `slots`, `stuck` (three nodes did not boot in time), \
         `repairs-first`, `repaired`, `operation-due`, `command-runs`, `etcd-not-good`, `api-not-available`, \
         `too-many-unreachable`, `no-kubernetes`, `no-host`, `draining`, `booting`, `updating` (the node is drained, \
         and its kubelet gets another minor version), `boot-overdue`. Drains for upgrades of Kubernetes count as \
         well. `madako reboot-queue explain` shows the reason of each entry, as far as the store has it.";
    gauge madako_reboot_waiting_since_timestamp_seconds(reason) in Seconds
        "Unix time since which entries of the reboot queue wait for the reason, as far as this leader knows; 0 if \
         no entry waits for it.";
    counter madako_reboot_operations_total(operation)
        "Transitions of entries of the reboot queue, by the operation as in the history.";
    histogram madako_reboot_command_seconds(outcome) in Seconds
        "Duration of reboot commands with their retries. `outcome`: `succeeded`, `failed`, `not-begun`, \
         `stopped` (not tried again), `unknown`.";
}

pub(super) fn show_waiting(actions: &[NextAction], since: &mut FirstSeenTimes<&'static str>, now: i64) {
    since.note(actions.iter().filter_map(|next| Some(next.blocked_by.as_ref()?.name())), now);
    for name in BlockedBy::NAMES {
        let waits = |next: &&NextAction| next.blocked_by.as_ref().is_some_and(|by| by.name() == *name);
        madako_reboot_waiting(*name).set(actions.iter().filter(waits).count() as f64);
        let since = since.time_of(name).unwrap_or(0);
        madako_reboot_waiting_since_timestamp_seconds(*name).set(since as f64);
    }
}

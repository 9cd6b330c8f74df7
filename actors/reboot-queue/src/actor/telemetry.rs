//! The reboot queue's metrics beside CKE's, which the repair queue shows.

use crate::next_action::{BlockedBy, NextAction};

madako_protocol::declare_metrics! {
    gauge madako_reboot_waiting(reason) "Waiting entries of the reboot queue, by reason.";
    counter madako_reboot_operations_total(operation) "Transitions of entries of the reboot queue.";
    histogram madako_reboot_command_seconds(outcome) "Duration of reboot commands with their retries.";
}

pub(super) fn show_waiting(actions: &[NextAction]) {
    for name in BlockedBy::NAMES {
        let waits = |next: &&NextAction| next.blocked_by.as_ref().is_some_and(|by| by.name() == *name);
        madako_reboot_waiting(*name).set(actions.iter().filter(waits).count() as f64);
    }
}

//! The reboot queue's metrics beside CKE's, which the repair queue shows.

use madako_protocol::first_seen::FirstSeenTimes;

use crate::next_action::{BlockedBy, NextAction};

madako_protocol::declare_metrics! {
    gauge madako_reboot_waiting(reason) "Waiting entries of the reboot queue, by reason.";
    gauge madako_reboot_waiting_since_timestamp_seconds(reason)
        "Unix time since which entries wait for the reason; 0 if none waits for it.";
    counter madako_reboot_operations_total(operation) "Transitions of entries of the reboot queue.";
    histogram madako_reboot_command_seconds(outcome) "Duration of reboot commands with their retries.";
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

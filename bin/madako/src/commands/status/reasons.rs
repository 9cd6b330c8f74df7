//! The reasons for which entries of the queues wait, in words: the labels of the metrics are for queries.

use std::collections::BTreeMap;

/// The words behind a number of entries, such as `2 for a free slot`. A label that is missing here is a word already.
const WORDS: [(&str, &str); 33] = [
    ("api-not-available", "for healthy API servers"),
    ("api-server-rebooted", "for the reboot of a control plane node"),
    ("api-server-repaired", "for the repair of a control plane node"),
    ("back-off", "in back-off"),
    ("boot-overdue", "overdue to boot"),
    ("command-runs", "for a running command"),
    ("control-plane-busy", "for another control plane node"),
    ("disabled", "for the disabled queue"),
    ("etcd-not-good", "for a healthy etcd"),
    ("health-unknown", "for a health check"),
    ("hold-unreadable", "in a rack with an unreadable hold"),
    ("kept-unreadable", "with unreadable progress"),
    ("missing", "without a repair procedure"),
    ("no-cluster", "without a cluster configuration"),
    ("no-command", "without a reboot command or boot check"),
    ("no-host", "without an instance that runs commands"),
    ("no-kubernetes", "without access to Kubernetes"),
    ("no-records", "without a readable counter of records"),
    ("operation-due", "for an operation on nodes"),
    ("quorum", "for the quorum of etcd"),
    ("rack-held", "in held racks"),
    ("rack-unknown", "in unknown racks"),
    ("reboot-drains", "for a drain of the reboot queue"),
    ("repaired", "under repair"),
    ("repairs-first", "for repairs"),
    ("reports-awaited", "for the first reports of the registry"),
    ("same-machine", "for another repair of the machine"),
    ("same-node", "for another reboot of the node"),
    ("slots", "for a free slot"),
    ("success-command-runs", "for their success command"),
    ("too-many-unreachable", "for unreachable nodes"),
    ("unusable-configuration", "with an unusable configuration"),
    ("workers-first", "for workers"),
];

/// A reason in words; a label without words is returned as it is.
fn describe_reason(label: &str) -> &str {
    WORDS.iter().find(|(reason, _)| *reason == label).map_or(label, |(_, words)| *words)
}

/// A reason in words, with its label, by which the runbooks know it.
pub(super) fn explain_reason(label: &str) -> String {
    match describe_reason(label) {
        words if words == label => label.to_owned(),
        words => format!("{words} ({label})"),
    }
}

/// Numbers of waiting entries with their reasons in words.
pub(super) fn join_reasons(counts: &BTreeMap<String, u64>) -> String {
    counts
        .iter()
        .map(|(label, count)| format!("{count} {}", describe_reason(label)))
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reasons that are words of their own.
    const PLAIN: [&str; 5] = ["booting", "draining", "stuck", "updating", "watching"];

    #[test]
    fn every_reason_of_the_queues_has_words() {
        let repairs = madako_repair_queue::next_action::BlockedBy::NAMES.to_vec();
        let reboots = madako_reboot_queue::next_action::BlockedBy::NAMES.to_vec();
        let reasons = [repairs, reboots].concat();
        for reason in &reasons {
            let is_described = describe_reason(reason) != *reason;
            assert!(is_described != PLAIN.contains(reason), "{reason}");
        }
        for (reason, _) in WORDS {
            assert!(reasons.contains(&reason), "no queue has the reason {reason}");
        }
    }
}

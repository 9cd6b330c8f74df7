//! Tests of the promises about drains.

use madako_domain::keys;
use serde_json::json;

use super::*;
use crate::Exemption;
use crate::KubernetesRequest::{Cordon, Delete, Evict, Uncordon};

/// The node of the entry with the index 0.
const NODE: &str = "10.0.0.4";

#[test]
fn a_pod_is_deleted_after_its_eviction_was_refused() {
    judges(Promise::EvictedFirst, |tape, spoiled| {
        tape.kubernetes(Evict, NODE, Some("web/a"), !spoiled);
        tape.kubernetes(Delete, NODE, Some("web/a"), false);
    });
}

#[test]
fn a_request_of_a_drain_needs_an_entry_that_drains() {
    for action in [Cordon, Evict, Delete] {
        judges(Promise::DrainRequests, |tape, spoiled| {
            tape.write_entry(0, "processing", 0, "draining");
            tape.later(20).kubernetes(action, NODE, None, false);
            tape.write_entry(0, "processing", 0, "watching");
            tape.later(2).kubernetes(action, NODE, None, false);
            if spoiled {
                tape.later(2).kubernetes(action, NODE, None, false);
            }
            tape.later(20).write_entry(1, "queued", 0, "waiting");
        });
    }
}

#[test]
fn a_revision_that_is_observed_late_explains_a_request() {
    judges(Promise::DrainRequests, |tape, spoiled| {
        tape.kubernetes(Cordon, NODE, None, false);
        tape.later(if spoiled { 4 } else { 2 }).write_entry(0, "processing", 0, "draining");
    });
}

#[test]
fn a_request_that_was_held_back_counts_from_its_earliest_start() {
    let mut tape = Tape::new();
    tape.write_entry(0, "processing", 0, "draining");
    tape.later(60).write_entry(0, "processing", 0, "watching");
    let sent = tape.at;
    tape.later(30);
    tape.tell(Fact::Kubernetes { action: Evict, node: NODE.to_owned(), pod: None, refused: false, sent });
    tape.later(10).write_entry(1, "queued", 0, "waiting");
    tape.keeps(Promise::DrainRequests);
    let used = tape.oracle.exemptions().list_uses().into_iter().find(|(it, _)| *it == Exemption::HeldBack);
    assert_eq!(used.map(|(_, used)| (used.uses, used.longest_seconds)), Some((1, Some(30))));
}

#[test]
fn node_is_not_uncordoned_during_its_repair() {
    judges(Promise::DrainRequests, |tape, spoiled| {
        tape.write_entry(0, "processing", 0, "draining");
        tape.later(20).write_entry(0, "processing", 0, "watching");
        tape.later(20);
        if !spoiled {
            tape.put(&[(&keys::repair(0), json!(null))]);
        }
        tape.kubernetes(Uncordon, NODE, None, false);
        tape.later(20).write_entry(1, "queued", 0, "waiting");
    });
}

#[test]
fn node_is_not_uncordoned_during_its_reboot_unless_the_queue_is_disabled() {
    judges(Promise::DrainRequests, |tape, spoiled| {
        let entry = json!({"index": "3", "node": NODE, "status": "rebooting"});
        tape.put(&[(&keys::reboot(3), entry)]);
        tape.later(20).put(&[(keys::REBOOTS_DISABLED, json!(!spoiled))]);
        tape.later(20).kubernetes(Uncordon, NODE, None, false);
        tape.later(20).write_entry(1, "queued", 0, "waiting");
    });
}

#[test]
fn a_drain_for_an_upgrade_is_one_and_its_node_stays_cordoned_until_the_entry_is_gone() {
    judges(Promise::DrainRequests, |tape, spoiled| {
        let entry = |status: &str| json!({"index": "-1", "node": NODE, "status": status});
        tape.put(&[(&keys::reboot(-1), entry("draining"))]);
        tape.later(2).kubernetes(Cordon, NODE, None, false);
        tape.later(20).put(&[(&keys::reboot(-1), entry("drained"))]);
        tape.put(&[(keys::REBOOTS_DISABLED, json!(true))]);
        tape.later(20);
        if !spoiled {
            tape.put(&[(&keys::reboot(-1), json!(null))]);
        }
        tape.kubernetes(Uncordon, NODE, None, false);
        tape.later(20).write_entry(1, "queued", 0, "waiting");
    });
}

/// An entry with the index 0 whose times are seconds of a leader's clock.
fn entry(tape: &mut Tape, step_status: &str, at: i64, backed_off: Option<(u32, i64)>) {
    let (key, mut entry) = tape.entry(0, "processing", 0, step_status);
    let time = |seconds: i64| {
        let time = time::OffsetDateTime::UNIX_EPOCH + time::Duration::seconds(seconds);
        json!(time.format(&time::format_description::well_known::Rfc3339).unwrap())
    };
    entry["last_transition_time"] = time(at);
    if let Some((count, pause)) = backed_off {
        entry["drain_backoff_count"] = json!(count);
        entry["drain_backoff_expire"] = time(at + pause);
    }
    tape.put(&[(&key, entry)]);
}

#[test]
fn a_drain_that_is_given_up_has_its_back_off() {
    for (count, pause) in [(1, 299), (1, 601), (0, 300)] {
        judges(Promise::DrainEnds, |tape, spoiled| {
            entry(tape, "draining", 0, None);
            tape.later(130);
            entry(tape, "waiting", 130, Some(if spoiled { (count, pause) } else { (1, 600) }));
        });
    }
}

#[test]
fn a_drain_ends_in_time_by_the_clock_of_the_world() {
    judges(Promise::DrainEnds, |tape, spoiled| {
        entry(tape, "draining", 0, None);
        tape.later(if spoiled { 3600 } else { 60 });
        entry(tape, "watching", if spoiled { 60 } else { 3600 }, None);
    });
}

#[test]
fn drain_that_ends_late_is_an_exemption() {
    for (lasted, uses) in [(240, 0), (300, 1)] {
        let mut tape = Tape::new();
        entry(&mut tape, "draining", 0, None);
        tape.later(lasted);
        entry(&mut tape, "watching", 60, None);
        tape.keeps(Promise::DrainEnds);
        assert_eq!(tape.used(Exemption::LateDrain).uses, uses, "{lasted} s");
    }
}

#[test]
fn a_drain_begins_again_after_its_back_off() {
    judges(Promise::DrainEnds, |tape, spoiled| {
        entry(tape, "draining", 0, None);
        tape.later(130);
        entry(tape, "waiting", 130, Some((1, 300)));
        tape.later(if spoiled { 299 } else { 300 });
        entry(tape, "draining", if spoiled { 429 } else { 430 }, Some((1, 1)));
    });
}

#[test]
fn a_node_has_one_drain_at_a_time() {
    for index in [3, -1] {
        judges(Promise::OneDrain, |tape, spoiled| {
            let put = |tape: &mut Tape, status: &str| {
                let entry = json!({"index": index.to_string(), "node": NODE, "status": status});
                tape.put(&[(&keys::reboot(index), entry)]);
            };
            put(tape, "draining");
            if !spoiled {
                put(tape, "rebooting");
            }
            tape.later(20).write_entry(0, "processing", 0, "draining");
            // The entry is written again.
            tape.later(20).write_entry(0, "processing", 0, "draining");
        });
    }
}

/// A tape on which these nodes do not answer, and then the reboot of node 9 begins.
fn drain_beside(tape: &mut Tape, silent: &[u32], returned: bool) {
    let constraints = json!({
        "control-plane-count": 3, "minimum-workers": 10, "maximum-unreachable-nodes-for-reboot": 1,
    });
    tape.put(&[(keys::CONSTRAINTS, constraints)]);
    let began = tape.at;
    tape.tell(Fact::Silent(silent.iter().map(|number| (address(*number), began)).collect()));
    let put = |tape: &mut Tape, index: i64, number: u32, status: &str| {
        let entry = json!({"index": index.to_string(), "node": address(number), "status": status});
        tape.put(&[(&keys::reboot(index), entry)]);
    };
    put(tape, 0, 4, "rebooting");
    tape.later(600);
    put(tape, 1, 9, "queued");
    put(tape, 1, 9, "draining");
    if returned {
        tape.later(5).tell(Fact::Silent(BTreeMap::new()));
    }
    tape.later(20).tell(Fact::ByUser { revision: 0 });
}

#[test]
fn no_drain_for_a_reboot_begins_beside_too_many_silent_nodes() {
    judges(Promise::DrainLimit, |tape, spoiled| {
        // Node 4 reboots, and node 99 is not in the cluster.
        drain_beside(tape, if spoiled { &[4, 5, 6] } else { &[4, 5, 99] }, false);
    });
    let mut tape = Tape::new();
    drain_beside(&mut tape, &[5, 6], true);
    tape.keeps(Promise::DrainLimit);
}

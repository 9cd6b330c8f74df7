//! Invariants of repairs: I7 one repair a machine, I8 one API server, I10 records.
//!
//! The first functions check a state. Functions whose names end in `_change` check a step: a state that another
//! program has already broken (ckecli writes entries whole) must not block a step that does not make it worse.

use std::collections::{BTreeMap, BTreeSet};

use crate::canary::{Canary, is_planted};
use crate::cluster::Cluster;
use crate::invariants::{Id, Violation};
use crate::reboot::RebootStatus;
use crate::repair::change::{MAX_RECORDS, RepairChange, RepairWrite};
use crate::repair::queue::RepairQueue;
use crate::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};

/// True while the entry's machine is drained, or its health is watched after a command.
#[must_use]
pub fn is_active(entry: &RepairQueueEntry) -> bool {
    entry.status == RepairStatus::Processing
        && matches!(entry.step_status, RepairStepStatus::Draining | RepairStepStatus::Watching)
}

/// Machines with more than one repair in processing, with the number of repairs. A machine whose command runs counts
/// as in processing, even if another program has overwritten its entry.
fn machines_repaired_twice(queue: &RepairQueue) -> BTreeMap<&str, usize> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let processed = queue.entries.iter().filter(|(index, item)| {
        item.value.status == RepairStatus::Processing || queue.running_repair_of(**index).is_some()
    });
    for (_, item) in processed {
        *counts.entry(&item.value.address).or_default() += 1;
    }
    counts.retain(|_, count| *count > 1);
    counts
}

/// I7: a machine has at most one repair in processing.
#[must_use]
pub fn check_one_repair_a_machine(queue: &RepairQueue) -> Vec<Violation> {
    machines_repaired_twice(queue)
        .into_iter()
        .map(|(address, count)| repaired_twice_violation(address, count))
        .collect()
}

fn repaired_twice_violation(address: &str, count: usize) -> Violation {
    Violation { invariant: Id::I7, what: format!("{count} repairs of {address} are in processing") }
}

/// Addresses of the control plane nodes that are drained, rebooting or under repair: I8 has something to judge while
/// there is one.
#[must_use]
pub fn busy_api_servers<'q>(queue: &'q RepairQueue, cluster: Option<&Cluster>) -> BTreeSet<&'q str> {
    let control_plane: BTreeSet<&str> =
        cluster.into_iter().flat_map(Cluster::control_plane).map(|node| node.address.as_str()).collect();
    let active = queue
        .entries
        .iter()
        .filter(|(index, item)| is_active(&item.value) || queue.running_repair_of(**index).is_some());
    let repaired = active.map(|(_, item)| item.value.address.as_str());
    let rebooted = queue.rebooting_nodes().map(|(node, _)| node);
    repaired.chain(rebooted).filter(|address| control_plane.contains(address)).collect()
}

/// I8: at most one control plane node is drained, rebooting or under repair.
#[must_use]
pub fn check_one_api_server(queue: &RepairQueue, cluster: Option<&Cluster>) -> Option<Violation> {
    let busy = busy_api_servers(queue, cluster);
    (busy.len() > 1).then(|| several_api_servers(&busy))
}

/// I8 of a step: the step adds no control plane node to one that is drained, rebooting or under repair already.
fn check_no_further_api_server(was: &BTreeSet<&str>, busy: &BTreeSet<&str>) -> Option<Violation> {
    (busy.len() > 1 && busy.difference(was).next().is_some()).then(|| several_api_servers(busy))
}

/// I8 of a cluster before its commit: it adds no machine that is drained, rebooting or under repair to the control
/// plane while another control plane node is. A violation that existed before stays allowed, because an operator's
/// own cluster is not checked.
#[must_use]
pub fn check_api_servers_of_cluster(
    before: Option<&Cluster>,
    after: &Cluster,
    queue: &RepairQueue,
) -> Option<Violation> {
    check_no_further_api_server(&busy_api_servers(queue, before), &busy_api_servers(queue, Some(after)))
}

/// True if a change begins to drain, reboot or repair a machine that is not drained, rebooting or under repair yet.
#[must_use]
pub fn begins_repair(change: &RepairChange, before: &RepairQueue) -> bool {
    let active = |queue: &RepairQueue| -> BTreeSet<String> {
        let active = queue.entries.values().filter(|item| is_active(&item.value));
        let repaired = active.map(|item| item.value.address.as_str());
        repaired.chain(queue.rebooting_nodes().map(|(node, _)| node)).map(str::to_owned).collect()
    };
    !active(&change.apply_to(before)).is_subset(&active(before))
}

/// Nodes that are drained for a reboot while they are under repair.
fn drained_twice(queue: &RepairQueue) -> BTreeSet<&str> {
    let drained: BTreeSet<&str> = queue
        .rebooting_nodes()
        .filter(|(_, entry)| entry.status == RebootStatus::Draining)
        .map(|(node, _)| node)
        .collect();
    let active = queue
        .entries
        .iter()
        .filter(|(index, item)| is_active(&item.value) || queue.running_repair_of(**index).is_some());
    active.map(|(_, item)| item.value.address.as_str()).filter(|address| drained.contains(address)).collect()
}

/// I7 over both queues: a change begins no repair of a node that is drained for a reboot, and no such drain of a node
/// under repair.
fn check_queues_of_change(before: &RepairQueue, after: &RepairQueue) -> Option<Violation> {
    if is_planted(Canary::NodeDrainedTwice) {
        return None;
    }
    let was = drained_twice(before);
    let address = drained_twice(after).into_iter().find(|address| !was.contains(address))?;
    let what = format!("{address} is drained for a reboot and is under repair at once");
    Some(Violation { invariant: Id::I7, what })
}

fn several_api_servers(busy: &BTreeSet<&str>) -> Violation {
    let busy = busy.iter().copied().collect::<Vec<_>>().join(", ");
    Violation {
        invariant: Id::I8,
        what: format!("the control plane nodes {busy} are drained, rebooting or under repair at once"),
    }
}

/// I10: at most one record is unfinished, and at most 1,000 are kept.
#[must_use]
pub fn check_records(queue: &RepairQueue) -> Vec<Violation> {
    let records = &queue.records;
    let mut violations = Vec::new();
    if records.unfinished.len() > 1 {
        let ids: Vec<String> = records.unfinished.keys().map(ToString::to_string).collect();
        violations.push(broken_record(format!("the records {} are unfinished at once", ids.join(", "))));
    }
    if records.known.len() > MAX_RECORDS {
        violations.push(broken_record(format!("{} records are kept", records.known.len())));
    }
    violations
}

fn broken_record(what: String) -> Violation {
    Violation { invariant: Id::I10, what }
}

/// All invariants of a change of the repair queue or the reboot queue before its commit: I7, I8, I10.
///
/// `maximum` is the constraint `maximum-repair-queue-entries`.
#[must_use]
pub fn check_repair_change(
    change: &RepairChange,
    before: &RepairQueue,
    cluster: Option<&Cluster>,
    maximum: i64,
) -> Vec<Violation> {
    let after = change.apply_to(before);
    let mut violations = check_repairs_of_change(change, before, &after, maximum);
    violations.extend(check_queues_of_change(before, &after));
    violations.extend(check_api_servers_of_change(before, &after, cluster));
    violations.extend(records_change(change, before, &after));
    violations
}

fn check_repairs_of_change(
    change: &RepairChange,
    before: &RepairQueue,
    after: &RepairQueue,
    maximum: i64,
) -> Vec<Violation> {
    let was = machines_repaired_twice(before);
    let mut violations: Vec<Violation> = machines_repaired_twice(after)
        .into_iter()
        .filter(|(address, count)| was.get(address).is_none_or(|was| count > was))
        .map(|(address, count)| repaired_twice_violation(address, count))
        .collect();
    let added: Vec<&RepairQueueEntry> = change
        .writes
        .iter()
        .filter_map(|write| match write {
            RepairWrite::Added(entry) => Some(entry),
            _ => None,
        })
        .collect();
    for entry in &added {
        let of_machine = after
            .entries
            .values()
            .filter(|item| item.value.address == entry.address && !item.value.is_finished())
            .count();
        if of_machine > 1 {
            violations.push(Violation {
                invariant: Id::I7,
                what: format!("{} is added beside another unfinished entry", entry.address),
            });
        }
    }
    let count = i64::try_from(after.entries.len()).unwrap_or(i64::MAX);
    if !added.is_empty() && count > maximum {
        violations.push(Violation {
            invariant: Id::I7,
            what: format!("additions make {count} entries of the queue; the maximum is {maximum}"),
        });
    }
    violations
}

fn check_api_servers_of_change(
    before: &RepairQueue,
    after: &RepairQueue,
    cluster: Option<&Cluster>,
) -> Option<Violation> {
    check_no_further_api_server(&busy_api_servers(before, cluster), &busy_api_servers(after, cluster))
}

fn records_change(change: &RepairChange, before: &RepairQueue, after: &RepairQueue) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut next = before.records.next.map(|(next, _)| next);
    for write in &change.writes {
        let RepairWrite::Record(record) = write else { continue };
        if before.records.unfinished.contains_key(&record.id) {
            continue;
        }
        if next == Some(record.id) {
            next = Some(record.id + 1);
        } else {
            let what =
                format!("record {} is neither the next ({next:?}) nor an unfinished record", record.id);
            violations.push(broken_record(what));
        }
    }
    let (was, are) = (before.records.unfinished.len(), after.records.unfinished.len());
    if are > 1 && are > was {
        violations.extend(check_records(after).into_iter().take(1));
    }
    let (was, are) = (before.records.known.len(), after.records.known.len());
    if are > MAX_RECORDS && are > was {
        violations.push(broken_record(format!("{are} records are kept")));
    }
    violations
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cluster::Node;
    use crate::reboot::{RebootQueueEntry, RebootStatus};
    use crate::record::Record;
    use crate::repair::queue::Item;
    use time::OffsetDateTime;

    fn entry(
        index: i64,
        address: &str,
        status: RepairStatus,
        step_status: RepairStepStatus,
    ) -> RepairQueueEntry {
        RepairQueueEntry { index, status, step_status, ..RepairQueueEntry::new("o", "t", address) }
    }

    fn queue(entries: &[RepairQueueEntry]) -> RepairQueue {
        let item = |entry: &RepairQueueEntry| {
            (entry.index, Arc::new(Item { value: entry.clone(), created: 1, revision: 1 }))
        };
        let mut queue = RepairQueue { entries: entries.iter().map(item).collect(), ..RepairQueue::default() };
        queue.records.next = Some((5, 1));
        queue
    }

    fn rebooted(node: &str) -> Arc<Item<RebootQueueEntry>> {
        let value = RebootQueueEntry { status: RebootStatus::Draining, ..RebootQueueEntry::new(node) };
        Arc::new(Item { value, created: 1, revision: 1 })
    }

    fn cluster() -> Cluster {
        let node = |address: &str, control_plane| Node {
            address: address.to_owned(),
            control_plane,
            ..Node::default()
        };
        Cluster { nodes: vec![node("a", true), node("b", true), node("w", false)], ..Cluster::default() }
    }

    fn change(writes: Vec<RepairWrite>) -> RepairChange {
        RepairChange { what: "test", conditions: Vec::new(), writes }
    }

    fn judged(before: &RepairQueue, writes: Vec<RepairWrite>) -> Vec<Id> {
        check_repair_change(&change(writes), before, Some(&cluster()), 2)
            .into_iter()
            .map(|violation| violation.invariant)
            .collect()
    }

    fn record(id: i64, ends: bool) -> RepairWrite {
        let mut record = Record::new(id, "repair-execute", Vec::new(), OffsetDateTime::UNIX_EPOCH);
        if ends {
            record.complete(OffsetDateTime::UNIX_EPOCH);
        }
        RepairWrite::Record(record)
    }

    use RepairStatus::{Processing, Queued};
    use RepairStepStatus::{Draining, Waiting, Watching};

    #[test]
    fn a_valid_change_has_no_violation() {
        let before = queue(&[entry(0, "a", Queued, Waiting), entry(1, "w", Processing, Watching)]);
        let writes = vec![RepairWrite::Entry(entry(0, "a", Processing, Draining)), record(5, true)];
        assert_eq!(judged(&before, writes), []);
        assert_eq!(judged(&queue(&[]), vec![RepairWrite::Added(entry(0, "w", Queued, Waiting))]), []);
    }

    #[test]
    fn machine_has_at_most_one_repair_at_a_time() {
        let before = queue(&[entry(0, "w", Processing, Waiting), entry(1, "w", Queued, Waiting)]);
        let begun = RepairWrite::Entry(entry(1, "w", Processing, Draining));
        assert_eq!(judged(&before, vec![begun.clone()]), [Id::I7]);
        assert_eq!(check_one_repair_a_machine(&change(vec![begun]).apply_to(&before)).len(), 1);
    }

    #[test]
    fn added_repair_beyond_the_limits_violates_i7() {
        let one = queue(&[entry(0, "w", Queued, Waiting)]);
        assert_eq!(judged(&one, vec![RepairWrite::Added(entry(1, "w", Queued, Waiting))]), [Id::I7]);
        let full = queue(&[entry(0, "a", Queued, Waiting), entry(1, "b", Queued, Waiting)]);
        assert_eq!(judged(&full, vec![RepairWrite::Added(entry(2, "w", Queued, Waiting))]), [Id::I7]);
    }

    #[test]
    fn api_servers_are_repaired_one_at_a_time() {
        let before = queue(&[entry(0, "a", Processing, Watching), entry(1, "b", Queued, Waiting)]);
        let begun = vec![RepairWrite::Entry(entry(1, "b", Processing, Watching))];
        assert_eq!(judged(&before, begun.clone()), [Id::I8]);
        assert!(check_one_api_server(&change(begun.clone()).apply_to(&before), Some(&cluster())).is_some());
        let mut rebooting = queue(&[entry(1, "b", Queued, Waiting)]);
        rebooting.reboots.insert(0, rebooted("a"));
        assert_eq!(judged(&rebooting, begun), [Id::I8]);
    }

    #[test]
    fn a_step_out_of_a_spoiled_state_is_allowed() {
        let spoiled = queue(&[entry(0, "a", Processing, Draining), entry(1, "b", Processing, Draining)]);
        let better = vec![RepairWrite::Entry(entry(1, "b", Processing, Waiting)), record(5, true)];
        assert_eq!(judged(&spoiled, better), []);
        let same = vec![RepairWrite::Entry(entry(1, "b", Processing, Watching)), record(5, true)];
        assert_eq!(judged(&spoiled, same), []);
    }

    #[test]
    fn a_cluster_gives_the_control_plane_no_second_node_that_is_away() {
        let with = |control_plane: &[&str]| {
            let mut cluster = cluster();
            for node in &mut cluster.nodes {
                node.control_plane = control_plane.contains(&node.address.as_str());
            }
            cluster
        };
        let judged = |repairs: &RepairQueue, before: &Cluster, after: &Cluster| {
            check_api_servers_of_cluster(Some(before), after, repairs).map(|violation| violation.invariant)
        };
        let (two, three) = (cluster(), with(&["a", "b", "w"]));
        let mut queue = queue(&[entry(0, "a", Processing, Watching), entry(1, "w", Processing, Draining)]);
        assert_eq!(judged(&queue, &two, &three), Some(Id::I8));
        assert_eq!(judged(&queue, &with(&["b"]), &with(&["b", "w"])), None, "it is the only one");
        assert_eq!(judged(&queue, &two, &with(&["b", "w"])), None, "the other one leaves the control plane");
        assert!(
            check_api_servers_of_cluster(None, &three, &queue).is_some(),
            "a first cluster is judged as well"
        );
        // A step must not worsen an existing violation; such a violation blocks nothing else.
        assert_eq!(judged(&queue, &three, &three), None);
        assert_eq!(judged(&queue, &three, &with(&["a", "w"])), None);
        queue.reboots.insert(0, rebooted("b"));
        assert_eq!(judged(&queue, &with(&["a", "w"]), &three), Some(Id::I8));
        assert!(queue.machines_under_way().eq(["a", "w", "b"]));
    }

    #[test]
    fn repair_in_progress_does_not_begin_again() {
        let before = queue(&[
            entry(0, "a", Processing, Draining),
            entry(1, "b", Queued, Waiting),
            entry(2, "w", Processing, Waiting),
        ]);
        let begins = |entry| begins_repair(&change(vec![RepairWrite::Entry(entry)]), &before);
        assert!(begins(entry(1, "b", Processing, Draining)) && begins(entry(2, "w", Processing, Watching)));
        assert!(!begins(entry(0, "a", Processing, Watching)) && !begins(entry(0, "a", Processing, Waiting)));
    }

    #[test]
    fn records_grow_by_one_and_one_at_most_is_unfinished() {
        let mut before = queue(&[]);
        assert_eq!(judged(&before, vec![record(6, true)]), [Id::I10]);
        assert_eq!(judged(&before, vec![record(4, true)]), [Id::I10]);
        let RepairWrite::Record(running) = record(4, false) else { panic!() };
        let item = Item { value: running, created: 1, revision: 1 };
        before.records.unfinished.insert(4, Arc::new(item));
        assert_eq!(judged(&before, vec![record(4, true)]), []);
        assert_eq!(judged(&before, vec![record(5, true)]), []);
        assert_eq!(judged(&before, vec![record(5, false)]), [Id::I10]);
    }

    #[test]
    fn the_oldest_records_make_room() {
        let mut before = queue(&[]);
        before.records.known = (1..=1000).map(|id| (id, id)).collect();
        before.records.next = Some((1001, 1));
        let change = change(vec![record(1001, true)]);
        assert_eq!(check_repair_change(&change, &before, None, 0), []);
        let after = change.apply_to(&before);
        assert_eq!((after.records.known.len(), after.records.known.contains_key(&1)), (1000, false));
        let deleted = change.encode_writes(&before).unwrap();
        assert!(deleted.contains(&crate::store::Write::Delete { key: crate::keys::record(1) }));
    }
}

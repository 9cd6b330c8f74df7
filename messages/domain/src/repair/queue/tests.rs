use bytes::Bytes;

use super::*;

fn store(values: &[(&str, &str)]) -> BTreeMap<String, Entry> {
    let entry = |(at, (key, value)): (usize, &(&str, &str))| {
        let revision = i64::try_from(at).unwrap() + 1;
        let value = Bytes::from((*value).to_owned());
        ((*key).to_owned(), Entry { value, create_revision: revision, mod_revision: revision, lease: 0 })
    };
    values.iter().enumerate().map(entry).collect()
}

fn decode(values: &[(&str, &str)]) -> (RepairQueue, Vec<String>) {
    let mut faults = Vec::new();
    let queue = RepairQueue::decode(&store(values), None, &mut faults);
    (queue, faults.into_iter().map(|fault| fault.key).collect())
}

#[test]
fn an_empty_store_has_an_enabled_empty_queue_that_begins_as_ckes() {
    let (queue, faults) = decode(&[]);
    assert!(queue.entries.is_empty() && !queue.disabled && faults.is_empty());
    assert_eq!((queue.write_index, queue.records.next), (Some((0, 0)), Some((1, 0))));
}

#[test]
fn unreadable_value_is_a_fault_and_affects_no_other_key() {
    let (queue, mut faults) = decode(&[
        ("repairs/data/0000000000000000", r#"{"index":"0","address":"10.0.0.1"}"#),
        ("repairs/data/0000000000000001", r#"{"index":1}"#),
        ("repairs/data/0000000000000002", r#"{"index":"7"}"#),
        ("repairs/data/3", r#"{"index":"3"}"#),
        ("repairs/write-index", "x"),
        ("repairs/disabled", "True"),
        ("reboots/data/0000000000000000", "["),
        ("reboots/disabled", "1"),
        ("reboots/running", "true\n"),
        ("records", "-1"),
    ]);
    faults.sort();
    assert_eq!(
        faults,
        [
            "reboots/data/0000000000000000",
            "records",
            "repairs/data/0000000000000001",
            "repairs/data/0000000000000002",
            "repairs/data/3",
            "repairs/write-index",
        ]
    );
    assert_eq!(queue.entries.keys().copied().collect::<Vec<_>>(), [0]);
    // Their revisions, by which a change can overwrite them.
    assert_eq!(queue.unreadable.entries, BTreeMap::from([(1, 2), (2, 3)]));
    assert_eq!(queue.unreadable.kept, BTreeMap::new());
    assert!(!queue.disabled && !queue.reboots_disabled, "only the bytes `true` switch it off");
    assert!(!queue.reboots_running);
    assert_eq!((queue.write_index, queue.records.next), (None, None));
}

#[test]
fn waiting_repairs_and_reboots_of_a_disabled_queue_take_no_server_from_clients() {
    let repair = |index: u8, step_status: &str| {
        format!(
            r#"{{"index":"{index}","address":"10.0.0.{index}","status":"processing","step_status":"{step_status}"}}"#
        )
    };
    let (draining, waiting) = (repair(1, "draining"), repair(4, "waiting"));
    let mut stored = vec![
        ("repairs/data/0000000000000001", draining.as_str()),
        ("repairs/data/0000000000000004", waiting.as_str()),
        ("reboots/data/0000000000000000", r#"{"index":"0","node":"10.0.0.2","status":"draining"}"#),
        ("reboots/data/0000000000000001", r#"{"index":"1","node":"10.0.0.3","status":"queued"}"#),
    ];
    let addresses = |stored: &[(&str, &str)]| {
        let (queue, faults) = decode(stored);
        assert_eq!(faults, [""; 0]);
        let text = |all: Vec<&str>| all.join(" ");
        (text(queue.machines_under_way().collect()), text(queue.leaving_machines().collect()))
    };
    let under_way = || "10.0.0.1 10.0.0.4 10.0.0.2".to_owned();
    assert_eq!(addresses(&stored), (under_way(), "10.0.0.1 10.0.0.2".to_owned()));
    stored.push(("reboots/disabled", "true"));
    assert_eq!(addresses(&stored), (under_way(), "10.0.0.1".to_owned()));
}

#[test]
fn only_changed_entries_are_decoded_again() {
    let mut values = store(&[
        ("repairs/data/0000000000000000", r#"{"index":"0"}"#),
        ("repairs/data/0000000000000001", r#"{"index":"1"}"#),
    ]);
    let first = RepairQueue::decode(&values, None, &mut Vec::new());
    if let Some(entry) = values.get_mut("repairs/data/0000000000000001") {
        entry.mod_revision = 9;
        entry.value = Bytes::from_static(br#"{"index":"1","step":2}"#);
    }
    let second = RepairQueue::decode(&values, Some(&first), &mut Vec::new());
    assert!(Arc::ptr_eq(&first.entries[&0], &second.entries[&0]));
    assert_eq!((second.entries[&1].value.step, second.entries[&1].revision), (2, 9));
}

#[test]
fn records_give_the_next_number_and_the_unfinished_operations() {
    let record = |id: i64, status: &str| {
        format!(r#"{{"id":"{id}","status":"{status}","operation":"repair-execute","targets":null}}"#)
    };
    let (running, done) = (record(4, "running"), record(5, "completed"));
    let values = [
        ("records", "5"),
        ("records/0000000000000004", running.as_str()),
        ("records/0000000000000005", done.as_str()),
    ];
    let (queue, faults) = decode(&values);
    assert_eq!(faults, [""; 0]);
    assert_eq!(queue.records.next, Some((6, 1)), "a number is never given twice");
    assert_eq!(queue.records.unfinished.keys().copied().collect::<Vec<_>>(), [4]);
    let again = RepairQueue::decode(&store(&values), Some(&queue), &mut Vec::new());
    assert_eq!(again.records, queue.records);
}

#[test]
fn kept_data_of_a_former_entry_with_the_same_number_is_ignored() {
    let (queue, _) = decode(&[
        ("madako/repair/entries/0000000000000000", r#"{"entry":2,"drain":"mine"}"#),
        ("repairs/data/0000000000000000", r#"{"index":"0"}"#),
        ("madako/repair/entries/0000000000000001", r#"{"entry":3,"drain":"another's"}"#),
        ("repairs/data/0000000000000001", r#"{"index":"1"}"#),
    ]);
    assert_eq!(queue.kept_state_of(0).unwrap().drain.as_deref(), Some("mine"));
    assert_eq!(queue.kept_state_of(1), None);
}

#[test]
fn a_removal_of_a_member_is_interrupted_until_one_ends_or_the_node_is_added() {
    let mut values = Vec::new();
    let mut after = |operation: &str, status: &str, targets: &str| {
        let id = values.len() + 1;
        let record =
            format!(r#"{{"id":"{id}","operation":"{operation}","status":"{status}","targets":{targets}}}"#);
        values.push((format!("records/{id:016x}"), record));
        let values: Vec<(&str, &str)> =
            values.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let records = decode(&values).0.records;
        records.interrupted_removals().into_iter().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(after("etcd-bootstrap", "completed", r#"["a","b"]"#), "");
    assert_eq!(after("etcd-destroy-member", "cancelled", r#"["a","b","c"]"#), "a b c");
    assert_eq!(after("etcd-restart", "completed", r#"["a"]"#), "a b c");
    assert_eq!(after("etcd-destroy-member", "completed", r#"["c"]"#), "a b");
    assert_eq!(after("etcd-add-member", "cancelled", r#"["b"]"#), "a");
    assert_eq!(after("etcd-destroy-member", "completed", "[]"), "a");
    assert_eq!(after("etcd-destroy-member", "running", r#"["b"]"#), "a b");
    assert_eq!(after("reboot-reboot", "completed", r#"["b"]"#), "a b");
}

#[test]
fn the_newest_reboot_command_of_a_node_that_ended_counts() {
    let record = |end: &str| format!(r#"{{"operation":"reboot-reboot","targets":["a"],"end-at":"{end}"}}"#);
    let (first, last) = (record("2026-01-02T03:04:05Z"), record("2026-01-02T04:04:05Z"));
    let values = [
        ("records/0000000000000001", first.as_str()),
        ("records/0000000000000002", last.as_str()),
        (
            "records/0000000000000003",
            r#"{"operation":"reboot-reboot","targets":["a","b"],"status":"running"}"#,
        ),
    ];
    let ends = decode(&values).0.records.reboot_ends();
    let ends: Vec<_> = ends.iter().map(|(node, end)| (node.as_str(), end.hour())).collect();
    assert_eq!(ends, [("a", 4)]);
}

#[test]
fn drains_for_upgrades_are_entries_that_cke_does_not_have() {
    let upgrade = r#"{"index":"-2","node":"10.0.0.2","status":"drained"}"#;
    let mut stored = vec![
        ("madako/kubernetes/drains/0000000000000001", upgrade),
        ("madako/kubernetes/drains/0000000000000002", upgrade),
        ("reboots/data/0000000000000001", r#"{"index":"1","node":"10.0.0.3","status":"rebooting"}"#),
    ];
    let (queue, faults) = decode(&stored);
    assert_eq!(faults, ["madako/kubernetes/drains/0000000000000002"], "the index does not fit its key");
    assert_eq!(queue.reboots.keys().copied().collect::<Vec<_>>(), [-2, 1]);
    assert_eq!(queue.requested_reboots().map(|(index, _)| index).collect::<Vec<_>>(), [1]);
    assert!(queue.reboots[&-2].value.is_upgrade() && queue.machines_under_way().eq(["10.0.0.2", "10.0.0.3"]));
    assert!(queue.leaving_machines().eq(["10.0.0.3"]), "an API server stays");
    let key = "madako/kubernetes/drains/0000000000000001";
    assert_eq!((keys::reboot(-2).as_str(), queue.revision_of(key)), (key, Some(1)));
    // The next view takes over the unchanged values.
    stored.remove(1);
    let next = RepairQueue::decode(&store(&stored), Some(&queue), &mut Vec::new());
    assert!(Arc::ptr_eq(&next.reboots[&-2], &queue.reboots[&-2]));
}

use super::*;
use crate::cluster::Node;

#[track_caller]
fn said(result: Result<(), InputError>) -> String {
    result.err().map_or_else(|| "accepted".to_owned(), |error| error.to_string())
}

#[test]
fn a_stored_object_has_zeros_where_it_has_no_field_and_a_missing_key_has_the_defaults() {
    let stored: Constraints =
        serde_json::from_str(r#"{"minimum-workers": 3, "Maximum-Workers": 7, "x-new": 1.0}"#).unwrap();
    assert_eq!(stored.control_plane_count, 0);
    assert_eq!((stored.minimum_workers, stored.maximum_workers), (3, 7));
    assert!(serde_json::to_string(&stored).unwrap().ends_with(r#""x-new":1.0}"#));
    assert_eq!((Constraints::default().control_plane_count, Constraints::default().minimum_workers), (1, 1));
}

#[test]
fn setting_a_constraint_checks_its_name_range_and_consistency() {
    let start = Constraints { minimum_workers: 3, maximum_workers: 5, ..Constraints::default() };
    for (name, value, expected) in [
        ("control-plane-count", "5", "accepted"),
        ("minimum-workers", "0", "accepted"),
        ("minimum-workers", "+5", "accepted"),
        ("maximum-workers", "0", "accepted"),
        ("wait-seconds-to-repair-rebooting", "2147483647", "accepted"),
        (
            "control-plane-count",
            "0",
            "set of constraints is not valid; control-plane-count: got \"0\", expected a whole number from 1 to 2147483647",
        ),
        (
            "maximum-workers",
            "-1",
            "set of constraints is not valid; maximum-workers: got \"-1\", expected a whole number from 0 to 2147483647",
        ),
        (
            "maximum-repair-queue-entries",
            "many",
            "set of constraints is not valid; maximum-repair-queue-entries: got \"many\", expected a whole number from 0 to 2147483647",
        ),
        (
            "minimum-workers",
            "6",
            "set of constraints is not valid; maximum-workers: got 5, expected at least minimum-workers (6), or 0 for no maximum",
        ),
        (
            "maximum-workers",
            "2",
            "set of constraints is not valid; maximum-workers: got 2, expected at least minimum-workers (3), or 0 for no maximum",
        ),
        (
            "minimum_worker",
            "2",
            "set of constraints is not valid; got the unknown constraint \"minimum_worker\", expected a known constraint such as \"minimum-workers\"",
        ),
    ] {
        let mut constraints = start.clone();
        assert_eq!(said(constraints.set(name, value)), expected, "{name} {value}");
        assert_eq!(constraints == start, expected != "accepted", "{name} {value}");
    }
    for name in Constraints::names() {
        let mut constraints = Constraints { maximum_workers: 0, ..start.clone() };
        constraints.set(name, "77").unwrap();
        assert_eq!(serde_json::to_value(&constraints).unwrap()[name], 77);
    }
}

#[test]
fn constraint_can_be_set_while_stored_constraints_contradict_each_other() {
    let mut constraints = Constraints { minimum_workers: 6, maximum_workers: 5, ..Constraints::default() };
    constraints.set("control-plane-count", "3").unwrap();
    constraints.set("maximum-workers", "6").unwrap();
}

#[test]
fn file_is_checked_completely_and_absent_fields_have_defaults() {
    let constraints = Constraints::from_yaml("minimum-workers: 3\nmaximum-workers: null\n").unwrap();
    assert_eq!(constraints, Constraints { minimum_workers: 3, ..Constraints::default() });
    let error = Constraints::from_yaml(
        "{minimum-workers: 3, maximum-workers: 2, control-plane-count: 1.5, workers: 3}",
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "set of constraints is not valid; control-plane-count: got the number 1.5, expected a whole number from 1 to 2147483647; \
         workers: got an unknown field, expected one of control-plane-count, minimum-workers, maximum-workers, \
         maximum-unreachable-nodes-for-reboot, maximum-repair-queue-entries, wait-seconds-to-repair-rebooting; \
         maximum-workers: got 2, expected at least minimum-workers (3), or 0 for no maximum"
    );
}

#[test]
fn a_cluster_is_checked_against_the_constraints_as_cke_does() {
    let cluster = |control_plane, workers| Cluster {
        nodes: (0..control_plane + workers)
            .map(|index| Node { control_plane: index < control_plane, ..Node::default() })
            .collect(),
        ..Cluster::default()
    };
    let constraints = Constraints {
        control_plane_count: 3,
        minimum_workers: 2,
        maximum_workers: 4,
        ..Constraints::default()
    };
    assert_eq!(said(constraints.check(&cluster(3, 2))), "accepted");
    assert_eq!(said(constraints.check(&cluster(3, 4))), "accepted");
    assert_eq!(
        said(constraints.check(&cluster(1, 5))),
        "cluster is not valid; nodes: got 1 control plane nodes, expected 3, the constraint control-plane-count; \
         nodes: got 5 workers, expected at most 4, the constraint maximum-workers"
    );
    assert_eq!(
        said(constraints.check(&cluster(3, 1))),
        "cluster is not valid; nodes: got 1 workers, expected at least 2, the constraint minimum-workers"
    );
}

#[test]
fn constraints_are_shown_as_ckecli_shows_them() {
    assert_eq!(
        madako_json::go::to_pretty_json(&Constraints::default()).unwrap(),
        "{\n    \"control-plane-count\": 1,\n    \"minimum-workers\": 1,\n    \"maximum-workers\": 0,\n    \
         \"maximum-unreachable-nodes-for-reboot\": 0,\n    \"maximum-repair-queue-entries\": 0,\n    \
         \"wait-seconds-to-repair-rebooting\": 0\n}\n"
    );
}

#[test]
fn an_even_control_plane_is_warned_of() {
    let even = Constraints { control_plane_count: 4, ..Constraints::default() };
    assert_eq!(
        even.warnings()[0].to_string(),
        "control-plane-count: etcd on an even number of nodes survives no more failures than on 3"
    );
    assert!(Constraints::default().warnings().is_empty());
}

#[test]
fn stored_constraint_without_influence_on_plans_may_be_negative_and_a_fault_names_its_field() {
    let read = |json: &str| serde_json::from_str::<Constraints>(json);
    let stored = read(r#"{"control-plane-count":3,"maximum-repair-queue-entries":-1}"#).unwrap();
    assert_eq!((stored.control_plane_count, stored.maximum_repair_queue_entries), (3, -1));
    assert!(serde_json::to_string(&stored).unwrap().contains(r#""maximum-repair-queue-entries":-1"#));
    let error = read(r#"{"control-plane-count":3,"minimum-workers":-1}"#).unwrap_err().to_string();
    assert!(error.starts_with("minimum-workers: invalid value: integer `-1`"), "{error}");
}

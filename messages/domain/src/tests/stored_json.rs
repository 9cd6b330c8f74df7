use std::fmt::Debug;

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use time::macros::datetime;

use crate::cluster::{Cluster, Node, Taint};
use crate::constraints::Constraints;
use crate::machine::QueryVariables;
use crate::reboot::{RebootQueueEntry, RebootStatus};
use crate::record::{Command, Record, RecordStatus};
use crate::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use crate::status::{OperationPhase, ServerStatus};
use crate::template::Template;
use madako_json::go::*;

/// Asserts that CKE's text is read as the value and written back byte for byte.
#[track_caller]
fn exact<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T, text: &str) {
    assert_eq!(&serde_json::from_str::<T>(text).unwrap(), value);
    assert_eq!(serde_json::to_string(value).unwrap(), text);
}

// CKE's own types at release line 1.30 wrote the texts below.

#[test]
fn a_record_has_ckes_json() {
    let targets = vec!["10.0.0.1".to_owned(), "10.0.0.2".to_owned()];
    let mut record = Record::new(1 << 62, "etcd-boot", targets, datetime!(2026-01-31 12:00:00.123456789 UTC));
    assert!(record.is_unfinished());
    exact(
        &record,
        r#"{"id":"4611686018427387904","status":"new","operation":"etcd-boot","command":{"name":"","target":""},"targets":["10.0.0.1","10.0.0.2"],"info":"","error":"","start-at":"2026-01-31T12:00:00.123456789Z","end-at":"0001-01-01T00:00:00Z"}"#,
    );
    record.start(Command { name: "wait".into(), target: "10.0.0.1".into(), ..Command::default() });
    assert!(record.is_unfinished());
    record.cancel(datetime!(2026-01-31 12:00:00.12 +9), "failed: \"a\"");
    assert!(!record.is_unfinished());
    exact(
        &record,
        r#"{"id":"4611686018427387904","status":"cancelled","operation":"etcd-boot","command":{"name":"wait","target":"10.0.0.1"},"targets":["10.0.0.1","10.0.0.2"],"info":"","error":"failed: \"a\"","start-at":"2026-01-31T12:00:00.123456789Z","end-at":"2026-01-31T12:00:00.12+09:00"}"#,
    );
}

#[test]
fn a_repair_entry_has_ckes_json() {
    exact(
        &RepairQueueEntry::new("unreachable", "Type-1", "10.0.0.1"),
        r#"{"index":"0","address":"10.0.0.1","nodename":"","machine_type":"Type-1","operation":"unreachable","status":"queued","step":0,"step_status":"waiting","deleted":false,"last_transition_time":"0001-01-01T00:00:00Z","drain_backoff_expire":"0001-01-01T00:00:00Z"}"#,
    );
    exact(
        &RepairQueueEntry {
            index: 5,
            nodename: "node1".into(),
            status: RepairStatus::Processing,
            step: 1,
            step_status: RepairStepStatus::Draining,
            deleted: true,
            last_transition_time: Some(datetime!(2026-01-31 12:00:00.123456789 UTC)),
            drain_backoff_count: 3,
            drain_backoff_expire: Some(datetime!(2026-01-31 12:00:00.12 +9)),
            ..RepairQueueEntry::new("unreachable", "Type-1", "10.0.0.1")
        },
        r#"{"index":"5","address":"10.0.0.1","nodename":"node1","machine_type":"Type-1","operation":"unreachable","status":"processing","step":1,"step_status":"draining","deleted":true,"last_transition_time":"2026-01-31T12:00:00.123456789Z","drain_backoff_count":3,"drain_backoff_expire":"2026-01-31T12:00:00.12+09:00"}"#,
    );
}

#[test]
fn a_reboot_entry_has_ckes_json() {
    exact(
        &RebootQueueEntry::new("10.0.0.1"),
        r#"{"index":"0","node":"10.0.0.1","status":"queued","last_transition_time":"0001-01-01T00:00:00Z","drain_backoff_expire":"0001-01-01T00:00:00Z"}"#,
    );
    exact(
        &RebootQueueEntry {
            index: 7,
            status: RebootStatus::Rebooting,
            last_transition_time: Some(datetime!(2026-01-31 12:00:00.123456789 UTC)),
            drain_backoff_count: 1,
            drain_backoff_expire: Some(datetime!(2026-01-31 12:00:00.12 +9)),
            ..RebootQueueEntry::new("10.0.0.1")
        },
        r#"{"index":"7","node":"10.0.0.1","status":"rebooting","last_transition_time":"2026-01-31T12:00:00.123456789Z","drain_backoff_count":1,"drain_backoff_expire":"2026-01-31T12:00:00.12+09:00"}"#,
    );
}

#[test]
fn status_constraints_and_variables_have_ckes_json() {
    exact(
        &ServerStatus::new(OperationPhase::Completed, datetime!(2026-01-31 12:00:00.123456789 UTC)),
        r#"{"phase":"completed","timestamp":"2026-01-31T12:00:00.123456789Z"}"#,
    );
    exact(
        &Constraints::default(),
        r#"{"control-plane-count":1,"minimum-workers":1,"maximum-workers":0,"maximum-unreachable-nodes-for-reboot":0,"maximum-repair-queue-entries":0,"wait-seconds-to-repair-rebooting":0}"#,
    );
    let text = r#"{"having":{"labels":null,"racks":null,"roles":["a"],"states":null,"minDaysBeforeRetire":5},"notHaving":null}"#;
    let variables: QueryVariables = serde_json::from_str(text).unwrap();
    assert_eq!(variables.having.as_ref().unwrap().min_days_before_retire, Some(5));
    exact(&variables, text);
}

#[test]
fn a_cluster_of_cke_is_read_with_its_nulls_and_its_options_stay_as_they_were() {
    let options = r#"{"etcd":{"extra_args":null,"extra_binds":null,"extra_env":null,"volume_name":"etcd-cke"},"kubelet":{"boot_taints":null,"cni_conf_file":{"name":"","content":""},"cri_endpoint":"/run/containerd/containerd.sock"}}"#;
    let text = format!(
        r#"{{"name":"x","nodes":[{{"address":"10.0.0.1","hostname":"","user":"","control_plane":true,"annotations":null,"labels":null,"taints":null}}],"taint_control_plane":false,"control_plane_tolerations":null,"service_subnet":"","dns_servers":null,"dns_service":"","reboot":{{"reboot_command":null}},"repair":{{"repair_procedures":null}},"options":{options}}}"#
    );
    let cluster: Cluster = serde_json::from_str(&text).unwrap();
    assert_eq!(cluster.nodes, [Node { address: "10.0.0.1".into(), control_plane: true, ..Node::default() }]);
    assert!(cluster.rest.is_empty());
    assert_eq!(cluster.options.text(), Some(options));
    let written = serde_json::to_string(&cluster).unwrap();
    assert!(written.contains(options));
    assert_eq!(serde_json::from_str::<Cluster>(&written).unwrap(), cluster);
}

#[test]
fn names_match_in_any_case_when_no_exact_one_is_there() {
    let cluster: Cluster = serde_json::from_str(
        r#"{"Name":"x","SERVICE_SUBNET":"10.0.0.0/8","Nodes":[{"Control_Plane":true}]}"#,
    )
    .unwrap();
    assert_eq!((cluster.name.as_str(), cluster.service_subnet.as_str()), ("x", "10.0.0.0/8"));
    assert!(cluster.nodes[0].control_plane && cluster.rest.is_empty());
    // CKE stores the text of its query variables unchanged.
    let variables: QueryVariables =
        serde_json::from_str(r#"{"nothaving":{"Roles":["boot"]},"x":1}"#).unwrap();
    assert_eq!(variables.not_having.unwrap().roles, Some(vec!["boot".to_owned()]));
}

#[test]
fn names_of_a_newer_version_are_kept() {
    let record: Record = serde_json::from_str(r#"{"id":"1","status":"paused","targets":null}"#).unwrap();
    assert_eq!(record.status, RecordStatus::Other("paused".into()));
    assert_eq!(serde_json::to_value(&record).unwrap()["status"], "paused");
    assert_eq!(record.end_at, None);
    assert_eq!(record.start_at, ZERO_TIME);
}

#[test]
fn stored_value_of_another_type_is_an_error() {
    for text in [r#"{"id":1}"#, r#"{"id":"x"}"#, r#"{"targets":"a"}"#, r#"{"start-at":"yesterday"}"#, "[]"] {
        assert!(serde_json::from_str::<Record>(text).is_err(), "{text}");
    }
    let error = serde_json::from_str::<Constraints>(r#"{"minimum-workers":-1}"#).unwrap_err();
    assert!(error.to_string().contains("-1"), "{error}");
}

#[test]
fn default_fills_only_absent_fields() {
    for (before, after) in [
        (r#"{}"#, r#"{"a":{"b":"x"}}"#),
        (r#"{"a":null,"c":1.0}"#, r#"{"a":{"b":"x"},"c":1.0}"#),
        (r#"{"z":1e400,"a":{ "q" : [1 , 2] }}"#, r#"{"z":1e400,"a":{"q":[1 , 2],"b":"x"}}"#),
        (r#"{"A":{"B":"y"}}"#, r#"{"A":{"B":"y"}}"#),
        (r#"{"a":{"b":""}}"#, r#"{"a":{"b":""}}"#),
    ] {
        let raw: RawJson = serde_json::from_str(before).unwrap();
        assert_eq!(raw.with_default(&["a", "b"], "x").unwrap().text(), Some(after));
    }
    assert_eq!(RawJson::default().with_default(&["a"], "x").unwrap().text(), Some(r#"{"a":"x"}"#));
    assert!(RawJson::from_text("5".into()).unwrap().with_default(&["a"], "x").is_err());
}

/// JSON whose form must not change: numbers in all notations, empty and nested values, inner spaces.
fn raw_value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("1.0".to_owned()),
        Just("-0".to_owned()),
        Just("1e400".to_owned()),
        Just("1E+2".to_owned()),
        Just("0.1000000000000000055511151231257827".to_owned()),
        "[1-9][0-9]{0,40}",
        any::<bool>().prop_map(|value| value.to_string()),
        "[a-z \\\\\"é]{0,8}".prop_map(|text| Value::from(text).to_string()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(|items| format!("[ {} ]", items.join(" ,"))),
            prop::collection::vec(("[a-z]{1,4}", inner), 0..3).prop_map(|fields| {
                let fields: Vec<_> =
                    fields.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
                format!("{{{}}}", fields.join(", "))
            }),
        ]
    })
}

proptest! {
    #[test]
    fn unknown_fields_survive_at_every_level(values in prop::collection::vec(raw_value(), 6)) {
        let [top, node, taint, reboot, repair, options] = values.try_into().unwrap();
        let text = format!(
            r#"{{"x-top": {top}, "name": "n", "nodes": [{{"x-node": {node}, "taints": [{{"x-taint": {taint}}}]}}],
                 "reboot": {reboot}, "repair": {repair}, "options": {options}}}"#
        );
        let cluster: Cluster = serde_json::from_str(&text).unwrap();
        let again: Cluster = serde_json::from_str(&serde_json::to_string(&cluster).unwrap()).unwrap();
        for cluster in [&cluster, &again] {
            prop_assert_eq!(cluster.rest.get("x-top").unwrap().text(), Some(top.as_str()));
            let [Node { rest, taints, .. }] = &cluster.nodes[..] else { panic!("one node") };
            let [Taint { rest: taint_rest, .. }] = &taints[..] else { panic!("one taint") };
            prop_assert_eq!(rest.get("x-node").unwrap().text(), Some(node.as_str()));
            prop_assert_eq!(taint_rest.get("x-taint").unwrap().text(), Some(taint.as_str()));
            for (raw, text) in [(&cluster.reboot, &reboot), (&cluster.repair, &repair), (&cluster.options, &options)] {
                // Go takes null for an absent value.
                prop_assert_eq!(raw.text(), (text != "null").then_some(text.as_str()));
            }
        }
    }
}

/// A template with a value in every field, and the text that a real ckecli (release line 1.30) stored for it.
const TYPED: &str = include_str!("template.yml");
const STORED: &str = include_str!("template_stored_by_ckecli.json");

#[test]
fn stored_template_equals_that_of_ckecli() {
    let template = Template::from_yaml(TYPED).unwrap();
    assert_eq!(stored_json(template.cluster()).unwrap(), STORED);
    // Texts from the store give the same result, whichever program wrote them.
    for text in [STORED.to_owned(), serde_json::to_string(template.cluster()).unwrap()] {
        let read: Cluster = serde_json::from_str(&text).unwrap();
        assert_eq!(stored_json(&read).unwrap(), STORED);
    }
}

#[test]
fn unknown_fields_are_kept_after_known_fields() {
    let stored =
        r#"{"name":"c","later":{"b":1,"a":2},"options":{"etcd":{"Volume_Name":"v","more":[]},"new":3}}"#;
    let full = stored_json(&serde_json::from_str::<Cluster>(stored).unwrap()).unwrap();
    assert!(full.contains(r#""volume_name":"v","more":[]}"#), "{full}");
    assert!(full.ends_with(r#""new":3},"later":{"b":1,"a":2}}"#), "{full}");
}

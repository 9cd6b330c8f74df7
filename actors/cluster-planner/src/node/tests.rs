use madako_domain::machine::MachineLabel;
use time::format_description::well_known::Rfc3339;

use super::*;
use crate::testing::{MachineWith as _, machine, template_node};

fn to_node(machine: &Machine, address: &str, template: &Node) -> Node {
    NodeMaker::new(template).make_node(machine, address, machine.has_good_labels())
}

fn date(text: &str) -> OffsetDateTime {
    OffsetDateTime::parse(text, &Rfc3339).unwrap()
}

#[test]
fn dates_are_written_as_go_does() {
    let cases = [
        ("2021-03-04T05:06:07Z", "2021-03-04T05:06:07Z"),
        ("2021-03-04T05:06:07.999999999Z", "2021-03-04T05:06:07Z"),
        ("2021-03-04T05:06:07+00:00", "2021-03-04T05:06:07Z"),
        ("2021-03-04T05:06:07-00:00", "2021-03-04T05:06:07Z"),
        ("2021-03-04T05:06:07.5+09:00", "2021-03-04T05:06:07+09:00"),
        ("2021-03-04T05:06:07-00:30", "2021-03-04T05:06:07-00:30"),
        ("2021-03-04T05:06:07-11:45", "2021-03-04T05:06:07-11:45"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
    ];
    for (read, written) in cases {
        assert_eq!(format_date(date(read)), written);
    }
}

#[test]
fn a_month_is_that_of_the_date_s_own_offset() {
    assert_eq!(month_label(date("2021-12-31T23:30:00-05:00")), "2021-12");
    assert_eq!(month_label(date("2022-01-01T00:30:00+09:00")), "2022-01");
    assert_eq!(month_label(date("0987-06-05T00:00:00Z")), "0987-06");
}

fn full_machine() -> Machine {
    let mut machine = machine("10.0.3.7", 3, "compute").serial("s-37");
    let label = |name: &str, value: &str| MachineLabel { name: name.to_owned(), value: value.to_owned() };
    machine.spec.labels = vec![label("product", "R640"), label("datacenter", "ty3"), label("empty", "")];
    machine.spec.index_in_rack = 7;
    machine.spec.register_date = date("2021-03-04T05:06:07.5+09:00");
    machine.spec.retire_date = date("2026-03-04T05:06:07Z");
    machine
}

#[test]
fn a_worker_has_the_labels_and_annotations_of_cke_and_template() {
    let mut template = template_node(false, "compute", Some("6.0"));
    template.annotations.insert("note".to_owned(), "kept".to_owned());
    let node = to_node(&full_machine(), "10.0.3.7", &template);
    let labels: Vec<(&str, &str)> = node.labels.iter().map(|(key, value)| (&**key, &**value)).collect();
    let expected = [
        ("cke.cybozu.com/index-in-rack", "7"),
        ("cke.cybozu.com/rack", "3"),
        ("cke.cybozu.com/register-month", "2021-03"),
        ("cke.cybozu.com/retire-month", "2026-03"),
        ("cke.cybozu.com/role", "compute"),
        ("cke.cybozu.com/weight", "6.0"),
        ("failure-domain.beta.kubernetes.io/zone", "rack3"),
        ("node-role.kubernetes.io/compute", "true"),
        ("sabakan.cke.cybozu.com/datacenter", "ty3"),
        ("sabakan.cke.cybozu.com/empty", ""),
        ("sabakan.cke.cybozu.com/product", "R640"),
        ("topology.kubernetes.io/zone", "rack3"),
    ];
    assert_eq!(labels, expected);
    let annotations: Vec<(&str, &str)> =
        node.annotations.iter().map(|(key, value)| (&**key, &**value)).collect();
    let expected = [
        ("cke.cybozu.com/register-date", "2021-03-04T05:06:07+09:00"),
        ("cke.cybozu.com/retire-date", "2026-03-04T05:06:07Z"),
        ("cke.cybozu.com/serial", "s-37"),
        ("note", "kept"),
    ];
    assert_eq!(annotations, expected);
    assert_eq!((node.address.as_str(), node.user.as_str()), ("10.0.3.7", "cybozu"));
    assert_eq!((node.hostname.as_str(), node.control_plane), ("", false));
}

#[test]
fn a_control_plane_node_has_both_role_labels_as_well() {
    let node = to_node(&full_machine(), "10.0.3.7", &template_node(true, "", None));
    assert_eq!(node.labels["node-role.kubernetes.io/master"], "true");
    assert_eq!(node.labels["node-role.kubernetes.io/control-plane"], "true");
    assert_eq!(node.labels["node-role.kubernetes.io/compute"], "true");
    assert!(node.control_plane);
}

#[test]
fn cke_s_own_labels_win_over_the_template_s_and_those_over_the_machine_s() {
    let mut template = template_node(false, "", None);
    for (key, value) in [
        ("sabakan.cke.cybozu.com/product", "template"),
        ("cke.cybozu.com/rack", "template"),
        ("cke.cybozu.com/role", "template"),
        ("topology.kubernetes.io/zone", "template"),
        ("failure-domain.beta.kubernetes.io/zone", "template"),
    ] {
        template.labels.insert(key.to_owned(), value.to_owned());
    }
    let node = to_node(&full_machine(), "10.0.3.7", &template);
    assert_eq!(node.labels["sabakan.cke.cybozu.com/product"], "template");
    assert_eq!(node.labels["cke.cybozu.com/rack"], "3");
    assert_eq!(node.labels["cke.cybozu.com/role"], "compute");
    assert_eq!(node.labels["topology.kubernetes.io/zone"], "rack3");
    assert_eq!(node.labels["failure-domain.beta.kubernetes.io/zone"], "rack3");
}

#[test]
fn a_machine_s_annotations_win_over_the_template_s() {
    let mut template = template_node(false, "", None);
    template.annotations.insert(ANNOTATION_SERIAL.to_owned(), "template".to_owned());
    assert_eq!(to_node(&full_machine(), "10.0.3.7", &template).annotations[ANNOTATION_SERIAL], "s-37");
}

#[test]
fn a_machine_without_a_role_gets_no_label_that_kubernetes_would_refuse() {
    let node = to_node(&machine("10.0.0.1", 0, ""), "10.0.0.1", &template_node(false, "", None));
    assert!(!node.labels.contains_key("node-role.kubernetes.io/"));
    assert_eq!(node.labels["cke.cybozu.com/role"], "");
}

#[test]
fn the_state_taint_follows_the_state_and_comes_after_the_template_s() {
    let mut template = template_node(false, "", None);
    let taint = |key: &str, value: &str, effect: &str| Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
        ..Taint::default()
    };
    let own = taint("own", "", "NoSchedule");
    template.taints = vec![taint(TAINT_STATE, "retired", "NoExecute"), own.clone()];
    for &state in MachineState::ALL {
        let node = to_node(&machine("10.0.0.1", 0, "a").state(state), "10.0.0.1", &template);
        let expected = match state {
            MachineState::Retiring => vec![own.clone(), taint(TAINT_STATE, "retiring", "NoExecute")],
            MachineState::Retired => vec![own.clone(), taint(TAINT_STATE, "retired", "NoExecute")],
            _ => vec![own.clone()],
        };
        assert_eq!(node.taints, expected, "{state:?}");
        assert!(has_state_taint(&node, state));
    }
}

#[test]
fn a_state_taint_of_another_value_or_effect_or_twice_is_wrong() {
    let taint = |value: &str, effect: &str| Taint {
        key: TAINT_STATE.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
        ..Taint::default()
    };
    let has = |taints: &[Taint], state| {
        has_state_taint(&Node { taints: taints.to_vec(), ..Node::default() }, state)
    };
    let right = taint("retiring", "NoExecute");
    assert!(has(std::slice::from_ref(&right), MachineState::Retiring));
    assert!(!has(std::slice::from_ref(&right), MachineState::Retired));
    assert!(!has(std::slice::from_ref(&right), MachineState::Healthy));
    assert!(!has(&[taint("retiring", "NoSchedule")], MachineState::Retiring));
    assert!(!has(&[right.clone(), right], MachineState::Retiring));
    assert!(!has(&[], MachineState::Retired));
}

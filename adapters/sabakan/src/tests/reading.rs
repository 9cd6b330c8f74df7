//! Tests of the decoding of answers and files with machines.

use std::fmt::Write as _;

use madako_domain::machine::{Machine, MachineState};
use madako_protocol::ports::RegistryError;
use serde_json::{Value, json};

use crate::answer::{ZERO_DATE, read_answer};
use crate::{leave_out_without_address, parse_machines};

fn machine() -> Value {
    json!({
        "spec": {
            "serial": "1234abcd",
            "labels": [{"name": "product", "value": "R630"}],
            "rack": 1,
            "indexInRack": 4,
            "role": "compute",
            "ipv4": ["10.69.0.69", "10.69.0.133"],
            "registerDate": "2018-11-21T01:02:03.456789Z",
            "retireDate": "2023-11-21T10:02:03+09:00",
            "bmc": {"bmcType": "iDRAC-9"},
        },
        "status": {"state": "HEALTHY", "duration": 362.1},
    })
}

fn with(pointer: &str, value: Value) -> Value {
    let mut machine = machine();
    *machine.pointer_mut(pointer).unwrap() = value;
    machine
}

fn without(object: &str, member: &str) -> Value {
    let mut machine = machine();
    machine.pointer_mut(object).unwrap().as_object_mut().unwrap().remove(member);
    machine
}

fn answer(machines: &[Value]) -> Vec<u8> {
    json!({"data": {"searchMachines": machines}}).to_string().into_bytes()
}

fn read_one(machine: Value) -> Result<Machine, RegistryError> {
    read_answer(&answer(&[machine])).map(|mut machines| machines.remove(0))
}

#[test]
fn an_answer_and_a_file_give_the_same_machine() {
    let from_answer = read_one(machine()).unwrap();
    assert_eq!(serde_json::to_value(&from_answer).unwrap(), machine(), "nothing is lost, offsets included");
    let from_array = parse_machines(json!([machine()]).to_string().as_bytes()).unwrap();
    let from_response = parse_machines(&answer(&[machine()])).unwrap();
    assert_eq!(from_array, from_response);
    assert_eq!(from_response, [from_answer]);
}

#[test]
fn nulls_of_go_are_read_as_empty() {
    let labels = read_one(with("/spec/labels", Value::Null)).unwrap();
    assert_eq!(labels.spec.labels, []);
    let addresses = read_one(with("/spec/ipv4", Value::Null)).unwrap();
    assert_eq!(addresses.spec.ipv4, Vec::<String>::new());
    // A date that was never set; CKE reads it as Go's zero time.
    assert_eq!(read_one(with("/spec/retireDate", Value::Null)).unwrap().spec.retire_date, ZERO_DATE);
    assert_eq!(read_answer(br#"{"data":{"searchMachines":null}}"#), Ok(vec![]));
    assert_eq!(read_answer(br#"{"errors":null,"data":{"searchMachines":[]}}"#), Ok(vec![]));
    assert_eq!(read_answer(br#"{"errors":[],"data":{"searchMachines":[]}}"#), Ok(vec![]));
    assert_eq!(parse_machines(br#"{"data":{"searchMachines":null}}"#), Ok(vec![]));
}

#[test]
fn durations_are_read_in_every_form_that_go_writes() {
    for (written, expected) in [("5", 5.0), ("1.2345675e+06", 1_234_567.5), ("-0.001313984", -0.001_313_984)]
    {
        let text = String::from_utf8(answer(&[machine()])).unwrap().replace("362.1", written);
        let read = read_answer(text.as_bytes()).unwrap()[0].status.duration;
        assert!((read - expected).abs() < 1e-9, "{written}");
    }
}

#[test]
fn each_machine_state_of_sabakan_is_read() {
    for &state in MachineState::ALL {
        assert_eq!(read_one(with("/status/state", json!(state.name()))).unwrap().status.state, state);
    }
}

#[test]
fn malformed_answer_names_the_place_and_the_expectation() {
    let mut text = String::new();
    for (name, body) in [
        ("no JSON", b"<html>".to_vec()),
        ("half", answer(&[machine()])[..80].to_vec()),
        ("nothing", Vec::new()),
        ("no object", b"[]".to_vec()),
        ("no data", b"{}".to_vec()),
        ("null data", br#"{"data":null}"#.to_vec()),
        ("another field", br#"{"data":{"machines":[]}}"#.to_vec()),
        ("no list", br#"{"data":{"searchMachines":7}}"#.to_vec()),
        ("null machine", answer(&[Value::Null])),
        ("no spec", answer(&[machine(), without("", "spec")])),
        ("no state", answer(&[without("/status", "state")])),
        ("no serial", answer(&[without("/spec", "serial")])),
        ("rack as text", answer(&[machine(), with("/spec/rack", json!("3"))])),
        ("rack out of range", answer(&[with("/spec/rack", json!(1e30))])),
        ("address as number", answer(&[with("/spec/ipv4", json!(["10.0.0.1", 5]))])),
        ("no date", answer(&[with("/spec/retireDate", json!("2023-11-21"))])),
        ("another state", answer(&[with("/status/state", json!("EXPLODED"))])),
        ("text after the end", [answer(&[machine()]), b" {}".to_vec()].concat()),
    ] {
        match read_answer(&body) {
            Err(RegistryError::Malformed { why }) => writeln!(text, "{name}: {why}").unwrap(),
            other => panic!("{name}: {other:?}"),
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_graphql_answer_with_errors_is_an_error() {
    let body =
        br#"{"errors":[{"message":"etcd: timeout","path":["searchMachines"]}],"data":{"searchMachines":[]}}"#;
    assert_eq!(read_answer(body), Err(RegistryError::GraphQl { messages: vec!["etcd: timeout".to_owned()] }));
}

#[test]
fn error_texts_are_short() {
    let errors: Vec<_> = (0..50).map(|_| json!({"message": "long\n".repeat(1000)})).collect();
    let Err(RegistryError::GraphQl { messages }) =
        read_answer(json!({"errors": errors}).to_string().as_bytes())
    else {
        panic!("the answer is not an error")
    };
    assert_eq!(messages.len(), 6);
    assert_eq!(messages[5], "and 45 more");
    assert!(messages.iter().all(|message| message.chars().count() <= 301 && !message.contains('\n')));
}

#[test]
fn machines_without_an_ipv4_address_are_left_out_and_named() {
    let addresses = [
        json!(["10.0.0.1"]),
        json!([]),
        json!(["<nil>"]),
        json!(["fd00::1", "10.0.0.2"]),
        json!(["10.0.0.1"]),
    ];
    let machines: Vec<_> = (0..)
        .zip(addresses)
        .map(|(number, ipv4)| {
            let mut machine = with("/spec/ipv4", ipv4);
            machine["spec"]["serial"] = json!(format!("m{number}"));
            machine
        })
        .collect();
    let fetched = leave_out_without_address(read_answer(&answer(&machines)).unwrap());
    let kept: Vec<_> = fetched.machines.iter().map(|machine| machine.spec.serial.as_str()).collect();
    assert_eq!(kept, ["m0", "m4"], "in the registry's order, the same address twice");
    assert_eq!(fetched.left_out_serials(), ["m1", "m2", "m3"]);
}

#[test]
fn a_file_with_mistakes_names_each() {
    let mut message = String::new();
    let rest_form = json!({
        "spec": {"serial": "r", "labels": {"a": "b"}, "rack": 1, "index-in-rack": 4, "role": "x", "ipv4": [],
            "register-date": "2018-11-21T01:02:03Z", "retire-date": "2018-11-21T01:02:03Z", "bmc": {"type": "x"}},
        "status": {"state": "healthy", "duration": 1},
    });
    let mixed =
        [machine(), with("/spec/rack", json!("3")), with("/status/state", json!("healthy")), json!(5)];
    for (name, text) in [
        ("no JSON", "- spec".to_owned()),
        ("number", "5".to_owned()),
        ("another object", json!({"machines": [], "kind": "List"}).to_string()),
        ("one machine", machine().to_string()),
        ("failed response", json!({"errors": [{"message": "not found"}], "data": null}).to_string()),
        ("list is text", json!({"data": {"searchMachines": "x"}}).to_string()),
        ("three mistakes", json!(mixed).to_string()),
        (
            "mistake in a response",
            json!({"data": {"searchMachines": [with("/spec/ipv4", json!([7]))]}}).to_string(),
        ),
        ("of the REST API", json!([rest_form]).to_string()),
    ] {
        let refused = parse_machines(text.as_bytes()).expect_err(name);
        writeln!(message, "{name}: {refused}").unwrap();
    }
    insta::assert_snapshot!(message);
}

#[test]
fn a_file_with_many_mistakes_names_the_first() {
    let many = vec![json!(5); 1000];
    let refused = parse_machines(json!(many).to_string().as_bytes()).expect_err("all are wrong");
    assert_eq!(refused.problems.len(), 20);
}

#[test]
fn machine_file_may_lack_unneeded_fields_and_have_unknown_fields() {
    let small = json!([{
        "spec": {"serial": "s", "rack": 0, "role": "compute", "ipv4": ["10.0.0.1"],
            "registerDate": "2018-11-21T01:02:03Z", "retireDate": "2023-11-21T01:02:03Z", "ipv6": null},
        "status": {"state": "HEALTHY", "timestamp": "2018-11-21T01:02:03Z"},
        "info": {},
    }]);
    let machines = parse_machines(small.to_string().as_bytes()).unwrap();
    assert_eq!(machines[0].spec.serial, "s");
}

//! The registry over HTTP. The expected answers are those of a sabakan 3.1.9 to the same requests.

use std::time::Duration;

use bytes::Bytes;
use madako_domain::machine::MachineState;
use madako_protocol::ports::{HttpError, HttpMethod, HttpRequest, HttpResponse, HttpTransport};
use serde_json::{Value, json};

use super::quiet;
use crate::{Fault, InMemoryHttp};

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

async fn send(
    http: &InMemoryHttp,
    method: HttpMethod,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> HttpResponse {
    let request = HttpRequest {
        method,
        url: format!("http://registry{target}"),
        headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        max_response_bytes: 1 << 20,
        deadline: Duration::from_secs(5),
    };
    http.send(request).await.unwrap()
}

async fn ask(http: &InMemoryHttp, query: &str, variables: Value) -> (u16, Value) {
    let body = json!({"query": query, "variables": variables}).to_string();
    let response = send(http, HttpMethod::Post, "/graphql", JSON, &body).await;
    (response.status, serde_json::from_slice(&response.body).unwrap())
}

fn text(response: &HttpResponse) -> &str {
    std::str::from_utf8(&response.body).unwrap()
}

#[tokio::test]
async fn a_whole_machine_has_sabakans_shape() {
    let (registry, clock) = quiet();
    let machine =
        registry.list_machines().into_iter().find(|m| m.spec.rack == 1 && m.spec.index_in_rack == 4).unwrap();
    let serial = machine.spec.serial.as_str();
    registry.set_state(serial, MachineState::Updating).unwrap();
    clock.pass(90);
    let query = "query one($s: ID!) { machine(serial: $s) { spec { serial labels {name value} rack indexInRack role \
                 ipv4 registerDate retireDate bmc {bmcType ipv4} } status {state timestamp duration} info { network \
                 { ipv4 {address netmask maskbits gateway} } bmc { ipv4 {address netmask maskbits gateway} } } } }";
    let (status, answer) = ask(&registry.open_in_memory_transport(), query, json!({"s": serial})).await;
    let spec = &machine.spec;
    let date =
        |date: time::OffsetDateTime| date.format(&time::format_description::well_known::Rfc3339).unwrap();
    let nic = |address: &str, gateway: &str| json!({"address": address, "netmask": "255.255.255.192", "maskbits": 26, "gateway": gateway});
    assert_eq!(spec.ipv4[0], "10.0.0.196");
    let expected = json!({"data": {"machine": {
        "spec": {
            "serial": serial,
            "labels": [{"name": "datacenter", "value": "sim"}, {"name": "product", "value": spec.labels[1].value}],
            "rack": 1,
            "indexInRack": 4,
            "role": "compute",
            "ipv4": ["10.0.0.196", "10.0.1.4", "10.0.1.68"],
            "registerDate": date(spec.register_date),
            "retireDate": date(spec.retire_date),
            "bmc": {"bmcType": spec.bmc.bmc_type, "ipv4": "172.16.0.36"},
        },
        "status": {"state": "UPDATING", "timestamp": "2026-01-01T00:00:00Z", "duration": 90.0},
        "info": {
            "network": {"ipv4": [
                nic("10.0.0.196", "10.0.0.193"), nic("10.0.1.4", "10.0.1.1"), nic("10.0.1.68", "10.0.1.65"),
            ]},
            "bmc": {"ipv4": {
                "address": "172.16.0.36", "netmask": "255.255.240.0", "maskbits": 20, "gateway": "172.16.0.1",
            }},
        },
    }}});
    assert_eq!((status, answer), (200, expected));
}

#[tokio::test]
async fn a_machine_without_labels_has_null() {
    let (registry, _) = quiet();
    let serial = registry.list_machines()[0].spec.serial.clone();
    registry.set_labels(&serial, Vec::new()).unwrap();
    let query = "query($s: ID!) { machine(serial: $s) { spec { labels { name } } } }";
    let (_, answer) = ask(&registry.open_in_memory_transport(), query, json!({"s": serial})).await;
    assert_eq!(answer, json!({"data": {"machine": {"spec": {"labels": null}}}}));
}

#[tokio::test]
async fn an_explicit_null_replaces_the_querys_default() {
    let (registry, _) = quiet();
    let http = registry.open_in_memory_transport();
    let retired =
        registry.list_machines().into_iter().find(|m| m.spec.role == "compute").unwrap().spec.serial;
    for state in [MachineState::Retiring, MachineState::Retired] {
        registry.set_state(&retired, state).unwrap();
    }
    let query = "query s($having: MachineParams = null, $notHaving: MachineParams = {roles: [\"boot\"] states: \
                 [RETIRED]}) { searchMachines(having: $having, notHaving: $notHaving) { spec { serial } } }";
    for (variables, expected) in [
        (Value::Null, 5),
        (json!({}), 5),
        (json!({"having": null}), 5),
        (json!({"having": null, "notHaving": null}), 8),
        (json!({"notHaving": {"labels": null, "racks": null, "roles": ["boot"], "states": null}}), 6),
        (json!({"having": {"racks": [0]}, "notHaving": {"roles": ["boot"]}}), 3),
        (json!({"having": {"racks": [7]}}), 0),
    ] {
        let (status, answer) = ask(&http, query, variables.clone()).await;
        let found = answer["data"]["searchMachines"].as_array().map(Vec::len);
        assert_eq!((status, found), (200, Some(expected)), "{variables}");
    }
}

#[tokio::test]
async fn errors_have_the_members_and_texts_of_sabakan() {
    let (registry, _) = quiet();
    let http = registry.open_in_memory_transport();
    let serial = registry.list_machines()[0].spec.serial.clone();
    let post = async |query: &str| {
        let body = json!({"query": query}).to_string();
        let response = send(&http, HttpMethod::Post, "/graphql", JSON, &body).await;
        (response.status, text(&response).to_owned())
    };
    assert_eq!(
        post(r#"{ machine(serial:"zz") { spec { serial } } }"#).await,
        (200, r#"{"errors":[{"message":"not found","path":["machine"],"locations":[{"line":1,"column":3}]}],"data":null}"#.to_owned())
    );
    assert_eq!(
        post(r#"mutation { setMachineState(serial:"zz", state: HEALTHY) { state } }"#).await,
        (200, r#"{"errors":[{"message":"not found","path":["setMachineState"],"locations":[{"line":1,"column":12}],"extensions":{"serial":"zz","type":"MACHINE_NOT_FOUND"}}],"data":null}"#.to_owned())
    );
    assert_eq!(
        post(&format!(r#"mutation {{ setMachineState(serial:"{serial}", state: RETIRED) {{ state }} }}"#))
            .await,
        (
            200,
            format!(
                r#"{{"errors":[{{"message":"transition from [ healthy ] to [ retired ] is forbidden","path":["setMachineState"],"locations":[{{"line":1,"column":12}}],"extensions":{{"serial":"{serial}","type":"INVALID_STATE_TRANSITION"}}}}],"data":null}}"#
            )
        )
    );
    assert_eq!(
        post(&format!(r#"mutation {{ setMachineState(serial:"{serial}", state: UPDATING) {{ state }} }}"#))
            .await,
        (200, r#"{"data":{"setMachineState":{"state":"UPDATING"}}}"#.to_owned())
    );
    let (status, answer) = post("").await;
    assert_eq!(
        (status, answer.as_str()),
        (
            422,
            r#"{"errors":[{"message":"no operation provided","extensions":{"code":"GRAPHQL_VALIDATION_FAILED"}}],"data":null}"#
        )
    );
    // Another parser words these messages, so the test only compares the parts that a client can rely on.
    for (query, code) in [
        ("{ machine( ", "GRAPHQL_PARSE_FAILED"),
        (r#"{ machine(serial:"zz") { nope } }"#, "GRAPHQL_VALIDATION_FAILED"),
        ("{ searchMachines }", "GRAPHQL_VALIDATION_FAILED"),
        (
            r#"mutation { setMachineState(serial:"zz", state: RETIRE) { state } }"#,
            "GRAPHQL_VALIDATION_FAILED",
        ),
        ("{ searchMachines(having: {foo: 1}) { spec { serial } } }", "GRAPHQL_VALIDATION_FAILED"),
        ("subscription { x }", "GRAPHQL_VALIDATION_FAILED"),
    ] {
        let (status, answer) = post(query).await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(status, 422, "{query}");
        assert_eq!(answer["errors"][0]["extensions"]["code"], code, "{query}");
        assert_eq!(answer["data"], Value::Null, "{query}");
    }
}

#[tokio::test]
async fn variables_are_checked_and_coerced_as_in_sabakan() {
    let (registry, _) = quiet();
    let http = registry.open_in_memory_transport();
    let query = "query s($h: MachineParams) { searchMachines(having: $h) { spec { serial } } }";
    for (given, message, path) in [
        (json!({"racks": [null]}), "cannot be null", json!(["variable", "h", "racks", 0])),
        (json!({"racks": [1.5]}), "cannot use string as Int", json!(["variable", "h", "racks", 0])),
        (json!({"racks": true}), "cannot use bool as Int", json!(["variable", "h", "racks", 0])),
        (
            json!({"labels": [{"name": "x"}]}),
            "must be defined",
            json!(["variable", "h", "labels", 0, "value"]),
        ),
        (json!({"labels": [5]}), "must be a LabelInput, not a string", json!(["variable", "h", "labels", 0])),
        (
            json!({"states": ["BAD"]}),
            "BAD is not a valid MachineState",
            json!(["variable", "h", "states", 0]),
        ),
        (json!({"foo": 1}), "unknown field", json!(["variable", "h", "foo"])),
        (json!([]), "must be a MachineParams, not a slice", json!(["variable", "h"])),
    ] {
        let (status, answer) = ask(&http, query, json!({"h": given})).await;
        let expected =
            json!([{"message": message, "path": path, "extensions": {"code": "GRAPHQL_VALIDATION_FAILED"}}]);
        assert_eq!((status, &answer["errors"]), (422, &expected), "{given}");
    }
    for (given, expected) in [
        (json!({"racks": 1}), 4),
        (json!({"racks": "1"}), 4),
        (json!({"states": "Healthy", "roles": "boot"}), 2),
        (json!({"roles": [5]}), 0),
    ] {
        let (_, answer) = ask(&http, query, json!({"h": given})).await;
        assert_eq!(answer["data"]["searchMachines"].as_array().map(Vec::len), Some(expected), "{given}");
    }
    let strict = query.replace("MachineParams", "MachineParams!");
    let (status, answer) = ask(&http, &strict, json!({})).await;
    assert_eq!((status, &answer["errors"][0]["message"]), (422, &json!("must be defined")));
}

#[tokio::test]
async fn http_answers_equal_those_of_sabakan() {
    let (registry, _) = quiet();
    let http = registry.open_in_memory_transport();
    let serial = registry.list_machines()[0].spec.serial.clone();
    let get = async |target: &str| send(&http, HttpMethod::Get, target, &[], "").await;
    let found =
        get(&format!("/graphql?query=%7Bmachine(serial:%22{serial}%22)%7Bspec%7Bserial%7D%7D%7D")).await;
    assert_eq!(
        (found.status, text(&found)),
        (200, format!(r#"{{"data":{{"machine":{{"spec":{{"serial":"{serial}"}}}}}}}}"#).as_str())
    );
    let mutating =
        get("/graphql?query=mutation%7BsetMachineState(serial:%22x%22,state:HEALTHY)%7Bstate%7D%7D").await;
    assert_eq!(
        (mutating.status, text(&mutating)),
        (406, r#"{"errors":[{"message":"GET requests only allow query operations"}],"data":null}"#)
    );
    assert_eq!(get("/graphql").await.status, 422);
    let other = send(&http, HttpMethod::Post, "/graphql", &[("content-type", "text/plain")], "{}").await;
    assert_eq!(
        (other.status, text(&other)),
        (400, r#"{"errors":[{"message":"transport not supported"}],"data":null}"#)
    );
    for body in ["{\"quer", "[]", r#"{"query":"{x}","variables":[]}"#] {
        let refused = send(&http, HttpMethod::Post, "/graphql", JSON, body).await;
        assert_eq!(refused.status, 400, "{body}");
        assert!(text(&refused).contains("json request body could not be decoded"), "{body}");
    }
    let health = get("/health").await;
    assert_eq!((health.status, text(&health)), (200, "{\"health\":\"healthy\"}\n"));
    assert_eq!(get("/nothing").await.status, 404);
    let content_type = |response: &HttpResponse| {
        response.headers.iter().find(|(name, _)| name == "content-type").map(|(_, value)| value.clone())
    };
    assert_eq!(content_type(&found).as_deref(), Some("application/json"));
}

#[tokio::test]
async fn a_link_of_its_own_can_be_cut_and_mended() {
    let (registry, _) = quiet();
    let (cut, whole) = (registry.open_in_memory_transport(), registry.open_in_memory_transport());
    cut.link().set(Fault::RefuseConnections);
    let request = HttpRequest {
        method: HttpMethod::Get,
        url: "http://user:secret@registry/health".to_owned(),
        headers: Vec::new(),
        body: Bytes::new(),
        max_response_bytes: 1000,
        deadline: Duration::from_secs(5),
    };
    let refused = cut.send(request.clone()).await.expect_err("the link is cut");
    assert!(matches!(&refused, HttpError::Connect { .. }), "{refused}");
    assert!(!refused.to_string().contains("secret"), "{refused}");
    assert_eq!(whole.send(request.clone()).await.unwrap().status, 200, "others are not concerned");
    cut.link().clear_all();
    assert_eq!(cut.send(request).await.unwrap().status, 200);
}

#[tokio::test(start_paused = true)]
async fn hanging_request_is_answered_when_the_fault_is_cleared() {
    let (registry, _) = quiet();
    let http = registry.open_in_memory_transport();
    let faults = registry.faults().clone();
    faults.set(Fault::Hang);
    let waiting = ask(&http, "{ searchMachines { spec { serial } } }", Value::Null);
    let mending = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        faults.clear(&Fault::Hang);
    };
    let ((status, _), ()) = tokio::join!(waiting, mending);
    assert_eq!(status, 200);
}

#[test]
fn a_fault_replaces_a_fault_of_its_kind() {
    let faults = crate::FaultSwitch::new();
    faults.set(Fault::ShrinkList(10));
    faults.set(Fault::Status(500));
    faults.set(Fault::ShrinkList(20));
    assert_eq!(faults.present_faults(), [Fault::Status(500), Fault::ShrinkList(20)]);
    faults.clear(&Fault::ShrinkList(0));
    assert_eq!(faults.present_faults(), [Fault::Status(500)]);
}

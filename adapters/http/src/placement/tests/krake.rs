//! Answers of Krake's own server (commit 92f86489, on etcd 3.4) to requests, one per line, in order. Those of this API
//! must be the same, byte for byte for resources. `edit` changes fields of a GET answer before it is sent.
//!
//! Not compared: the details of invalid bodies (422), which name every field here, and members of problems that are
//! `null` there.

use serde::Deserialize;

use super::*;

const EXCHANGES: &str = include_str!("krake.jsonl");
/// A time that a stored resource may have.
const TIME: &str = "2026-01-01T00:00:00.000000+00:00";
/// Prefix of the times of this test's clock.
const CLOCK: &str = "2027-01-15T";

#[derive(Deserialize)]
struct Exchange {
    method: String,
    path: String,
    body: Option<Value>,
    edit: Option<std::collections::BTreeMap<String, Value>>,
    status: u16,
    answer: Option<String>,
}

/// The text without parts that differ between runs.
fn steady(text: &str) -> String {
    let mut steady = String::new();
    let mut rest = text;
    while let Some(place) = rest.find(CLOCK) {
        steady += &rest[..place];
        steady += "<now>";
        rest = &rest[place + TIME.len()..];
    }
    steady += rest;
    let uid = "\"uid\": \"";
    match steady.find(uid) {
        Some(place) if !steady.contains("<uid>") => {
            let place = place + uid.len();
            steady.replace_range(place..place + 36, "<uid>");
            steady
        }
        _ => steady,
    }
}

/// The compared part of a problem.
fn problem(text: &str) -> Value {
    let mut problem: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    if let Some(members) = problem.as_object_mut() {
        members.retain(|name, value| name != "errors" && !value.is_null());
    }
    problem
}

#[tokio::test]
async fn answers_equal_those_of_krake() {
    let world = world();
    for (line, text) in EXCHANGES.lines().enumerate() {
        let exchange: Exchange = serde_json::from_str(text).unwrap();
        let Exchange { method, path, body, edit, status, answer } = exchange;
        let body = match (body, edit) {
            (Some(Value::String(text)), _) => text,
            (Some(body), _) => body.to_string(),
            (None, Some(edit)) => {
                let mut body = world.ask("GET", path.trim_end_matches("/status")).await.with(200).json();
                for (field, value) in edit {
                    *body.pointer_mut(&field).unwrap_or_else(|| panic!("no {field}")) = value;
                }
                body.to_string()
            }
            (None, None) => String::new(),
        };
        let ours = world.send(request(&method, &path, body)).await;
        let shown = String::from_utf8_lossy(&ours.body);
        assert_eq!(ours.status.as_u16(), status, "{}: {method} {path}: {shown}", line + 1);
        let Some(answer) = answer else { continue };
        if status < 300 {
            assert_eq!(steady(&shown), answer, "{}: {method} {path}", line + 1);
        } else {
            assert_eq!(problem(&shown), problem(&answer), "{}: {method} {path}", line + 1);
        }
    }
}

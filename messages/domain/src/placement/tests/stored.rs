//! Tests that stored documents of any origin are read; only a value that is impossible for its field is a fault.

use serde_json::{Value, json};

use super::krake;
use crate::placement::kind::Kind;
use crate::placement::kubernetes::{Application, Cluster};
use crate::placement::object_value::{Object, Resource};

fn stored(kind: Kind) -> String {
    let mut examples = krake::examples().into_iter();
    let example =
        examples.find(|example| example.kind == kind && example.minimal).expect("each kind has one");
    example.stored.to_owned()
}

fn read(kind: Kind, text: &str) -> Object {
    Object::from_stored(kind, text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn stored_values_that_no_request_may_set_are_read() {
    let mut document: Value = serde_json::from_str(&stored(Kind::Cluster)).unwrap();
    document["metadata"]["name"] = json!("a name / of old");
    document["metadata"]["labels"] = json!({"": "not a value", "b c": ""});
    document["spec"]["kubeconfig"] = json!({"contexts": 1});
    document["spec"]["metrics"] = json!([{"name": "heat", "weight": -1}]);
    document["spec"]["constraints"]["cloud"] =
        json!({"labels": ["location iss DE"], "metrics": ["heat > nan"]});
    let object = read(Kind::Cluster, &document.to_string());
    let constraints = &Cluster::from_object(&object).unwrap().spec.constraints.cloud;
    let metric = &constraints.metrics.as_ref().unwrap()[0];
    assert!(!metric.evaluate(Some(5.0)).is_match());
    assert_eq!(metric.rule().unwrap_err().column, 8);
    let text = object.to_json();
    for kept in [
        r#"["location iss DE"]"#,
        r#"["heat > nan"]"#,
        r#""weight": -1.0"#,
        r#"{"contexts":1}"#,
        r#""b c": """#,
    ] {
        assert!(text.contains(kept), "{text}");
    }
}

#[test]
fn unrepresentable_numbers_in_foreign_fields_become_null() {
    let mut document: Value = serde_json::from_str(&stored(Kind::Application)).unwrap();
    document["spec"]["manifest"] = json!([{"a": 4_711, "b": "NaN 1e999"}]);
    document["unknown"] = json!({"c": [4_711]});
    for none in ["NaN", "-Infinity", "1e400"] {
        let text = read(Kind::Application, &document.to_string().replace("4711", none)).to_json();
        let kept: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(kept["spec"]["manifest"], json!([{"a": null, "b": "NaN 1e999"}]));
        assert_eq!(kept["unknown"], json!({"c": [null]}));
    }
}

#[test]
fn null_is_the_default_where_it_is_no_value() {
    let mut document: Value = serde_json::from_str(&stored(Kind::Application)).unwrap();
    let whole = read(Kind::Application, &document.to_string());
    document["metadata"]["labels"].take();
    document["metadata"]["owners"].take();
    document["spec"]["backoff_limit"].take();
    document["spec"]["constraints"].take();
    document["status"].take();
    assert_eq!(read(Kind::Application, &document.to_string()), whole);
}

#[test]
fn times_are_returned_as_they_were_stored() {
    let text = stored(Kind::Application);
    let time = "2026-01-31T12:00:00.123456+00:00";
    for other in ["2026-01-31T12:00:00", "2026-01-31T13:00:00.5+01:00", "2026-01-31 12:00Z"] {
        let text = text.replace(time, other);
        let object = read(Kind::Application, &text);
        assert_eq!(object.to_json(), text);
        assert_eq!(object.metadata().created.instant().hour(), 12);
    }
}

#[test]
fn parts_of_another_shape_keep_their_numbers_and_their_order() {
    let mut document: Value = serde_json::from_str(&stored(Kind::Application)).unwrap();
    document["spec"]["manifest"][0]["data"] = json!("here");
    let odd = r#"{"z": 100000000000000000000000001, "a": 1.0, "m": 1e2, "e": "\u00fc", "n": null}"#;
    let text = document.to_string().replace("\"here\"", odd);
    let object = read(Kind::Application, &text);
    assert!(object.to_json().contains(odd), "{}", object.to_json());
    // Equality compares JSON values, not texts.
    let same = odd.replace("1e2", "100.0").replace("\\u00fc", "ü");
    assert_eq!(read(Kind::Application, &document.to_string().replace("\"here\"", &same)), object);
    let other = odd.replace("001", "002");
    assert_ne!(read(Kind::Application, &document.to_string().replace("\"here\"", &other)), object);
}

#[test]
fn duplicate_field_takes_its_last_value_and_line_ends_are_dropped() {
    let text = stored(Kind::Cluster).replacen("{\"api\"", "{\r\n\"metadata\": 7,\n\t\"api\"", 1);
    let object = read(Kind::Cluster, &text);
    assert_eq!(object.to_json(), stored(Kind::Cluster));
}

#[test]
fn unreadable_stored_fields_are_named_and_secrets_are_hidden() {
    let error = |kind, text: &str| Object::from_stored(kind, text).unwrap_err();
    for text in ["", "it", "[]", "{\"a\"", &"[".repeat(100_000), &"{\"a\":".repeat(100_000)] {
        assert!(!error(Kind::Role, text).problems.is_empty());
    }
    let fields = |error: madako_json::input::InputError| -> Vec<String> {
        error.problems.into_iter().map(|problem| problem.field).collect()
    };
    let missing = fields(error(Kind::Role, "{}"));
    assert_eq!(missing, ["metadata", "rules"]);
    let document = json!({"metadata": {"name": "it", "created": "yesterday"}, "rules": []});
    let named = fields(error(Kind::Role, &document.to_string()));
    assert_eq!(named, ["metadata.uid", "metadata.created", "metadata.modified"]);
    let text = stored(Kind::GlobalMetric).replace("\"min\": 0.1", "\"min\": NaN");
    assert_eq!(fields(error(Kind::GlobalMetric, &text)), ["spec.min"]);
    let text = stored(Kind::InfrastructureProvider).replace("\"of-the-user\"", "[\"of-the-user\"]");
    let error = error(Kind::InfrastructureProvider, &text);
    assert_eq!((&*error.problems[0].field, &*error.problems[0].got), ("spec.im.token", "a list"));
}

#[test]
fn a_document_of_another_kind_is_refused() {
    let object = read(Kind::Application, &stored(Kind::Application));
    assert!(Application::from_object(&object).is_some());
    assert!(Cluster::from_object(&object).is_none());
    let error = Object::from_stored(Kind::Cluster, &stored(Kind::Application)).unwrap_err();
    assert!(error.problems.iter().any(|problem| problem.field == "kind"));
    assert_eq!(object.key().etcd_key(), "/kubernetes/applications/testing/it");
}

//! Property tests of documents of every kind of resource: reading, writing and updating.

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};
use time::macros::datetime;

use super::documents::{any_document, matching};
use super::site::Site;
use crate::placement::constraint::names::{is_label_key, is_label_value, is_resource_name};
use crate::placement::constraint::{LabelConstraint, MetricConstraint};
use crate::placement::kind::Kind;
use crate::placement::object_value::Object;
use madako_json::input::InputError;
use madako_json::krake::document::RequestError;
use madako_json::krake::schema::{Rule, Shape};
use madako_json::krake::timestamp::Timestamp;

/// The issue requires at least a thousand.
const CASES: u32 = 1_000;

fn stored(kind: Kind, document: &Value) -> Result<Object, InputError> {
    Object::from_stored(kind, &document.to_string())
}

fn requested(kind: Kind, document: &Value) -> Result<Object, InputError> {
    match Object::from_request(kind, &document.to_string()) {
        Ok(requested) => Ok(requested.value),
        Err(RequestError::Invalid(error)) => Err(error),
        Err(RequestError::NotJson(error)) => panic!("{error}: {document}"),
    }
}

/// The paths that an error names; empty without an error.
fn fields(result: Result<Object, InputError>) -> Vec<String> {
    let problems = result.err().map(|error| error.problems).unwrap_or_default();
    problems.into_iter().map(|problem| problem.field).collect()
}

/// True if the written value contains all of the given value unchanged.
fn kept(given: &Value, written: &Value) -> bool {
    match (given, written) {
        (Value::Object(given), Value::Object(written)) => {
            given.iter().all(|(name, value)| written.get(name).is_some_and(|written| kept(value, written)))
        }
        (Value::Array(given), Value::Array(written)) => {
            given.len() == written.len()
                && given.iter().zip(written).all(|(given, written)| kept(given, written))
        }
        // `serde_json` may miss a float by one bit when the notation of its digits changes. Our reader does not: the
        // second read gives an equal value.
        (Value::Number(given), Value::Number(written)) => {
            let close = |given: f64, written: f64| (given - written).abs() <= given.abs() * 1e-15;
            given == written || close(given.as_f64().unwrap(), written.as_f64().unwrap())
        }
        _ => given == written,
    }
}

/// A value that is invalid for the shape.
fn wrong_value(shape: &Shape) -> Value {
    match shape {
        Shape::Nullable(some) => wrong_value(some),
        Shape::Bool | Shape::Time | Shape::Choice(_) => json!("neither"),
        Shape::Integer => json!(1.5),
        Shape::Number => json!("nan"),
        Shape::List(_) => json!({}),
        Shape::Text
        | Shape::Secret
        | Shape::LabelConstraint
        | Shape::MetricConstraint
        | Shape::TextOrFreeForm => json!(7),
        Shape::Map(_) | Shape::Object(_) | Shape::Tagged(_) | Shape::FreeForm | Shape::SecretFreeForm => {
            json!([])
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn stored_resource_is_written_back_completely_and_stably((kind, document) in any_document()) {
        let object = stored(kind, &document).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let text = object.to_json();
        prop_assert!(!text.contains(['\n', '\r']));
        let written = serde_json::from_str(&text).unwrap();
        prop_assert!(kept(&document, &written), "{document}\n{written}");
        let again = Object::from_stored(kind, &text).unwrap();
        prop_assert_eq!(again.to_json(), text);
        prop_assert_eq!(again, object);
    }

    #[test]
    fn requested_resource_survives_storage_and_another_request((kind, document) in any_document()) {
        let mut object = requested(kind, &document).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let now = Timestamp::new(datetime!(2026-01-31 12:00 UTC));
        let namespace = kind.namespaced().then_some("of.the:path");
        object.metadata_mut().begin(namespace, "an-id", now.clone());
        let back = Object::from_stored(kind, &object.to_json()).unwrap();
        prop_assert_eq!(&back, &object);
        // A client sends the whole object back, and changes nothing by it.
        let mut sent = Object::from_request(kind, &object.to_json()).unwrap().value;
        sent.metadata_mut().begin(namespace, "an-id", now);
        prop_assert_eq!(sent, object);
    }


    #[test]
    fn a_wrong_value_is_named_wherever_it_stands((kind, document) in any_document(), place in any::<Index>()) {
        let sites = Site::all(kind.schema(), &document);
        let site = place.get(&sites);
        let mut document = document.clone();
        *site.in_mut(&mut document) = wrong_value(site.shape);
        prop_assert_eq!(fields(stored(kind, &document)), vec![site.path.clone()]);
        let named = if site.ours { vec![] } else { vec![site.path.clone()] };
        prop_assert_eq!(fields(requested(kind, &document)), named);
    }

    #[test]
    fn a_missing_field_is_named((kind, document) in any_document(), place in any::<Index>()) {
        let sites = Site::all(kind.schema(), &document);
        let sites: Vec<_> = sites.iter().filter(|site| site.required && !site.ours).collect();
        let site = place.get(&sites);
        let mut document = document.clone();
        site.remove(&mut document);
        let error = requested(kind, &document).unwrap_err();
        prop_assert_eq!(error.problems.len(), 1, "{}", error);
        prop_assert_eq!((&error.problems[0].field, &*error.problems[0].got), (&site.path, ""));
    }

    #[test]
    fn an_unknown_field_is_refused_in_a_request_and_kept_where_it_is_stored(
        (kind, document) in any_document(),
        place in any::<Index>(),
    ) {
        let sites = Site::all(kind.schema(), &document);
        let sites: Vec<_> = sites.iter().filter(|site| site.has_fields(&document)).collect();
        let site = place.get(&sites);
        let mut document = document.clone();
        site.in_mut(&mut document)["of_tomorrow"] = json!({"a": [1.0, null]});
        let path = format!("{}.of_tomorrow", site.path);
        let named = if site.ours { vec![] } else { vec![path.trim_start_matches('.').to_owned()] };
        prop_assert_eq!(fields(requested(kind, &document)), named);
        let written = serde_json::from_str(&stored(kind, &document).unwrap().to_json()).unwrap();
        prop_assert!(kept(&document, &written), "{document}\n{written}");
    }

    #[test]
    fn any_text_is_read_without_a_panic((kind, document) in any_document(), place in any::<Index>(), junk in "[\\PC\\s]{0,6}") {
        let text = document.to_string();
        let places: Vec<usize> = text.char_indices().map(|(place, _)| place).collect();
        let (start, end) = text.split_at(*place.get(&places));
        let text = format!("{start}{junk}{end}");
        // Neither reader panics, and each accepted object is written as JSON on one line.
        for object in [
            Object::from_stored(kind, &text).ok(),
            Object::from_request(kind, &text).ok().map(|requested| requested.value),
        ].into_iter().flatten() {
            let text = object.to_json();
            prop_assert!(!text.contains(['\n', '\r']));
            serde_json::from_str::<Value>(&text).unwrap();
        }
    }

    #[test]
    fn names_that_match_the_schema_are_accepted(
        name in matching(Rule::Name.pattern().unwrap()),
        key in matching(Rule::Labels.key_pattern().unwrap()),
        value in matching(Rule::Labels.pattern().unwrap()),
    ) {
        prop_assert!(is_resource_name(&name), "{name}");
        prop_assert!(is_label_key(&key), "{key}");
        prop_assert!(is_label_value(&value), "{value}");
    }

    #[test]
    fn constraints_that_match_the_schema_are_accepted(
        label in matching(Shape::LabelConstraint.pattern().unwrap()),
        metric in matching(Shape::MetricConstraint.pattern().unwrap()),
    ) {
        prop_assert!(LabelConstraint::parse(&label).is_ok(), "{label}");
        // All that the pattern cannot say is that a number is finite.
        let finite = |error: crate::placement::constraint::ConstraintError| {
            let number = error.got.trim_matches('"').trim_end_matches("...");
            number.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
        };
        prop_assert!(MetricConstraint::parse(&metric).map_or_else(finite, |_| true), "{metric}");
    }
}

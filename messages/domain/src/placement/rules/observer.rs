//! The rules of observer schemas, which select the watched fields of the manifest's resources.
//!
//! A schema repeats the structure of a resource with `null` for each watched field. A list ends with an object that
//! gives the minimum and maximum length of the list.

use serde_json::{Map, Value};

use super::{describe_kind, is_set};
use madako_json::input::Problems;
use madako_json::krake::free::JsonObject;
use madako_json::strict::walk::Path;

const LEAST: &str = "observer_schema_list_min_length";
const MOST: &str = "observer_schema_list_max_length";

/// Requires that each schema names a resource of the manifest and ends in `null` values.
pub(super) fn check_observer_schemas(
    schemas: &[JsonObject],
    manifest: &[JsonObject],
    path: Path<'_>,
    problems: &mut Problems,
) {
    let resources: Vec<_> = manifest.iter().filter_map(|resource| resource.parse().ok()).collect();
    for (index, schema) in schemas.iter().enumerate() {
        let path = path.item(index);
        let Ok(schema) = schema.parse() else {
            problems.add(path, "something unreadable", "an observer schema");
            continue;
        };
        let before = problems.len();
        check_resource(&schema, path, problems);
        if problems.len() == before && !resources.iter().any(|resource| names_resource(&schema, resource)) {
            problems.add(path, "no resource of the manifest", "\"apiVersion\", \"kind\" and name of one");
        }
    }
}

/// True if the schema names the resource. The namespace counts only if the schema has one.
fn names_resource(schema: &Map<String, Value>, resource: &Map<String, Value>) -> bool {
    let metadata = |object: &Map<String, Value>, name: &str| object.get("metadata")?.get(name).cloned();
    ["apiVersion", "kind"].iter().all(|name| schema.get(*name) == resource.get(*name))
        && metadata(schema, "name") == metadata(resource, "name")
        && metadata(schema, "namespace")
            .filter(is_set)
            .is_none_or(|namespace| metadata(resource, "namespace") == Some(namespace))
}

fn check_resource(schema: &Map<String, Value>, path: Path<'_>, problems: &mut Problems) {
    for name in ["apiVersion", "kind"] {
        if schema.get(name).is_none_or(Value::is_null) {
            problems.add(path.field(name), "", "the value in the resource");
        }
    }
    match schema.get("metadata") {
        Some(Value::Object(metadata)) => {
            let path = path.field("metadata");
            if metadata.get("name").is_none_or(Value::is_null) {
                problems.add(path.field("name"), "", "the value in the resource");
            }
            check_fields(metadata, &["name"], path, problems);
        }
        Some(value) if !value.is_null() => {
            problems.add(path.field("metadata"), describe_kind(value), "an object")
        }
        _ => problems.add(path.field("metadata"), "", "the value in the resource"),
    }
    check_fields(schema, &["apiVersion", "kind", "metadata"], path, problems);
}

fn check_fields(fields: &Map<String, Value>, checked: &[&str], path: Path<'_>, problems: &mut Problems) {
    for (name, value) in fields.iter().filter(|(name, _)| !checked.contains(&name.as_str())) {
        check_value(value, path.field(&madako_json::krake::reader::shorten_name(name)), problems);
    }
}

fn check_value(value: &Value, path: Path<'_>, problems: &mut Problems) {
    match value {
        Value::Null => {}
        Value::Object(fields) => check_fields(fields, &[], path, problems),
        Value::Array(items) => check_list(items, path, problems),
        _ => problems.add(path, describe_kind(value), "null for a watched field"),
    }
}

fn check_list(items: &[Value], path: Path<'_>, problems: &mut Problems) {
    let expected = format!("an object with {LEAST} and {MOST} as the last item");
    let Some((Value::Object(control), items)) = items.split_last() else {
        problems.add(path, "a list without this item", expected);
        return;
    };
    let path_here = path.item(items.len());
    let mut length = |name: &str| {
        let given = control.get(name);
        let length = given.and_then(Value::as_u64);
        if length.is_none() {
            let got = match given {
                Some(Value::Number(number)) => number.to_string(),
                other => other.map(describe_kind).unwrap_or_default().to_owned(),
            };
            problems.add(path_here.field(name), got, "a whole number of 0 or more");
        }
        length
    };
    if let (Some(least), Some(most)) = (length(LEAST), length(MOST))
        && most != 0
        && (most < least || most < items.len() as u64)
    {
        let expected = "0, or at least the least length and the number of items".to_owned();
        problems.add(path_here.field(MOST), most.to_string(), expected);
    }
    for (index, item) in items.iter().enumerate() {
        check_value(item, path.item(index), problems);
    }
}

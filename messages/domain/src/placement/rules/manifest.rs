//! Validates the Kubernetes manifests of an application.

use serde_json::{Map, Value};

use super::{describe_kind, is_set};
use madako_json::input::Problems;
use madako_json::krake::free::JsonObject;
use madako_json::strict::walk::Path;

/// Requires an API version, a kind and a name in every resource.
pub(super) fn check_manifest(manifest: &[JsonObject], path: Path<'_>, problems: &mut Problems) {
    for (index, resource) in manifest.iter().enumerate() {
        let path = path.item(index);
        match resource.parse() {
            Ok(resource) => check_one(&resource, path, problems),
            // The request was parsed before, so no error is expected.
            Err(error) => problems.add(path, error.to_string(), "a Kubernetes resource"),
        }
    }
}

fn check_one(resource: &Map<String, Value>, path: Path<'_>, problems: &mut Problems) {
    for name in ["apiVersion", "kind"] {
        if !resource.contains_key(name) {
            problems.add(path.field(name), "", "the field in every resource");
        }
    }
    let path = path.field("metadata");
    match resource.get("metadata") {
        None => problems.add(path, "", "the field in every resource"),
        Some(Value::Object(metadata)) => {
            if !metadata.get("name").is_some_and(is_set) {
                problems.add(path.field("name"), "", "the resource's name");
            }
        }
        Some(other) => problems.add(path, describe_kind(other), "an object"),
    }
}

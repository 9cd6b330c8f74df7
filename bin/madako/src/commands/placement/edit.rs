//! Changes fields of a JSON document by their paths.

use serde_json::{Map, Value};

use crate::failure::Failure;

/// Changes a document. May be called several times, each time with the current resource.
pub(super) type Apply = Box<dyn Fn(&mut Value) -> Result<(), Failure>>;

pub(super) struct Change {
    /// Name of the resource, if the input names it.
    pub(super) name: Option<String>,
    pub(super) apply: Apply,
}

impl Change {
    /// A change that cannot fail.
    pub(super) fn new(apply: impl Fn(&mut Value) + 'static) -> Self {
        Self {
            name: None,
            apply: Box::new(move |document| {
                apply(document);
                Ok(())
            }),
        }
    }
}

/// The value at a path; missing objects are created.
pub(super) fn value_at_path<'a>(document: &'a mut Value, path: &[&str]) -> &'a mut Value {
    path.iter().fold(document, |at, name| {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        &mut at[*name]
    })
}

/// Puts a value at a path, if there is one.
pub(super) fn put_value(document: &mut Value, path: &[&str], value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        *value_at_path(document, path) = value.into();
    }
}

/// Puts the array at a path, unless it has no values.
pub(super) fn put_values_unless_empty(
    document: &mut Value,
    path: &[&str],
    values: &[impl Clone + Into<Value>],
) {
    if !values.is_empty() {
        *value_at_path(document, path) = values.iter().cloned().map(Into::into).collect();
    }
}

/// Appends values to the array at a path; values that are in it already only if `twice`.
pub(super) fn append(document: &mut Value, path: &[&str], values: &[Value], twice: bool) {
    let at = value_at_path(document, path);
    if !at.is_array() {
        *at = Value::Array(Vec::new());
    }
    if let Value::Array(items) = at {
        for value in values {
            if twice || !items.contains(value) {
                items.push(value.clone());
            }
        }
    }
}

/// Merges entries into the object at a path.
pub(super) fn merge(document: &mut Value, path: &[&str], entries: &Map<String, Value>) {
    for (key, value) in entries {
        value_at_path(document, path)[key] = value.clone();
    }
}

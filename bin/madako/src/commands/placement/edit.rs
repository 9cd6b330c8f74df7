//! Changes of a JSON document at places.

use serde_json::{Map, Value};

use crate::failure::Failure;

/// Changes a document. May be called several times, each with the resource as it is then.
pub(super) type Apply = Box<dyn Fn(&mut Value) -> Result<(), Failure>>;

/// What an update does to a resource.
pub(super) struct Change {
    /// Which resource, if what was handed over says so.
    pub(super) name: Option<String>,
    /// Does it.
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

/// The place at a path; objects are made where there are none.
pub(super) fn place<'a>(document: &'a mut Value, path: &[&str]) -> &'a mut Value {
    path.iter().fold(document, |at, name| {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        &mut at[*name]
    })
}

/// Puts a value at a path, if there is one.
pub(super) fn put(document: &mut Value, path: &[&str], value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        *place(document, path) = value.into();
    }
}

/// Puts values at a path, unless there are none.
pub(super) fn put_all(document: &mut Value, path: &[&str], values: &[impl Clone + Into<Value>]) {
    if !values.is_empty() {
        *place(document, path) = values.iter().cloned().map(Into::into).collect();
    }
}

/// Puts values behind those at a path; a value that is there already only if `twice`.
pub(super) fn append(document: &mut Value, path: &[&str], values: &[Value], twice: bool) {
    let at = place(document, path);
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

/// Puts entries among those at a path.
pub(super) fn merge(document: &mut Value, path: &[&str], entries: &Map<String, Value>) {
    for (key, value) in entries {
        place(document, path)[key] = value.clone();
    }
}

//! A cluster configuration exactly as ckecli stores it: every field that CKE's types have, in their order, with
//! Go's zero value where nothing was given, and with the characters escaped that Go escapes.
//!
//! CKE reads the shorter form just as well. This one makes two stores comparable byte by byte, whoever filled them.

use serde::Serialize;

use crate::strict::schema;
use crate::strict::tree::Tree;
use crate::strict::walk::{Kind, Schema};

/// Fields that Go leaves out when they are empty, by the field that they are in.
const LEFT_OUT: [(&str, &[&str]); 11] = [
    (
        "reboot",
        &[
            "max_concurrent_reboots",
            "eviction_timeout_seconds",
            "command_timeout_seconds",
            "protected_namespaces",
        ],
    ),
    (
        "repair",
        &[
            "max_concurrent_repairs",
            "protected_namespaces",
            "evict_retries",
            "evict_interval",
            "eviction_timeout_seconds",
        ],
    ),
    ("repair_operations", &["command_timeout_seconds", "success_command", "success_command_timeout"]),
    (
        "repair_steps",
        &["command_timeout_seconds", "command_retries", "command_interval", "need_drain", "watch_seconds"],
    ),
    ("protected_namespaces", &["matchLabels", "matchExpressions"]),
    ("matchExpressions", &["values"]),
    ("taints", &["value", "timeAdded"]),
    ("boot_taints", &["value", "timeAdded"]),
    ("kube-scheduler", &["config"]),
    ("kube-proxy", &["disable", "config"]),
    ("kubelet", &["config"]),
];

/// The JSON text as ckecli stores it.
///
/// # Errors
/// An uninterpreted part holds what has no place in a document, such as the same field twice.
pub fn stored_json(cluster: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(escaped(full(cluster)?.to_string()))
}

/// JSON text with the characters escaped that Go escapes.
#[must_use]
pub fn escaped(mut text: String) -> String {
    // These characters stand in texts only, so they can be escaped from outside.
    for (character, escaped) in [
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u{2028}", "\\u2028"),
        ("\u{2029}", "\\u2029"),
    ] {
        if text.contains(character) {
            text = text.replace(character, escaped);
        }
    }
    text
}

/// The configuration with every field that ckecli shows.
///
/// # Errors
/// An uninterpreted part holds what has no place in a document, such as the same field twice.
pub fn with_every_field(cluster: &impl Serialize) -> Result<Tree, serde_json::Error> {
    full(cluster)
}

fn full(cluster: &impl Serialize) -> Result<Tree, serde_json::Error> {
    let tree = Tree::from_json(&serde_json::to_string(cluster)?)?;
    Ok(object(&tree, &schema::CLUSTER, ""))
}

/// The object that is the value of the field `parent`, with all its fields.
fn object(tree: &Tree, schema: &'static Schema, parent: &str) -> Tree {
    let left_out = LEFT_OUT.iter().find(|(name, _)| *name == parent).map_or(&[][..], |(_, fields)| fields);
    // Our own types of a cluster and its nodes do not tell an empty list from one that is not there.
    let reads_empty = matches!(parent, "" | "nodes");
    let mut fields = Vec::with_capacity(schema.fields.len());
    for (name, kind) in schema.fields {
        let given = tree.get(name).filter(|given| !(reads_empty && is_empty_list_or_map(given)));
        let value = given.map_or_else(|| zero(kind, name), |given| value(given, kind, name));
        if !(left_out.contains(name) && is_empty(&value, kind)) {
            fields.push(((*name).to_owned(), value));
        }
    }
    let known = |name: &str| schema.fields.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
    fields.extend(tree.fields().iter().filter(|(name, _)| !known(name)).cloned());
    Tree::Object(fields)
}

fn value(given: &Tree, kind: &'static Kind, name: &str) -> Tree {
    match (kind, given) {
        (Kind::Object(schema), Tree::Object(_)) => object(given, schema, name),
        (Kind::List(item), Tree::List(items)) => {
            Tree::List(items.iter().map(|given| value(given, item, name)).collect())
        }
        // Maps to Go, which writes them in the order of their names.
        (Kind::Map(_) | Kind::FreeForm | Kind::Any, given) => sorted(given),
        (_, given) => given.clone(),
    }
}

/// What Go has where nothing was given.
fn zero(kind: &'static Kind, name: &str) -> Tree {
    match kind {
        Kind::Text => Tree::Text(String::new()),
        Kind::Bool => Tree::Bool(false),
        // A pointer in Go.
        Kind::Object(_) if name == "protected_namespaces" => Tree::Null,
        Kind::Object(schema) => object(&Tree::Null, schema, name),
        _ => Tree::Null,
    }
}

fn is_empty(value: &Tree, kind: &Kind) -> bool {
    match value {
        Tree::Null | Tree::Bool(false) => true,
        Tree::Text(text) => text.is_empty(),
        Tree::List(items) => items.is_empty(),
        // An empty map is left out; an object behind a pointer is not.
        Tree::Object(fields) => fields.is_empty() && matches!(kind, Kind::Map(_)),
        Tree::Bool(true) | Tree::Number(_) => false,
    }
}

fn is_empty_list_or_map(value: &Tree) -> bool {
    match value {
        Tree::List(items) => items.is_empty(),
        Tree::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn sorted(tree: &Tree) -> Tree {
    match tree {
        Tree::List(items) => Tree::List(items.iter().map(sorted).collect()),
        Tree::Object(fields) => {
            let mut fields: Vec<_> =
                fields.iter().map(|(name, value)| (name.clone(), sorted(value))).collect();
            fields.sort_by(|(one, _), (other, _)| one.cmp(other));
            Tree::Object(fields)
        }
        other => other.clone(),
    }
}

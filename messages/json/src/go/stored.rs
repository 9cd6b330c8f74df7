//! A cluster configuration exactly as ckecli stores it: every field of CKE's types, in their order, with Go's zero
//! value for absent fields, and with Go's escaped characters.
//!
//! CKE reads the shorter form as well. The full form makes two stores comparable byte by byte, whichever program
//! filled them.

use serde::Serialize;

use crate::strict::schema;
use crate::strict::tree::Tree;
use crate::strict::walk::{Kind, Schema};

/// Fields that Go leaves out when they are empty, by the name of their parent field.
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
/// An uninterpreted part cannot be a document, for example because it has the same field twice.
pub fn stored_json(cluster: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(escaped(full(cluster)?.to_string()))
}

/// The JSON text with Go's escapes for `<`, `>`, `&`, U+2028 and U+2029.
#[must_use]
pub fn escaped(mut text: String) -> String {
    // These characters occur only inside JSON strings, so replacing them in the whole text is safe.
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
/// An uninterpreted part cannot be a document, for example because it has the same field twice.
pub fn with_every_field(cluster: &impl Serialize) -> Result<Tree, serde_json::Error> {
    full(cluster)
}

fn full(cluster: &impl Serialize) -> Result<Tree, serde_json::Error> {
    let tree = Tree::from_json(&serde_json::to_string(cluster)?)?;
    Ok(object(&tree, &schema::CLUSTER, ""))
}

/// The object at the field `parent`, with all fields of its schema.
fn object(tree: &Tree, schema: &'static Schema, parent: &str) -> Tree {
    let left_out = LEFT_OUT.iter().find(|(name, _)| *name == parent).map_or(&[][..], |(_, fields)| fields);
    // This project's types of a cluster and its nodes do not distinguish an empty list from an absent one.
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
        // Go has maps here and writes their entries sorted by name.
        (Kind::Map(_) | Kind::FreeForm | Kind::Any, given) => sorted(given),
        (_, given) => given.clone(),
    }
}

/// Go's zero value of a kind.
fn zero(kind: &'static Kind, name: &str) -> Tree {
    match kind {
        Kind::Text => Tree::Text(String::new()),
        Kind::Bool => Tree::Bool(false),
        // Go has a pointer here.
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
        // Go leaves out an empty map, but not an object behind a pointer.
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

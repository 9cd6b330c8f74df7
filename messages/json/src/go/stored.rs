//! A cluster configuration exactly as ckecli stores it: every field of CKE's types, in their order, with Go's zero
//! value for absent fields, and with Go's escaped characters.
//!
//! CKE reads the shorter form as well. The full form makes two stores comparable byte by byte, whichever program
//! filled them.

use serde::Serialize;

use crate::strict::{HasSchema, Kind, Schema, Tree};

/// The JSON text as ckecli stores it.
///
/// # Errors
/// An uninterpreted part cannot be a document, for example because it has the same field twice.
pub fn stored_json<T: Serialize + HasSchema>(cluster: &T) -> Result<String, serde_json::Error> {
    Ok(escape_html(with_every_field(cluster)?.to_string()))
}

/// The JSON text with Go's escapes for `<`, `>`, `&`, U+2028 and U+2029.
#[must_use]
pub fn escape_html(mut text: String) -> String {
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
pub fn with_every_field<T: Serialize + HasSchema>(cluster: &T) -> Result<Tree, serde_json::Error> {
    let tree = Tree::from_json(&serde_json::to_string(cluster)?)?;
    Ok(with_all_fields(&tree, T::SCHEMA, true))
}

/// The object with all fields of its schema. `reads_empty`: this project's types of a cluster and its nodes do not
/// distinguish an empty list from an absent one; the sections are kept as text.
fn with_all_fields(tree: &Tree, schema: &'static Schema, reads_empty: bool) -> Tree {
    let mut fields = Vec::with_capacity(schema.fields.len());
    for (name, kind) in schema.fields {
        let given = tree.get(name).filter(|given| !(reads_empty && is_empty_list_or_map(given)));
        let value = given.map_or_else(
            || zero_value(kind),
            |given| stored_value(given, kind, reads_empty && matches!(kind, Kind::List(_))),
        );
        let left_out = matches!(kind, Kind::OmitEmpty(kind) if is_empty(&value, kind));
        if !left_out {
            fields.push(((*name).to_owned(), value));
        }
    }
    let known = |name: &str| schema.fields.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
    fields.extend(tree.fields().iter().filter(|(name, _)| !known(name)).cloned());
    Tree::Object(fields)
}

fn stored_value(given: &Tree, kind: &'static Kind, reads_empty: bool) -> Tree {
    match (kind, given) {
        (Kind::OmitEmpty(kind), given) => stored_value(given, kind, reads_empty),
        (Kind::Object(schema), Tree::Object(_)) => with_all_fields(given, schema, reads_empty),
        (Kind::List(item), Tree::List(items)) => {
            Tree::List(items.iter().map(|given| stored_value(given, item, reads_empty)).collect())
        }
        // Go has maps here and writes their entries sorted by name.
        (Kind::Map(_) | Kind::FreeForm | Kind::Any, given) => sort_fields(given),
        (_, given) => given.clone(),
    }
}

/// Go's zero value of a kind.
fn zero_value(kind: &'static Kind) -> Tree {
    match kind {
        Kind::Text => Tree::Text(String::new()),
        Kind::Bool => Tree::Bool(false),
        Kind::Object(schema) => with_all_fields(&Tree::Null, schema, false),
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

fn sort_fields(tree: &Tree) -> Tree {
    match tree {
        Tree::List(items) => Tree::List(items.iter().map(sort_fields).collect()),
        Tree::Object(fields) => {
            let mut fields: Vec<_> =
                fields.iter().map(|(name, value)| (name.clone(), sort_fields(value))).collect();
            fields.sort_by(|(one, _), (other, _)| one.cmp(other));
            Tree::Object(fields)
        }
        other => other.clone(),
    }
}

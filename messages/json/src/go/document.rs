//! Prints JSON and YAML in the form of ckecli.

use serde::Serialize;

use crate::strict::tree::{Number, Tree};

/// JSON with four spaces of indentation and a final newline, as `ckecli constraints show` and
/// `ckecli history` print it.
///
/// # Errors
/// The value cannot be written as JSON.
pub fn to_pretty_json<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, formatter))?;
    text.push(b'\n');
    Ok(String::from_utf8(text).expect("JSON is UTF-8"))
}

/// YAML with sorted names and lists at the indentation of their field, as `ckecli cluster get` prints it. A text that
/// a YAML 1.1 reader would take for another type is quoted.
///
/// # Errors
/// The value cannot be written as JSON, the intermediate form.
pub fn to_yaml<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    let mut tree = Tree::from_json(&serde_json::to_string(value)?)?;
    sort_fields(&mut tree);
    let options = serde_saphyr::ser_options! {
        compact_list_indent: true,
        // Folded texts are hard to copy out.
        folded_wrap_chars: usize::MAX,
    };
    serde_saphyr::to_string_with_options(&tree, options).map_err(serde::ser::Error::custom)
}

fn sort_fields(tree: &mut Tree) {
    match tree {
        Tree::List(items) => items.iter_mut().for_each(sort_fields),
        Tree::Object(fields) => {
            fields.sort_by(|(one, _), (other, _)| one.cmp(other));
            fields.iter_mut().for_each(|(_, value)| sort_fields(value));
        }
        // Go reads a float without a fraction back as an integer, so write an integer.
        Tree::Number(number @ Number::Float(_)) => {
            if let Ok(whole) = number.to_string().parse() {
                *number = Number::Integer(whole);
            }
        }
        Tree::Null | Tree::Bool(_) | Tree::Number(_) | Tree::Text(_) => {}
    }
}

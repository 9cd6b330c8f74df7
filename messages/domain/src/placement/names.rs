//! Names of resources, and keys and values of labels, by Krake's patterns (its `data/core.py`).

use super::constraint::names::{is_label_key, is_label_value, is_resource_name};
use madako_json::input::Problems;
use madako_json::krake::entries::Labels;
use madako_json::strict::tree::shown_text;
use madako_json::strict::walk::Path;

const NAME: &str = "1 to 255 ASCII letters, digits, '_', and inside also ':', '.' or '-'";
const LABEL_KEY: &str = "a key of 1 to 63 ASCII letters, digits, '_', and inside also '.' or '-', optionally after \
    a prefix of up to 253 of the same and '/'";
const LABEL_VALUE: &str = "1 to 63 ASCII letters, digits, '_', and inside also '.' or '-'";

/// Adds a problem unless the name is valid.
#[expect(clippy::ptr_arg, reason = "a rule gets the field as its type has it")]
pub(crate) fn check_name(name: &String, path: Path<'_>, problems: &mut Problems) {
    if !is_resource_name(name) {
        problems.add(path, shown_text(name), NAME);
    }
}

/// Adds a problem unless the namespace is absent or valid.
#[expect(clippy::ref_option, reason = "a rule gets the field as its type has it")]
pub(crate) fn check_namespace(namespace: &Option<String>, path: Path<'_>, problems: &mut Problems) {
    if let Some(namespace) = namespace {
        check_name(namespace, path, problems);
    }
}

/// Adds a problem for each invalid key and value of the labels.
pub(crate) fn check_labels(labels: &Labels, path: Path<'_>, problems: &mut Problems) {
    for (key, value) in labels.iter() {
        if !is_label_key(key) {
            problems.add(path, shown_text(key), LABEL_KEY);
        }
        if !is_label_value(value) {
            problems.add(
                path.entry(&madako_json::krake::reader::shorten_name(key)),
                shown_text(value),
                LABEL_VALUE,
            );
        }
    }
}

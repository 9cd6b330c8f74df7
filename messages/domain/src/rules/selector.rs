//! Validates a label selector (`protected_namespaces`).

use crate::rules::names;
use madako_json::input::Problems;
use madako_json::strict::tree::{Tree, shown_text};
use madako_json::strict::walk::Path;

/// Checks the label selector in a section's field `protected_namespaces`, if it is present.
pub(super) fn check_selector(section: &Tree, path: &Path<'_>, problems: &mut Problems) {
    let Some(selector) = section.get("protected_namespaces") else {
        return;
    };
    let labels = path.field("matchLabels");
    for (key, value) in selector.get("matchLabels").map_or(&[][..], Tree::fields) {
        check_key(key, &labels, problems);
        check_value(value, &labels.entry(key), problems);
    }
    let expressions = path.field("matchExpressions");
    for (index, expression) in
        selector.get("matchExpressions").map_or(&[][..], Tree::items).iter().enumerate()
    {
        let path = expressions.item(index);
        check_key(
            expression.get("key").and_then(Tree::text).unwrap_or_default(),
            &path.field("key"),
            problems,
        );
        let values = expression.get("values").map_or(&[][..], Tree::items);
        let operator = expression.get("operator").and_then(Tree::text).unwrap_or_default();
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                problems.add(path.field("values"), "", format!("at least one value for {operator}"));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                problems.add(path.field("values"), "some", format!("no values for {operator}"));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let got = if other.is_empty() { String::new() } else { shown_text(other) };
                problems.add(path.field("operator"), got, "In, NotIn, Exists or DoesNotExist");
            }
        }
        let path = path.field("values");
        for (index, value) in values.iter().enumerate() {
            check_value(value, &path.item(index), problems);
        }
    }
}

fn check_key(key: &str, path: &Path<'_>, problems: &mut Problems) {
    if !names::is_qualified(key) {
        let got = if key.is_empty() { String::new() } else { shown_text(key) };
        problems.add(*path, got, names::QUALIFIED);
    }
}

fn check_value(value: &Tree, path: &Path<'_>, problems: &mut Problems) {
    if let Some(value) = value.text()
        && !names::is_label_value(value)
    {
        problems.add(*path, shown_text(value), names::LABEL_VALUE);
    }
}

//! Output of resources as in krakectl: columns of text, or the documents themselves.

use madako_json::krake::timestamp::Timestamp;
use serde_json::Value;

use super::words::Resource;
use crate::failure::Failure;
use crate::output::{Format, Table, show};

/// Placeholder for a missing value, as in krakectl's tables.
const NOTHING: &str = "None";

/// A column of a list, or a line of one resource.
#[derive(Debug)]
pub(super) struct Column {
    name: &'static str,
    /// A JSON pointer.
    at: &'static str,
    form: ValueFormat,
}

#[derive(Debug, Clone, Copy)]
enum ValueFormat {
    Plain,
    /// To the second.
    Time,
    /// Number of nodes with a condition, of all; `true`: the condition is a good one.
    Nodes(&'static str, bool),
    /// Numbers of an application's pods by state.
    Pods,
    /// Plain; omitted if the resource has no such field.
    IfThere,
    /// Only whether it is set: the value is a secret.
    Secret,
}

impl Column {
    pub(super) const fn new(name: &'static str, at: &'static str) -> Self {
        Self { name, at, form: ValueFormat::Plain }
    }

    pub(super) const fn time(name: &'static str, at: &'static str) -> Self {
        Self { name, at, form: ValueFormat::Time }
    }

    pub(super) const fn nodes(name: &'static str, condition: &'static str, good: bool) -> Self {
        Self { name, at: "/status/nodes", form: ValueFormat::Nodes(condition, good) }
    }

    pub(super) const fn pods(name: &'static str, at: &'static str) -> Self {
        Self { name, at, form: ValueFormat::Pods }
    }

    /// A value that only some resources have.
    pub(super) const fn if_there(name: &'static str, at: &'static str) -> Self {
        Self { name, at, form: ValueFormat::IfThere }
    }

    /// A secret that only some resources have.
    pub(super) const fn secret(name: &'static str, at: &'static str) -> Self {
        Self { name, at, form: ValueFormat::Secret }
    }

    /// The text; `None`: the line is omitted.
    fn text(&self, document: &Value) -> Option<String> {
        let value = document.pointer(self.at);
        let plain = || value.map_or_else(|| NOTHING.to_owned(), words);
        Some(match self.form {
            ValueFormat::Plain => plain(),
            ValueFormat::Time => {
                value.and_then(Value::as_str).map_or_else(|| NOTHING.to_owned(), to_the_second)
            }
            ValueFormat::Nodes(condition, good) => nodes(value, condition, good),
            ValueFormat::Pods => pods(value),
            ValueFormat::IfThere => words(value?),
            ValueFormat::Secret => if value?.is_null() { NOTHING } else { "(set)" }.to_owned(),
        })
    }
}

/// Columns of every resource.
const BASE: [Column; 6] = [
    Column::new("name", "/metadata/name"),
    Column::new("namespace", "/metadata/namespace"),
    Column::new("labels", "/metadata/labels"),
    Column::time("created", "/metadata/created"),
    Column::time("modified", "/metadata/modified"),
    Column::time("deleted", "/metadata/deleted"),
];

pub(super) fn many(resource: &Resource, format: Format, items: &[Value]) -> Result<(), Failure> {
    show(format, &items, |items| {
        let columns = || BASE.iter().chain(resource.columns);
        let mut table =
            Table::of(columns().map(|column| column.name.to_uppercase().replace('_', " ")).collect());
        for item in *items {
            table.add(columns().map(|column| column.text(item).unwrap_or_default()).collect());
        }
        table.text()
    })
}

pub(super) fn one(resource: &Resource, format: Format, document: &Value) -> Result<(), Failure> {
    show(format, document, |document| {
        let mut table = Table::new(["FIELD", "VALUE"]);
        for column in BASE.iter().chain(resource.columns).chain(resource.details) {
            if let Some(text) = column.text(document) {
                table.row([column.name.to_owned(), text]);
            }
        }
        table.text()
    })
}

/// A value as words on one line.
fn words(value: &Value) -> String {
    match value {
        Value::Null => NOTHING.to_owned(),
        // In a role it means all.
        Value::String(text) if text.is_empty() => "''".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if !items.is_empty() => items.iter().map(words).collect::<Vec<_>>().join("; "),
        Value::Object(fields) if !fields.is_empty() => {
            let one = |(name, value): (&String, &Value)| match value {
                Value::Object(inner) if !inner.is_empty() => format!("{name}: ({})", words(value)),
                Value::Array(inner) if !inner.is_empty() => format!("{name}: [{}]", words(value)),
                _ => format!("{name}: {}", words(value)),
            };
            fields.iter().map(one).collect::<Vec<_>>().join(", ")
        }
        Value::Array(_) | Value::Object(_) => NOTHING.to_owned(),
        other => other.to_string(),
    }
}

fn to_the_second(text: &str) -> String {
    match (Timestamp::parse(text), text.get(..19)) {
        (Some(_), Some(start)) => start.replacen('T', " ", 1),
        _ => text.to_owned(),
    }
}

/// Number of nodes with a condition. A node that does not report a good condition counts as having it, as in krakectl.
fn nodes(value: Option<&Value>, condition: &str, good: bool) -> String {
    let nodes = value.and_then(Value::as_array).filter(|nodes| !nodes.is_empty());
    let Some(nodes) = nodes else { return NOTHING.to_owned() };
    let is_so = |node: &&Value| {
        let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
        let status = conditions.into_iter().flatten().find_map(|one| {
            let kind = one["type"].as_str()?;
            kind.eq_ignore_ascii_case(condition).then(|| one["status"] == "True")
        });
        status.unwrap_or(good)
    };
    format!("{}/{}", nodes.iter().filter(is_so).count(), nodes.len())
}

fn pods(value: Option<&Value>) -> String {
    let Some(health) = value.filter(|value| value.is_object()) else { return NOTHING.to_owned() };
    let count = |name: &str| words(&health[name]);
    if !health["completed_pods"].is_null() {
        format!(
            "{} active / {} failed / {} succeeded / {} desired",
            count("running_pods"),
            count("failed_pods"),
            count("completed_pods"),
            count("desired_pods")
        )
    } else if !health["desired_pods"].is_null() {
        format!("{} active / {} desired", count("running_pods"), count("desired_pods"))
    } else {
        NOTHING.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_told_in_words_on_one_line() {
        for (value, told) in [
            (json!(null), "None"),
            (json!({}), "None"),
            (json!([]), "None"),
            (json!({"namespaces": [""]}), "namespaces: ['']"),
            (json!({"location": "DE", "tier": 1}), "location: DE, tier: 1"),
            (
                json!([{"name": "heat", "weight": 0.5}, {"name": "cost"}]),
                "name: heat, weight: 0.5; name: cost",
            ),
            (json!({"a": {"b": [1, 2]}, "c": {}}), "a: (b: [1; 2]), c: None"),
        ] {
            assert_eq!(words(&value), told);
        }
    }

    #[test]
    fn times_are_shown_to_the_second_as_they_were_written() {
        assert_eq!(to_the_second("2026-11-21T12:34:56.789+02:00"), "2026-11-21 12:34:56");
        assert_eq!(to_the_second("whenever"), "whenever");
    }

    #[test]
    fn nodes_are_counted_by_their_conditions() {
        let node = |ready: &str, disk: &str| {
            json!({"status": {"conditions": [
                {"type": "Ready", "status": ready}, {"type": "DiskPressure", "status": disk}]}})
        };
        let nodes_of =
            json!([node("True", "True"), node("Unknown", "False"), {"status": {"conditions": []}}]);
        assert_eq!(nodes(Some(&nodes_of), "Ready", true), "2/3");
        assert_eq!(nodes(Some(&nodes_of), "DiskPressure", false), "1/3");
        assert_eq!(nodes(Some(&json!([])), "Ready", true), "None");
        let health = json!({"running_pods": 1, "failed_pods": 2, "completed_pods": 3, "desired_pods": 4});
        assert_eq!(pods(Some(&health)), "1 active / 2 failed / 3 succeeded / 4 desired");
        let health = json!({"running_pods": 1, "failed_pods": 0, "completed_pods": null, "desired_pods": 4});
        assert_eq!(pods(Some(&health)), "1 active / 4 desired");
    }
}

//! Output of resources as in krakectl: columns of text, or the documents themselves. Unlike krakectl, times are ages, as in
//! all tables; the documents have krakectl's own times.

use madako_json::krake::schema::{FieldSchema, Shape};
use madako_json::krake::timestamp::Timestamp;
use serde_json::Value;
use time::OffsetDateTime;

use super::words::Resource;
use crate::commands::node::format_age;
use crate::failure::Failure;
use crate::output::{Format, Table, show_value};

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
    /// As an age.
    Time,
    /// Number of nodes with a condition, of all; `true`: the condition is a good one.
    Nodes(&'static str, bool),
    /// Numbers of an application's pods by state.
    Pods,
    /// A tagged object: a line for each field of its type that it has.
    Tagged(FieldsOfType),
}

/// The fields of the type with this name.
type FieldsOfType = fn(&str) -> Option<&'static [FieldSchema]>;

impl Column {
    pub(super) const fn new(name: &'static str, at: &'static str) -> Self {
        Self { name, at, form: ValueFormat::Plain }
    }

    pub(super) const fn for_time(name: &'static str, at: &'static str) -> Self {
        Self { name, at, form: ValueFormat::Time }
    }

    pub(super) const fn for_nodes(name: &'static str, condition: &'static str, good: bool) -> Self {
        Self { name, at: "/status/nodes", form: ValueFormat::Nodes(condition, good) }
    }

    pub(super) const fn for_pods(name: &'static str, at: &'static str) -> Self {
        Self { name, at, form: ValueFormat::Pods }
    }

    /// The content of a tagged object, for the lines of one resource.
    pub(super) const fn for_tagged_value(at: &'static str, fields: FieldsOfType) -> Self {
        Self { name: "", at, form: ValueFormat::Tagged(fields) }
    }

    /// The name as in the heading of a list.
    pub(super) fn heading_text(&self) -> String {
        self.name.to_uppercase().replace('_', " ")
    }

    pub(super) fn value_in<'a>(&self, document: &'a Value) -> Option<&'a Value> {
        document.pointer(self.at)
    }

    /// The time of a column of times; `None`: it is missing or malformed.
    pub(super) fn time_in(&self, document: &Value) -> Option<OffsetDateTime> {
        self.value_in(document).filter(|_| matches!(self.form, ValueFormat::Time)).and_then(parse_instant)
    }

    /// True if a plain value is missing or has no parts, so that spreadsheets get an empty text.
    pub(super) fn is_empty_in(&self, document: &Value) -> bool {
        let is_plain = matches!(self.form, ValueFormat::Plain | ValueFormat::Time);
        is_plain
            && match self.value_in(document) {
                None | Some(Value::Null) => true,
                Some(Value::Array(items)) => items.is_empty(),
                Some(Value::Object(fields)) => fields.is_empty(),
                Some(_) => false,
            }
    }

    /// The text of a value that is not a time.
    pub(super) fn cell_text(&self, document: &Value) -> String {
        let value = self.value_in(document);
        match self.form {
            ValueFormat::Plain | ValueFormat::Tagged(_) | ValueFormat::Time => {
                value.map_or_else(|| NOTHING.to_owned(), format_words)
            }
            ValueFormat::Nodes(condition, good) => count_nodes(value, condition, good),
            ValueFormat::Pods => count_pods(value),
        }
    }

    /// Names and texts of the lines of one resource.
    fn described_lines(&self, document: &Value, now: OffsetDateTime) -> Vec<(&'static str, String)> {
        if let Some(time) = self.time_in(document) {
            return vec![(self.name, format!("{} ago", format_age(now - time)))];
        }
        let ValueFormat::Tagged(fields) = self.form else {
            return vec![(self.name, self.cell_text(document))];
        };
        let value = document.pointer(self.at).unwrap_or(&Value::Null);
        let tag = value["type"].as_str().unwrap_or_default();
        let fields = fields(tag).unwrap_or_default().iter();
        let line = |field: &FieldSchema| {
            let text = match (&field.shape, value[tag].get(field.name)?) {
                (Shape::Secret, value) if !value.is_null() => "(set)".to_owned(),
                (_, value) => format_words(value),
            };
            Some((field.name, text))
        };
        fields.filter_map(line).collect()
    }
}

/// Columns of every resource.
pub(super) const BASE: [Column; 6] = [
    Column::new("name", "/metadata/name"),
    Column::new("namespace", "/metadata/namespace"),
    Column::new("labels", "/metadata/labels"),
    Column::for_time("created", "/metadata/created"),
    Column::for_time("modified", "/metadata/modified"),
    Column::for_time("deleted", "/metadata/deleted"),
];

pub(super) fn show_one(
    resource: &Resource,
    format: Format,
    document: &Value,
    now: OffsetDateTime,
) -> Result<(), Failure> {
    show_value(format, document, |document| {
        let mut table = Table::new(["FIELD", "VALUE"]);
        for column in BASE.iter().chain(resource.columns).chain(resource.details) {
            for (name, text) in column.described_lines(document, now) {
                table.add_row([name.to_owned(), text]);
            }
        }
        table.to_text()
    })
}

fn format_words(value: &Value) -> String {
    match value {
        Value::Null => NOTHING.to_owned(),
        // In a role it means all.
        Value::String(text) if text.is_empty() => "''".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if !items.is_empty() => {
            items.iter().map(format_words).collect::<Vec<_>>().join("; ")
        }
        Value::Object(fields) if !fields.is_empty() => {
            let one = |(name, value): (&String, &Value)| match value {
                Value::Object(inner) if !inner.is_empty() => {
                    format!("{name}: ({})", format_words(value))
                }
                Value::Array(inner) if !inner.is_empty() => format!("{name}: [{}]", format_words(value)),
                _ => format!("{name}: {}", format_words(value)),
            };
            fields.iter().map(one).collect::<Vec<_>>().join(", ")
        }
        Value::Array(_) | Value::Object(_) => NOTHING.to_owned(),
        other => other.to_string(),
    }
}

pub(super) fn parse_instant(value: &Value) -> Option<OffsetDateTime> {
    Some(Timestamp::parse(value.as_str()?)?.instant())
}

/// Number of nodes with a condition. A node that does not report a good condition counts as having it, as in krakectl.
fn count_nodes(value: Option<&Value>, condition: &str, good: bool) -> String {
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

fn count_pods(value: Option<&Value>) -> String {
    let Some(health) = value.filter(|value| value.is_object()) else { return NOTHING.to_owned() };
    let count = |name: &str| format_words(&health[name]);
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
    use time::macros::datetime;

    use super::*;

    #[test]
    fn values_are_shown_in_words_on_one_line() {
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
            assert_eq!(format_words(&value), told);
        }
    }

    #[test]
    fn times_are_shown_as_ages() {
        let document =
            json!({"metadata": {"created": "2026-11-21T12:34:56.789+02:00", "modified": "whenever"}});
        let lines = |column: &Column| column.described_lines(&document, datetime!(2026-11-21 12:36 UTC));
        assert_eq!(lines(&BASE[3]), [("created", "2h1m ago".to_owned())]);
        assert_eq!(lines(&BASE[4]), [("modified", "whenever".to_owned())]);
        assert_eq!(lines(&BASE[5]), [("deleted", "None".to_owned())]);
    }

    #[test]
    fn nodes_are_counted_by_their_conditions() {
        let node = |ready: &str, disk: &str| {
            json!({"status": {"conditions": [
                {"type": "Ready", "status": ready}, {"type": "DiskPressure", "status": disk}]}})
        };
        let nodes_of =
            json!([node("True", "True"), node("Unknown", "False"), {"status": {"conditions": []}}]);
        assert_eq!(count_nodes(Some(&nodes_of), "Ready", true), "2/3");
        assert_eq!(count_nodes(Some(&nodes_of), "DiskPressure", false), "1/3");
        assert_eq!(count_nodes(Some(&json!([])), "Ready", true), "None");
        let health = json!({"running_pods": 1, "failed_pods": 2, "completed_pods": 3, "desired_pods": 4});
        assert_eq!(count_pods(Some(&health)), "1 active / 2 failed / 3 succeeded / 4 desired");
        let health = json!({"running_pods": 1, "failed_pods": 0, "completed_pods": null, "desired_pods": 4});
        assert_eq!(count_pods(Some(&health)), "1 active / 4 desired");
    }
}

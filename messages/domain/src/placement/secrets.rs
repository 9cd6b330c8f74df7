//! The positions of secrets in the JSON of a resource: every field that its type marks as secret.
//!
//! For: the encryption at rest. Only the types say which fields are secret ([`Shape::Secret`] and
//! [`Shape::SecretFreeForm`]).
//!
//! Guarantees: replacing leaves all other text unchanged, byte for byte; all values of a duplicate field are found.
//! Pure.
//! Does not: search for secrets in objects with a foreign schema (a manifest may contain a Kubernetes Secret) or in
//! unknown fields.

use std::fmt::Write as _;
use std::ops::Range;

use serde_json::value::RawValue;

use super::kind::Kind;
use madako_json::krake::reader::AllMembers;
use madako_json::krake::schema::{Schema, Shape};

/// The position of a secret in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretLocation {
    /// Range in bytes of the whole JSON value.
    pub range: Range<usize>,
    /// The field as a JSON pointer (RFC 6901).
    pub field: String,
}

/// The secrets in the JSON of a resource, in the order of the text. `null` is not a secret.
///
/// # Errors
/// The text is not JSON. The message does not show it.
pub fn secret_locations(kind: Kind, text: &str) -> Result<Vec<SecretLocation>, serde_json::Error> {
    let mut places = Vec::new();
    let raw: &RawValue = serde_json::from_str(text)?;
    if kind.holds_secrets() {
        Walk { text, places: &mut places }.visit_object(kind.schema(), raw, "");
    }
    Ok(places)
}

/// The text with new values at the ranges, which must be in the order of the text.
#[must_use]
pub fn replace_ranges(text: &str, values: &[(Range<usize>, String)]) -> String {
    let more: usize = values.iter().map(|(_, value)| value.len()).sum();
    let mut written = String::with_capacity(text.len() + more);
    let mut end = 0;
    for (range, value) in values {
        written.push_str(&text[end..range.start]);
        written.push_str(value);
        end = range.end;
    }
    written.push_str(&text[end..]);
    written
}

impl Kind {
    /// True if resources of this kind have secret fields.
    #[must_use]
    pub fn holds_secrets(self) -> bool {
        has_secret_field(self.schema())
    }
}

fn has_secret_field(schema: &Schema) -> bool {
    schema.fields.iter().any(|field| holds_secret(&field.shape))
}

fn holds_secret(shape: &Shape) -> bool {
    match shape {
        Shape::Secret | Shape::SecretFreeForm => true,
        Shape::List(inner) | Shape::Map(inner) | Shape::Nullable(inner) => holds_secret(inner),
        Shape::Object(schema) => has_secret_field(schema),
        Shape::Tagged(variants) => variants.iter().any(|(_, content)| holds_secret(content)),
        Shape::Text
        | Shape::LabelConstraint
        | Shape::MetricConstraint
        | Shape::Bool
        | Shape::Integer
        | Shape::Number
        | Shape::Time
        | Shape::Choice(_)
        | Shape::FreeForm
        | Shape::TextOrFreeForm => false,
    }
}

/// A walk over the parts of a text that may contain secrets. It skips values with a wrong shape; the reader of the
/// resource reports them.
struct Walk<'t, 'p> {
    text: &'t str,
    places: &'p mut Vec<SecretLocation>,
}

impl Walk<'_, '_> {
    fn visit_value(&mut self, shape: &Shape, raw: &RawValue, field: &str) {
        if raw.get() == "null" || !holds_secret(shape) {
            return;
        }
        match shape {
            Shape::Nullable(inner) => self.visit_value(inner, raw, field),
            Shape::List(item) => {
                let items: Vec<&RawValue> = serde_json::from_str(raw.get()).unwrap_or_default();
                for (index, raw) in items.into_iter().enumerate() {
                    self.visit_value(item, raw, &format!("{field}/{index}"));
                }
            }
            Shape::Map(entry) => {
                for (name, raw) in members_of_object(raw) {
                    self.visit_value(entry, raw, &path_below(field, &name));
                }
            }
            Shape::Object(schema) => self.visit_object(schema, raw, field),
            Shape::Tagged(variants) => {
                for (name, raw) in members_of_object(raw) {
                    if let Some((_, content)) = variants.iter().find(|(known, _)| *known == name) {
                        self.visit_value(content, raw, &path_below(field, &name));
                    }
                }
            }
            _ => {
                // `raw` is a slice of `text`.
                let start = raw.get().as_ptr().addr() - self.text.as_ptr().addr();
                let range = start..start + raw.get().len();
                self.places.push(SecretLocation { range, field: field.to_owned() });
            }
        }
    }

    fn visit_object(&mut self, schema: &Schema, raw: &RawValue, field: &str) {
        for (name, raw) in members_of_object(raw) {
            if let Some(known) = schema.fields.iter().find(|known| known.name == name) {
                self.visit_value(&known.shape, raw, &path_below(field, &name));
            }
        }
    }
}

fn members_of_object(raw: &RawValue) -> Vec<(std::borrow::Cow<'_, str>, &RawValue)> {
    serde_json::from_str(raw.get()).map(|AllMembers(members)| members).unwrap_or_default()
}

fn path_below(field: &str, name: &str) -> String {
    let mut path = String::with_capacity(field.len() + name.len() + 1);
    let name = name.replace('~', "~0").replace('/', "~1");
    write!(path, "{field}/{name}").expect("a text can be written to");
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kind: Kind, text: &str) -> Vec<(String, String)> {
        let places = secret_locations(kind, text).unwrap();
        places.into_iter().map(|place| (place.field, text[place.range].to_owned())).collect()
    }

    #[test]
    fn every_specified_secret_field_is_secret() {
        let secret: Vec<&str> =
            Kind::ALL.iter().filter(|kind| kind.holds_secrets()).map(|kind| kind.name()).collect();
        assert_eq!(
            secret,
            [
                "GlobalMetricsProvider",
                "MetricsProvider",
                "GlobalInfrastructureProvider",
                "InfrastructureProvider",
                "GlobalCloud",
                "Cloud",
                "Application",
                "Cluster",
                "Project",
            ]
        );
        for (kind, text, expected) in [
            (
                Kind::Cluster,
                r#"{"spec": {"kubeconfig": {"users": [1]}, "tosca": {"a": 1}}}"#,
                &[("/spec/kubeconfig", r#"{"users": [1]}"#)][..],
            ),
            (
                Kind::MetricsProvider,
                r#"{"spec": {"type": "influx", "influx": {"url": "u", "token": "t", "org": "o", "bucket": "b"}}}"#,
                &[("/spec/influx/token", r#""t""#)],
            ),
            (
                Kind::Application,
                r#"{"spec": {"manifest": [{"kind": "Secret"}]}, "status": {"complete_token": "a", "complete_key": null,
                    "shutdown_key": "b\u0022", "complete_cert": "c"}}"#,
                &[("/status/complete_token", r#""a""#), ("/status/shutdown_key", r#""b\u0022""#)],
            ),
            (
                Kind::Cluster,
                r#"{"spec": {"kubeconfig": 1, "kubeconfig": {}}}"#,
                &[("/spec/kubeconfig", "1"), ("/spec/kubeconfig", "{}")],
            ),
            (Kind::Cluster, r#"{"spec": [{"kubeconfig": {}}]}"#, &[]),
            (Kind::Role, r#"{"token": "t"}"#, &[]),
        ] {
            let expected: Vec<_> =
                expected.iter().map(|(field, value)| ((*field).to_owned(), (*value).to_owned())).collect();
            assert_eq!(found(kind, text), expected);
        }
        assert!(secret_locations(Kind::Cluster, "{").is_err());
    }

    #[test]
    fn replacement_takes_the_place_of_the_secret() {
        let text = r#"{ "status":{"complete_token" :"a" ,"shutdown_token": "ä"}, "later": 1e400 }"#;
        let places = secret_locations(Kind::Application, text).unwrap();
        let values: Vec<_> = places.into_iter().map(|place| (place.range, "[2]".to_owned())).collect();
        assert_eq!(
            replace_ranges(text, &values),
            r#"{ "status":{"complete_token" :[2] ,"shutdown_token": [2]}, "later": 1e400 }"#
        );
        assert_eq!(replace_ranges(text, &[]), text);
    }
}

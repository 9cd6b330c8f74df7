//! Types of the API in the document: of requests and of answers.

use std::collections::BTreeMap;

use madako_domain::placement::infrastructure::CloudBinding;
use madako_domain::placement::kind::{Kind, Subresource};
use madako_domain::placement::kubernetes::{ApplicationComplete, ApplicationShutdown, ClusterBinding};
use madako_domain::placement::openstack::MagnumClusterBinding;
use madako_json::krake::schema::{Access, FieldSchema, Schema, Shape};
use serde_json::{Map, Value, json};

use super::rules;

/// Names of resources and namespaces.
pub(super) const NAME: &str = "^[A-Za-z0-9_]([A-Za-z0-9_.:-]{0,253}[A-Za-z0-9_])?$";
pub(super) const LABEL: &str = "^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9_])?$";
pub(super) const LABEL_KEY: &str =
    "^([A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?/)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9_])?$";
/// Points in time: the common subset of the accepted forms.
const TIME: &str = "^[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\
    ([.][0-9]{1,6})?(Z|[+-](0[0-9]|1[0-3]):[0-5][0-9])?$";
const NUMBER: &str = r"^[+-]?([0-9]{1,15}(\.[0-9]{0,15})?|\.[0-9]{1,15})$";
const WEIGHT: &str = r"^([0-9]{1,15}(\.[0-9]{0,15})?|\.[0-9]{1,15})$";
const INTEGER: &str = "^[+-]?[0-9]{1,15}$";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    /// In a request: fields of this project's extensions are allowed and ignored, other additional fields are not.
    Request,
    /// In an answer: every field, including those that another version has stored.
    Answer,
}

#[derive(Default)]
pub(super) struct Types {
    pub(super) named: BTreeMap<String, Value>,
}

impl Types {
    /// A reference to an object's description.
    pub(super) fn object_schema(&mut self, schema: &'static Schema, side: Direction) -> Value {
        let name = match side {
            Direction::Request => format!("{}Request", schema.name),
            Direction::Answer => schema.name.to_owned(),
        };
        if !self.named.contains_key(&name) {
            // Reserves the name, for types that contain themselves.
            self.named.insert(name.clone(), Value::Null);
            let described = self.describe(schema, side);
            self.named.insert(name.clone(), described);
        }
        schema_reference(&name)
    }

    fn describe(&mut self, schema: &'static Schema, side: Direction) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for (name, value) in schema.constants {
            properties.insert((*name).to_owned(), json!({"const": value}));
            if side == Direction::Answer {
                required.push(*name);
            }
        }
        for field in schema.fields {
            properties.insert(field.name.to_owned(), self.field_schema(field, side));
            let given = matches!(field.access, Access::Required | Access::Immutable);
            if side == Direction::Answer || given {
                required.push(field.name);
            }
        }
        if side == Direction::Answer {
            return json!({"type": "object", "required": required, "properties": properties});
        }
        for name in schema.tolerated {
            properties.insert((*name).to_owned(), json!({"description": "Passed over."}));
        }
        let mut described = json!({
            "type": "object", "required": required, "properties": properties, "additionalProperties": false,
        });
        rules::add_rules(schema.name, &mut described);
        described
    }

    fn field_schema(&mut self, field: &'static FieldSchema, side: Direction) -> Value {
        if side == Direction::Request && field.access.is_ours() {
            return json!({"description": "Passed over.", "readOnly": true});
        }
        if side == Direction::Request
            && matches!(field.name, "name" | "namespace")
            && field.access.is_immutable()
        {
            let name = json!({"type": "string", "pattern": NAME});
            return match field.shape {
                Shape::Nullable(_) => json!({"anyOf": [name, {"type": "null"}]}),
                _ => name,
            };
        }
        if side == Direction::Request && field.name == "weight" {
            return json!({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": WEIGHT}]});
        }
        if side == Direction::Request && field.name == "labels" && matches!(field.shape, Shape::Map(_)) {
            let value = json!({"type": "string", "pattern": LABEL});
            return json!({"type": "object", "propertyNames": {"pattern": LABEL_KEY}, "additionalProperties": value});
        }
        self.shape_schema(&field.shape, side)
    }

    fn shape_schema(&mut self, shape: &'static Shape, side: Direction) -> Value {
        let or_text = |number: Value, pattern: &str| match side {
            Direction::Answer => number,
            Direction::Request => json!({"anyOf": [number, {"type": "string", "pattern": pattern}]}),
        };
        match shape {
            // A stored resource may contain a constraint that requests may no longer contain.
            Shape::LabelConstraint | Shape::MetricConstraint if side == Direction::Request => {
                let pattern = shape.pattern().map(|pattern| format!("^(?:{pattern})$"));
                json!({"type": "string", "pattern": pattern})
            }
            Shape::Time if side == Direction::Request => json!({"type": "string", "pattern": TIME}),
            Shape::Text | Shape::Secret | Shape::Time | Shape::LabelConstraint | Shape::MetricConstraint => {
                json!({"type": "string"})
            }
            Shape::Bool => json!({"type": "boolean"}),
            Shape::Integer => {
                let number =
                    json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX, "format": "int64"});
                or_text(number, INTEGER)
            }
            Shape::Number => or_text(json!({"type": "number"}), NUMBER),
            Shape::Choice(names) => json!({"enum": names}),
            Shape::List(item) => json!({"type": "array", "items": self.shape_schema(item, side)}),
            Shape::Map(entry) => {
                json!({"type": "object", "additionalProperties": self.shape_schema(entry, side)})
            }
            Shape::Nullable(shape) => json!({"anyOf": [self.shape_schema(shape, side), {"type": "null"}]}),
            Shape::Object(schema) => self.object_schema(schema, side),
            Shape::Tagged(variants) => {
                let variants: Vec<Value> = variants
                    .iter()
                    .map(|(name, content)| {
                        let properties =
                            json!({"type": {"const": name}, *name: self.shape_schema(content, side)});
                        let mut variant =
                            json!({"type": "object", "required": ["type", name], "properties": properties});
                        if side == Direction::Request {
                            variant["additionalProperties"] = json!(false);
                        }
                        variant
                    })
                    .collect();
                json!({"oneOf": variants})
            }
            Shape::FreeForm | Shape::SecretFreeForm => json!({"type": "object"}),
            Shape::TextOrFreeForm => json!({"anyOf": [{"type": "string"}, {"type": "object"}]}),
        }
    }

    /// The body of a request for a part; `None` if it has none.
    pub(super) fn subresource_schema(&mut self, kind: Kind, part: Subresource) -> Option<Value> {
        let schema = match (part, kind) {
            (Subresource::Retry, _) => return None,
            (Subresource::Status, _) => return Some(self.status_schema(kind)),
            (Subresource::Complete, _) => &ApplicationComplete::SCHEMA,
            (Subresource::Shutdown, _) => &ApplicationShutdown::SCHEMA,
            (Subresource::Binding, Kind::Cluster) => &CloudBinding::SCHEMA,
            (Subresource::Binding, Kind::MagnumCluster) => &MagnumClusterBinding::SCHEMA,
            (Subresource::Binding, _) => &ClusterBinding::SCHEMA,
        };
        let described = self.object_schema(schema, Direction::Request);
        let targets: &[Kind] = match (part, kind) {
            (Subresource::Binding, Kind::Cluster) => &[Kind::Cloud, Kind::GlobalCloud],
            (Subresource::Binding, Kind::MagnumCluster) => &[Kind::Project],
            (Subresource::Binding, _) => &[Kind::Cluster],
            _ => return Some(described),
        };
        // The target of a binding is always the first field.
        if let Some(field) = schema.fields.first() {
            let described = self.named.entry(format!("{}Request", schema.name)).or_default();
            described["properties"][field.name] =
                json!({"oneOf": targets.iter().map(reference_schema).collect::<Vec<_>>()});
        }
        Some(described)
    }

    /// A whole resource of which only the status is used.
    fn status_schema(&mut self, kind: Kind) -> Value {
        let schema = kind.schema();
        let mut properties = Map::new();
        for (name, value) in schema.constants {
            properties.insert((*name).to_owned(), json!({"const": value}));
        }
        for field in schema.fields {
            let described = match field.name {
                "status" => self.shape_schema(&field.shape, Direction::Request),
                _ => json!({"type": "object", "description": "Passed over."}),
            };
            properties.insert(field.name.to_owned(), described);
        }
        let required: Vec<_> = schema.fields.iter().map(|field| field.name).collect();
        json!({"type": "object", "required": required, "properties": properties, "additionalProperties": false})
    }

    pub(super) fn list(&mut self, kind: Kind, item: &Value) -> Value {
        let name = format!("{}List", kind.name());
        let metadata = json!({"type": "object", "properties": {"continue": {"type": "string"}}});
        let described = json!({
            "type": "object",
            "required": ["api", "kind", "metadata", "items"],
            "properties": {
                "api": {"const": kind.api().name()}, "kind": {"const": name},
                "metadata": metadata, "items": {"type": "array", "items": item},
            },
        });
        self.named.insert(name.clone(), described);
        schema_reference(&name)
    }
}

fn reference_schema(kind: &Kind) -> Value {
    let name = json!({"type": "string"});
    let (namespace, required) = match kind.namespaced() {
        true => (name.clone(), json!(["api", "kind", "name", "namespace"])),
        false => (json!({"type": "null"}), json!(["api", "kind", "name"])),
    };
    let (api, known) = (json!({"const": kind.api().name()}), json!({"const": kind.name()}));
    let properties = json!({"api": api, "kind": known, "name": name, "namespace": namespace});
    json!({"type": "object", "required": required, "properties": properties, "additionalProperties": false})
}

pub(super) fn schema_reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

//! Random documents of any kind, generated from the schemas, so that new fields are tested without a change here.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::string::string_regex;
use serde_json::{Map, Value, json};

use crate::placement::kind::Kind;
use madako_json::krake::schema::{Access, FieldSchema, Rule, Schema, Shape};

/// A resource with all fields of the service, as the store has it and as clients send it back.
pub(super) fn any_document() -> impl Strategy<Value = (Kind, Value)> {
    let of = |kind: &Kind| {
        let kind = *kind;
        object(kind.schema(), kind).prop_map(move |document| (kind, document)).boxed()
    };
    proptest::strategy::Union::new(Kind::ALL.iter().map(of))
}

/// Texts that match one of a schema's patterns.
pub(super) fn matching(pattern: &str) -> impl Strategy<Value = String> + use<> {
    let whole = pattern.strip_prefix('^').and_then(|pattern| pattern.strip_suffix('$'));
    string_regex(whole.expect("a pattern is for the whole text")).expect("a regular expression")
}

fn object(schema: &'static Schema, kind: Kind) -> BoxedStrategy<Value> {
    let constants = any::<bool>().prop_map(|there| {
        let constants = schema.constants.iter().filter(|_| there);
        constants.map(|(name, value)| ((*name).to_owned(), json!(value))).collect::<Map<_, _>>()
    });
    schema
        .fields
        .iter()
        .fold(constants.boxed(), |fields, field| {
            let optional = matches!(
                field.access,
                Access::Optional | Access::OptionalImmutable | Access::ReadonlyOptional | Access::Subresource
            );
            let value = value(schema, field, kind);
            let value = if optional && !has_to_be_there(schema, field) {
                proptest::option::weighted(0.5, value).boxed()
            } else {
                value.prop_map(Some).boxed()
            };
            (fields, value)
                .prop_map(|(mut fields, value)| {
                    fields.extend(value.map(|value| (field.name.to_owned(), value)));
                    fields
                })
                .boxed()
        })
        .prop_map(Value::Object)
        .boxed()
}

/// Optional fields that a rule requires.
fn has_to_be_there(schema: &Schema, field: &FieldSchema) -> bool {
    matches!((schema.name, field.name), ("ImSpec", "token") | ("ClusterSpec", "kubeconfig"))
}

fn value(schema: &'static Schema, field: &'static FieldSchema, kind: Kind) -> BoxedStrategy<Value> {
    match (schema.name, field.name) {
        ("ApplicationSpec", "manifest") => {
            proptest::collection::vec(manifest(), 1..3).prop_map(Value::from).boxed()
        }
        ("ApplicationSpec", "tosca") => prop_oneof![
            Just(json!({})),
            Just(json!("https://example.com/template.yaml")),
            Just(json!({"tosca_definitions_version": "tosca_simple_yaml_1_0"})),
        ]
        .boxed(),
        ("ApplicationSpec", "csar") => select(&[None, Some("a.csar"), Some("https://example.com/a.zip")][..])
            .prop_map(Value::from)
            .boxed(),
        // The rules of observer schemas have their own examples.
        ("ApplicationSpec", "observer_schema") => Just(json!([])).boxed(),
        ("ClusterSpec", "kubeconfig") => Just(kubeconfig()).boxed(),
        ("ClusterSpec", "tosca") => prop_oneof![
            Just(json!({})),
            Just(json!({
                "tosca_definitions_version": "tosca_simple_yaml_1_0",
                "topology_template": {"outputs": {"kubeconfig": {"value": "it"}}},
            })),
        ]
        .boxed(),
        ("ImSpec", "token") => text().boxed(),
        (_, "namespaced") if kind == Kind::GlobalCloud => Just(json!(false)).boxed(),
        _ => match field.rule {
            Some(Rule::Name) => {
                let name = matching(Rule::Name.pattern().expect("names have one")).prop_map(Value::from);
                if let Shape::Nullable(_) = field.shape {
                    prop_oneof![3 => name, 1 => Just(Value::Null)].boxed()
                } else {
                    name.boxed()
                }
            }
            Some(rule @ Rule::Labels) => {
                let key = matching(rule.key_pattern().expect("labels have one"));
                let value = matching(rule.pattern().expect("labels have one")).prop_map(Value::from);
                map(key, value)
            }
            Some(Rule::NotNegative) => (0.0..1e9_f64).prop_map(Value::from).boxed(),
            None => shape(&field.shape, kind),
        },
    }
}

fn shape(shape: &'static Shape, kind: Kind) -> BoxedStrategy<Value> {
    match shape {
        Shape::Text | Shape::Secret => text().boxed(),
        Shape::LabelConstraint => {
            matching(shape.pattern().expect("a language has one")).prop_map(Value::from).boxed()
        }
        // The pattern also allows numbers beyond every float.
        Shape::MetricConstraint => {
            "[a-z]{1,5} ?(>|<=|==|!=) ?[0-9]{1,5}(\\.5)?".prop_map(Value::from).boxed()
        }
        Shape::Bool => any::<bool>().prop_map(Value::from).boxed(),
        Shape::Integer => any::<i64>().prop_map(Value::from).boxed(),
        Shape::Number => prop_oneof![
            any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
        ]
        .boxed(),
        Shape::Time => time().prop_map(Value::from).boxed(),
        Shape::Choice(names) => select(*names).prop_map(Value::from).boxed(),
        Shape::List(item) => {
            proptest::collection::vec(self::shape(item, kind), 0..3).prop_map(Value::from).boxed()
        }
        Shape::Map(entry) => map(any::<String>(), self::shape(entry, kind)),
        Shape::Nullable(some) => prop_oneof![3 => self::shape(some, kind), 1 => Just(Value::Null)].boxed(),
        Shape::Object(schema) => object(schema, kind),
        Shape::Tagged(variants) => proptest::strategy::Union::new(variants.iter().map(|(name, content)| {
            self::shape(content, kind).prop_map(move |content| json!({"type": name, *name: content})).boxed()
        }))
        .boxed(),
        Shape::FreeForm | Shape::SecretFreeForm => free_object().boxed(),
        Shape::TextOrFreeForm => prop_oneof![text(), free_object()].boxed(),
    }
}

fn text() -> impl Strategy<Value = Value> {
    any::<String>().prop_map(Value::from)
}

fn map(
    name: impl Strategy<Value = String> + 'static,
    value: impl Strategy<Value = Value> + 'static,
) -> BoxedStrategy<Value> {
    proptest::collection::vec((name, value), 0..3)
        .prop_map(|entries| Value::Object(entries.into_iter().collect()))
        .boxed()
}

fn time() -> impl Strategy<Value = String> {
    let fraction = select(&["", ".5", ".000001", ".123456"][..]);
    let offset = select(&["", "Z", "+00:00", "+02:30", "-0800"][..]);
    (1970..2100_i32, 1..13_u8, 1..29_u8, 0..86_400_u32, fraction, offset).prop_map(
        |(year, month, day, second, fraction, offset)| {
            let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
            format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}{offset}")
        },
    )
}

fn free() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(Value::from),
        text(),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            map(any::<String>(), inner),
        ]
    })
}

fn free_object() -> impl Strategy<Value = Value> {
    map(any::<String>(), free())
}

fn manifest() -> impl Strategy<Value = Value> {
    ("[a-z]{1,8}", free()).prop_map(|(name, spec)| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": spec})
    })
}

pub(super) fn kubeconfig() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "here", "user": "me"}}],
        "users": [{"name": "me", "user": {"token": "of-the-kubeconfig"}}],
        "clusters": [{"name": "here", "cluster": {"server": "https://127.0.0.1:6443"}}],
    })
}

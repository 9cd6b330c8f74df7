//! An untyped value in input order: the common model of YAML and JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::value::RawValue;

use crate::limits::{MAX_SCALAR_SHOWN, MAX_TREE_DEPTH};

/// An untyped value of YAML or JSON.
#[derive(Debug, Clone, PartialEq)]
pub enum Tree {
    /// `null`, or an empty YAML value.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer or a float.
    Number(Number),
    /// A string.
    Text(String),
    /// Items in input order.
    List(Vec<Tree>),
    /// Fields in input order, without duplicates.
    Object(Vec<(String, Tree)>),
}

/// A number in the classes that Go's decoders distinguish.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// An integer of 64 bits.
    Integer(i64),
    /// An integer above the range of [`Number::Integer`].
    Large(u64),
    /// A number with a fraction or an exponent.
    Float(f64),
}

impl Tree {
    /// Reads JSON text.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Reads stored JSON, where a number may exceed every float. Such a number becomes infinite, which is wrong where
    /// a number is expected and harmless elsewhere.
    pub fn from_stored(text: &str) -> Result<Self, serde_json::Error> {
        Self::from_raw(serde_json::from_str(text)?, 0)
    }

    fn from_raw(raw: &RawValue, depth: usize) -> Result<Self, serde_json::Error> {
        if depth > MAX_TREE_DEPTH {
            return Err(serde_json::Error::custom(format_args!(
                "more than {MAX_TREE_DEPTH} levels of nesting"
            )));
        }
        let text = raw.get();
        Ok(match text.as_bytes().first() {
            Some(b'{') => {
                let fields: RawFields<'_> = serde_json::from_str(text)?;
                let read = |(name, value)| Ok((name, Self::from_raw(value, depth + 1)?));
                Self::Object(fields.0.into_iter().map(read).collect::<Result<_, serde_json::Error>>()?)
            }
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(text)?;
                let read = |value| Self::from_raw(value, depth + 1);
                Self::List(items.into_iter().map(read).collect::<Result<_, _>>()?)
            }
            Some(b'-' | b'0'..=b'9') => {
                Self::from_json(text).unwrap_or(Self::Number(Number::Float(f64::INFINITY)))
            }
            _ => Self::from_json(text)?,
        })
    }

    /// The fields of an object; empty for any other value.
    #[must_use]
    pub fn fields(&self) -> &[(String, Tree)] {
        match self {
            Self::Object(fields) => fields,
            _ => &[],
        }
    }

    /// A field of an object, with Go's matching: by its exact name, else in any case. `null` counts as absent.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tree> {
        let fields = self.fields();
        fields
            .iter()
            .find(|(known, _)| known == name)
            .or_else(|| fields.iter().rfind(|(known, _)| known.eq_ignore_ascii_case(name)))
            .map(|(_, value)| value)
            .filter(|value| **value != Self::Null)
    }

    /// The items of a list; empty for any other value.
    #[must_use]
    pub fn items(&self) -> &[Tree] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// The string; `None` for any other value.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The kind of value in words, without the value.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(Number::Float(_)) => "a fraction",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }

    /// The value, shortened, for a message.
    #[must_use]
    pub fn short_text(&self) -> String {
        match self {
            Self::Null | Self::List(_) | Self::Object(_) => self.kind().to_owned(),
            Self::Bool(value) => value.to_string(),
            // Keep the point of a float without a fraction: it may be the mistake.
            Self::Number(Number::Float(value)) => format!("the number {value:?}"),
            Self::Number(number) => format!("the number {number}"),
            Self::Text(text) => shown_text(text),
        }
    }
}

/// A text in quotes, shortened, for a message.
#[must_use]
pub fn shown_text(text: &str) -> String {
    match text.char_indices().nth(MAX_SCALAR_SHOWN) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}...", &text[..end]),
    }
}

impl Number {
    /// The nearest float.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "an integer beyond a float's precision exceeds each setting"
    )]
    pub fn to_float(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Large(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// False for a number that exceeds every float.
    pub fn is_finite(self) -> bool {
        self.to_float().is_finite()
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Integer(value) => write!(f, "{value}"),
            Self::Large(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{}", go_float(value)),
        }
    }
}

/// A float in the notation of Go's `encoding/json`: without a point if there is no fraction, exponents only from
/// 10^21 up and below 10^-6. CKE's types can read such a float as an integer.
fn go_float(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{value:e}");
        // Rust writes 1e21, Go 1e+21.
        match text.split_once('e') {
            Some((digits, exponent)) if !exponent.starts_with('-') => format!("{digits}e+{exponent}"),
            _ => text,
        }
    } else {
        format!("{value}")
    }
}

impl Serialize for Tree {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(Number::Integer(value)) => serializer.serialize_i64(*value),
            Self::Number(Number::Large(value)) => serializer.serialize_u64(*value),
            Self::Number(Number::Float(value)) => serializer.serialize_f64(*value),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => items.serialize(serializer),
            Self::Object(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                for (name, value) in fields {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
    }
}

/// Writes JSON; [`go_float`] says why serde_json's writer does not fit.
impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every string has a JSON form.
        let quoted = |text: &str| serde_json::to_string(text).map_err(|_| fmt::Error);
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(&quoted(text)?),
            Self::List(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma}{item}")?;
                }
                f.write_str("]")
            }
            Self::Object(fields) => {
                f.write_str("{")?;
                for (index, (name, value)) in fields.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma}{}:{value}", quoted(name)?)?;
                }
                f.write_str("}")
            }
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

/// The fields of an object, unparsed. Of two with the same name the last one counts, as in Go.
struct RawFields<'de>(Vec<(String, &'de RawValue)>);

impl<'de> Deserialize<'de> for RawFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = RawFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields: Vec<(String, &RawValue)> = Vec::new();
                let mut places = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    match places.get(&name) {
                        Some(&place) => fields[place] = (name, value),
                        None => {
                            places.insert(name.clone(), fields.len());
                            fields.push((name, value));
                        }
                    }
                }
                Ok(RawFields(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Number(Number::Integer(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Number(i64::try_from(value).map_or(Number::Large(value), Number::Integer)))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Tree, E> {
        if !value.is_finite() {
            return Err(E::custom("a number that is not finite, which JSON cannot hold"));
        }
        Ok(Tree::Number(Number::Float(value)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Tree, E> {
        Ok(Tree::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Tree, E> {
        Ok(Tree::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut fields: Vec<(String, Tree)> = Vec::new();
        let mut names = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format_args!("a second field {}", shown_text(&name))));
            }
            fields.push((name, map.next_value()?));
        }
        Ok(Tree::Object(fields))
    }
}

//! An untyped value in the order of the input: what YAML and JSON have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::value::RawValue;

use crate::limits::{MAX_SCALAR_SHOWN, MAX_TREE_DEPTH};

/// An untyped value.
#[derive(Debug, Clone, PartialEq)]
pub enum Tree {
    /// Nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    Text(String),
    /// Items in the order of the input.
    List(Vec<Tree>),
    /// Fields in the order of the input, none twice.
    Object(Vec<(String, Tree)>),
}

/// A number, as Go's decoders tell them apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A whole number.
    Integer(i64),
    /// A whole number above what fits into [`Number::Integer`].
    Large(u64),
    /// A fraction, or a number with an exponent.
    Float(f64),
}

impl Tree {
    /// Reads JSON.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Reads JSON that was stored, where a number may be larger than any float: it becomes an infinite one,
    /// which is wrong wherever a number is expected and no matter anywhere else.
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

    /// The fields of an object; none for any other value.
    #[must_use]
    pub fn fields(&self) -> &[(String, Tree)] {
        match self {
            Self::Object(fields) => fields,
            _ => &[],
        }
    }

    /// A field of an object, found as Go finds it: by its exact name, else in any case. `null` is absent.
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

    /// The items of a list; none for any other value.
    #[must_use]
    pub fn items(&self) -> &[Tree] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// The text, if it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// What kind of value it is, without the value.
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
    pub fn shown(&self) -> String {
        match self {
            Self::Null | Self::List(_) | Self::Object(_) => self.kind().to_owned(),
            Self::Bool(value) => value.to_string(),
            // A whole float keeps its point, which may be what is wrong with it.
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
    /// Whether it is not beyond every float.
    pub fn is_finite(self) -> bool {
        !matches!(self, Self::Float(value) if !value.is_finite())
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

/// A float as Go's `encoding/json` writes it: whole numbers without a point, exponents only beyond
/// 10^21 and below 10^-6. So a whole float stays readable where CKE's types want an integer.
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

/// Writes JSON; see [`go_float`] for why this is not serde_json's.
impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A string always has a JSON form.
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

/// The fields of an object, unread. Of two with the same name the last one counts, as in Go.
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
                return Err(A::Error::custom(format_args!("the field {} is there twice", shown_text(&name))));
            }
            fields.push((name, map.next_value()?));
        }
        Ok(Tree::Object(fields))
    }
}

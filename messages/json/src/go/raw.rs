//! A JSON value that keeps its original text.

use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::value::RawValue;

/// A JSON value that this project does not interpret. It is read and written byte for byte, so big integers, `1.0`
/// and the order of fields do not change. Absent by default.
///
/// Two values are equal if their texts are equal. Only `serde_json` can read and write this type.
#[derive(Clone, Default)]
pub struct RawJson(Option<Box<RawValue>>);

impl RawJson {
    /// The text, or `None` if the field was absent.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.0.as_deref().map(RawValue::get)
    }

    /// True if the field was absent; serialization then leaves it out.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.0.is_none()
    }

    /// True if the field was absent or `null`, which Go does not distinguish.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.text().is_none_or(|text| text == "null")
    }

    /// Reads the text as a type; an absent field and `null` give the default.
    ///
    /// # Errors
    /// The text has another shape.
    pub fn parse<T: DeserializeOwned + Default>(&self) -> Result<T, serde_json::Error> {
        match self.text() {
            None => Ok(T::default()),
            Some(text) => Ok(serde_json::from_str::<Option<T>>(text)?.unwrap_or_default()),
        }
    }

    /// The same object with the text `default` at `path`, unless that field has a value. Missing objects on the path
    /// are created. All other fields stay unchanged.
    ///
    /// # Errors
    /// A value on the path is not an object.
    pub fn with_default(&self, path: &[&str], default: &str) -> Result<Self, serde_json::Error> {
        let Some((name, below)) = path.split_first() else {
            let given =
                if self.is_null() { serde_json::value::to_raw_value(default)?.into() } else { self.clone() };
            return Ok(given);
        };
        let mut fields: UnknownFields = self.parse()?;
        let known = fields.find(name);
        let value = known.map_or_else(Self::default, |index| fields.0[index].1.clone());
        let value = value.with_default(below, default)?;
        match known {
            Some(index) => fields.0[index].1 = value,
            None => fields.0.push(((*name).to_owned(), value)),
        }
        Ok(serde_json::value::to_raw_value(&fields)?.into())
    }

    /// Takes JSON text unchanged.
    ///
    /// # Errors
    /// The text is not one JSON value.
    pub fn from_text(text: String) -> Result<Self, serde_json::Error> {
        Ok(Self(Some(RawValue::from_string(text)?)))
    }
}

impl From<Box<RawValue>> for RawJson {
    fn from(value: Box<RawValue>) -> Self {
        Self(Some(value))
    }
}

impl From<&serde_json::Value> for RawJson {
    fn from(value: &serde_json::Value) -> Self {
        let text = value.to_string();
        Self(Some(RawValue::from_string(text).expect("a JSON value is written as JSON")))
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for RawJson {}

impl PartialOrd for RawJson {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RawJson {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text().cmp(&other.text())
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text().unwrap_or("absent"))
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self::from)
    }
}

/// Fields unknown to a type, in input order.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnknownFields(Vec<(String, RawJson)>);

impl UnknownFields {
    /// The fields as name and value, in input order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawJson)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The value of the field with exactly this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&RawJson> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// The index of a field, with Go's matching: by its exact name, else in any case.
    fn find(&self, name: &str) -> Option<usize> {
        let exact = self.0.iter().position(|(known, _)| known == name);
        exact.or_else(|| self.0.iter().rposition(|(known, _)| known.eq_ignore_ascii_case(name)))
    }

    /// True if no unknown field is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a field; a second one of the same name replaces the first, as in Go.
    pub fn push(&mut self, name: String, value: RawJson) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some(field) => field.1 = value,
            None => self.0.push((name, value)),
        }
    }
}

impl Serialize for UnknownFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for UnknownFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = UnknownFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UnknownFields, A::Error> {
                let mut fields = UnknownFields::default();
                while let Some((name, value)) = map.next_entry()? {
                    fields.push(name, value);
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

//! JSON objects whose schema another project defines: manifests, kubeconfigs, TOSCA templates.

use std::fmt;

use serde::ser::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::json;
use super::reader::{Field, Reader};
use super::schema::Shape;
use crate::strict::tree::Tree;
use crate::strict::walk::Path;

/// A JSON object that this project does not interpret. It keeps its text, so big numbers, `1.0` and the order of
/// fields do not change. Two objects are equal if their JSON values are equal. It may hold secrets, so `Debug` shows
/// its size only.
#[derive(Clone)]
pub struct JsonObject(Box<RawValue>);

impl JsonObject {
    /// Takes the text of an object.
    ///
    /// # Errors
    /// The text is not one JSON object.
    pub fn from_text(text: &str) -> Result<Self, serde_json::Error> {
        use serde::de::Error as _;
        let raw: &RawValue = serde_json::from_str(text)?;
        if !raw.get().starts_with('{') {
            return Err(serde_json::Error::custom("not an object"));
        }
        let text = json::with_spaces(raw.get());
        RawValue::from_string(text.into_owned()).map(Self)
    }

    /// The JSON as it was read.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// True if the object has no fields.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text()[1..].trim_start() == "}"
    }

    /// The parsed object.
    ///
    /// # Errors
    /// The stored text cannot be a document, for example because it has more than 127 levels of nesting.
    pub fn parse(&self) -> Result<serde_json::Map<String, serde_json::Value>, serde_json::Error> {
        serde_json::from_str(self.text())
    }
}

impl Default for JsonObject {
    fn default() -> Self {
        Self(RawValue::from_string("{}".to_owned()).expect("an empty object is JSON"))
    }
}

impl PartialEq for JsonObject {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text() || json::are_same_values(&self.0, &other.0)
    }
}

impl fmt::Debug for JsonObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{} bytes}}", self.text().len())
    }
}

impl Serialize for JsonObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl Field for JsonObject {
    const SHAPE: Shape = Shape::FreeForm;

    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self> {
        if !raw.get().starts_with('{') {
            reader.add_secret_problem(path, raw, "an object");
            return None;
        }
        if !reader.is_request() {
            // A stored object is kept, whatever it holds.
            return Some(Self(json::replace_infinite_numbers(raw)));
        }
        // The errors of this reader name fields and positions, never values.
        if let Err(error) = Tree::from_json(raw.get()) {
            let expected = "an object of finite numbers and Unicode texts, each field once";
            reader.note(path, format!("an object with an error: {error}"), expected);
            return None;
        }
        Some(Self(raw.to_owned()))
    }
}

/// A [`JsonObject`] that is a secret as a whole. `Debug` hides it.
#[derive(Clone, Default, PartialEq)]
pub struct SecretObject(JsonObject);

impl SecretObject {
    /// Marks an object as secret.
    #[must_use]
    pub fn new(object: JsonObject) -> Self {
        Self(object)
    }

    /// The secret object. Call this only where the content is used.
    #[must_use]
    pub fn reveal(&self) -> &JsonObject {
        &self.0
    }
}

impl fmt::Debug for SecretObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl Serialize for SecretObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl Field for SecretObject {
    const SHAPE: Shape = Shape::SecretFreeForm;

    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self> {
        JsonObject::read(raw, path, reader).map(Self)
    }
}

/// A TOSCA template or its URL.
#[derive(Debug, Clone, PartialEq)]
pub enum Tosca {
    /// The template itself.
    Template(JsonObject),
    /// The URL of the template.
    Url(String),
}

impl Tosca {
    /// True if neither a template nor a URL is given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Template(template) => template.is_empty(),
            Self::Url(url) => url.is_empty(),
        }
    }
}

impl Default for Tosca {
    fn default() -> Self {
        Self::Template(JsonObject::default())
    }
}

impl Serialize for Tosca {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Template(template) => template.serialize(serializer),
            Self::Url(url) => url.serialize(serializer),
        }
    }
}

impl Field for Tosca {
    const SHAPE: Shape = Shape::TextOrFreeForm;

    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self> {
        match raw.get().as_bytes().first() {
            Some(b'{') => JsonObject::read(raw, path, reader).map(Self::Template),
            Some(b'"') => String::read(raw, path, reader).map(Self::Url),
            _ => {
                reader.add_problem(path, raw, Self::SHAPE.expected());
                None
            }
        }
    }
}

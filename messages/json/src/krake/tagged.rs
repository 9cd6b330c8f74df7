//! The macro for JSON objects of several forms: `{"type": "static", "static": {...}}`.

use serde::Deserialize;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;

use super::reader::{Field, Reader, UnreadFields};
use super::schema::{FieldSchema, Shape};
use crate::strict::walk::Path;

/// The forms of a tagged object.
pub trait Variants: Sized {
    /// The forms: value of the field `type`, and shape of the content.
    const VARIANTS: &'static [(&'static str, Shape)];

    /// The fields of the form `tag`; `None` for an unknown tag and for a form that is not an object.
    fn fields(tag: &str) -> Option<&'static [FieldSchema]> {
        let (_, content) = Self::VARIANTS.iter().find(|(known, _)| *known == tag)?;
        if let Shape::Object(schema) = content { Some(schema.fields) } else { None }
    }

    /// The value of the field `type`.
    fn tag(&self) -> &'static str;

    /// Reads the content of the form `tag`, which is one of [`Self::VARIANTS`].
    fn read_content(tag: &str, raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self>;

    /// Writes the content under its tag.
    ///
    /// # Errors
    /// The writer failed.
    fn write_content<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error>;
}

/// A value whose field `type` names its form.
#[derive(Debug, Clone, PartialEq)]
pub struct Tagged<T> {
    /// The content of the form.
    pub value: T,
    /// Unknown fields, kept as their original text.
    pub rest: UnreadFields,
}

impl<T> From<T> for Tagged<T> {
    fn from(value: T) -> Self {
        Self { value, rest: UnreadFields::default() }
    }
}

impl<T: Variants> Field for Tagged<T> {
    const SHAPE: Shape = Shape::Tagged(T::VARIANTS);

    fn read(raw: &RawValue, path: Path<'_>, reader: &mut Reader) -> Option<Self> {
        let mut members = reader.any_members(raw, path)?;
        let names: Vec<&'static str> = T::VARIANTS.iter().map(|(name, _)| *name).collect();
        let expected = || Shape::Choice(&[]).expected() + &names.join(", ");
        let Some(tag) = members.take("type") else {
            reader.note(path.field("type"), "", expected());
            return None;
        };
        let given: Option<String> = serde_json::from_str(tag.get()).ok();
        let Some(&tag) = names.iter().find(|name| given.as_deref() == Some(**name)) else {
            reader.add_problem(path.field("type"), tag, expected());
            return None;
        };
        let Some(content) = members.take(tag) else {
            reader.note(path.field(tag), "", "an object");
            return None;
        };
        let value = T::read_content(tag, content, path.field(tag), reader);
        if reader.is_request() {
            for (name, _) in members.into_entries() {
                reader.report_unknown_field(&name, path, ["type", tag].into_iter());
            }
            return value.map(Self::from);
        }
        Some(Self { value: value?, rest: members.into_unread_fields() })
    }
}

impl<T: Variants> Serialize for Tagged<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", self.value.tag())?;
        self.value.write_content(&mut map)?;
        for (name, value) in self.rest.iter() {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de, T: Variants> Deserialize<'de> for Tagged<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        super::document::deserialize(deserializer)
    }
}

/// Defines an enum of the forms of a tagged object.
#[macro_export]
macro_rules! variants {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[$variant_meta:meta])* $variant:ident($content:ty) = $tag:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub enum $name {
            $($(#[$variant_meta])* $variant($content),)*
        }

        impl $crate::krake::tagged::Variants for $name {
            const VARIANTS: &'static [(&'static str, $crate::krake::schema::Shape)] =
                &[$(($tag, <$content as $crate::krake::reader::Field>::SHAPE)),*];

            fn tag(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $tag,)*
                }
            }

            fn read_content(
                tag: &str,
                raw: &serde_json::value::RawValue,
                path: $crate::strict::walk::Path<'_>,
                reader: &mut $crate::krake::reader::Reader,
            ) -> Option<Self> {
                match tag {
                    $($tag => $crate::krake::reader::Field::read(raw, path, reader).map(Self::$variant),)*
                    _ => None,
                }
            }

            fn write_content<M: serde::ser::SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
                match self {
                    $(Self::$variant(content) => map.serialize_entry($tag, content),)*
                }
            }
        }
    };
}
pub use variants;

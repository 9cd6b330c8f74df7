//! The macro that defines a struct together with its Go-like JSON form.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Visitor};

/// A field's name, borrowed from the input where that is possible.
pub struct FieldName<'de>(pub Cow<'de, str>);

impl<'de> Deserialize<'de> for FieldName<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl<'de> Visitor<'de> for Name {
            type Value = FieldName<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field's name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
                Ok(FieldName(Cow::Borrowed(name)))
            }

            fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
                Ok(FieldName(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(Name)
    }
}

/// Adds the name of the field to a deserialization error.
pub fn add_field_to_error<E: serde::de::Error>(name: &str, error: E) -> E {
    E::custom(format_args!("{name}: {error}"))
}

/// Defines a struct whose JSON is that of a Go struct.
///
/// A field is `pub name: Type = "json-name"`, optionally followed by `as Wrapper` (a type with the JSON
/// form, converted with `From` both ways) or `omit path` (a predicate: the field is left out when it
/// holds, Go's `omitempty`). A struct that ends in `..rest` keeps unknown fields; one that ends in
/// `..drop` ignores them. `typed` after that makes the struct the schema of typed input, too: `omit` is `OmitEmpty`
/// there, and `is kind` gives the kind of a field if its type does not.
#[macro_export]
macro_rules! go_object {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $(
                $(#[$field_meta:meta])*
                pub $field:ident: $type:ty = $json:literal $(as $wrapper:ty)? $(, omit $omit:path)? $(, is $kind:expr)?;
            )*
            ..rest $($typed:ident)?
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
            /// Unknown fields, kept as their original text.
            pub rest: $crate::go::UnknownFields,
        }

        $crate::go::go_object!(@read $name { $($field: $type = $json $(as $wrapper)?;)* } rest);
        $crate::go::go_object!(@write $name { $($field = $json $(as $wrapper)? $(, omit $omit)?;)* } rest);
        $crate::go::go_object!(@schema [$($typed)?] $name { $($json: $type $(, omit $omit)? $(, is $kind)?;)* });
    };
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $(
                $(#[$field_meta:meta])*
                pub $field:ident: $type:ty = $json:literal $(as $wrapper:ty)? $(, omit $omit:path)? $(, is $kind:expr)?;
            )*
            ..drop $($typed:ident)?
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        $crate::go::go_object!(@read $name { $($field: $type = $json $(as $wrapper)?;)* });
        $crate::go::go_object!(@write $name { $($field = $json $(as $wrapper)? $(, omit $omit)?;)* });
        $crate::go::go_object!(@schema [$($typed)?] $name { $($json: $type $(, omit $omit)? $(, is $kind)?;)* });
    };

    (@schema [] $($fields:tt)*) => {};
    (@schema [typed] $name:ident { $($json:literal: $type:ty $(, omit $omit:path)? $(, is $kind:expr)?;)* }) => {
        impl $crate::strict::HasSchema for $name {
            const SCHEMA: &'static $crate::strict::Schema = &$crate::strict::Schema {
                fields: &[$(($json, $crate::go::go_object!(@kind $type $(, omit $omit)? $(, is $kind)?))),*],
            };
        }
    };
    (@kind $type:ty $(, omit $omit:path)?, is $kind:expr) => {
        $kind
    };
    (@kind $type:ty, omit $omit:path) => {
        $crate::strict::Kind::OmitEmpty(&<$type as $crate::strict::HasKind>::KIND)
    };
    (@kind $type:ty) => {
        <$type as $crate::strict::HasKind>::KIND
    };

    (@read $name:ident { $($field:ident: $type:ty = $json:literal $(as $wrapper:ty)?;)* } $($rest:ident)?) => {
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Fields;
                impl<'de> serde::de::Visitor<'de> for Fields {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        // Start from Go's zero values. Names match exactly first, then in any case.
                        $(let mut $field: $type = $crate::go::go_object!(@zero $($wrapper)?);)*
                        $(let mut $rest = $crate::go::UnknownFields::default();)?
                        while let Some(key) = map.next_key::<$crate::go::FieldName<'de>>()? {
                            let key = key.0;
                            match &*key {
                                $($json => $crate::go::go_object!(@assign $field, $json, map, $type $(, $wrapper)?),)*
                                $(other if other.eq_ignore_ascii_case($json) => {
                                    $crate::go::go_object!(@assign $field, $json, map, $type $(, $wrapper)?);
                                })*
                                _ => $crate::go::go_object!(@unknown map, key $(, $rest)?),
                            }
                        }
                        Ok($name {
                            $($field,)*
                            $($rest,)?
                        })
                    }
                }
                deserializer.deserialize_map(Fields)
            }
        }
    };
    (@zero) => {
        Default::default()
    };
    (@zero $wrapper:ty) => {
        <$wrapper>::default().into()
    };
    (@assign $field:ident, $json:literal, $map:ident, $type:ty) => {
        if let Some(value) = $map.next_value::<Option<$type>>().map_err(|error| $crate::go::add_field_to_error($json, error))? {
            $field = value;
        }
    };
    (@assign $field:ident, $json:literal, $map:ident, $type:ty, $wrapper:ty) => {
        if let Some(value) = $map.next_value::<Option<$wrapper>>().map_err(|error| $crate::go::add_field_to_error($json, error))? {
            $field = value.into();
        }
    };
    (@unknown $map:ident, $key:ident) => {{
        drop($key);
        $map.next_value::<serde::de::IgnoredAny>()?;
    }};
    (@unknown $map:ident, $key:ident, $rest:ident) => {
        $rest.push($key.into_owned(), $map.next_value()?)
    };

    (@write $name:ident { $($field:ident = $json:literal $(as $wrapper:ty)? $(, omit $omit:path)?;)* } $($rest:ident)?) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap as _;
                let mut map = serializer.serialize_map(None)?;
                $(
                    $(if !$omit(&self.$field))? {
                        $crate::go::go_object!(@entry map, $json, &self.$field $(, $wrapper)?);
                    }
                )*
                $(
                    for (key, value) in self.$rest.iter() {
                        map.serialize_entry(key, value)?;
                    }
                )?
                map.end()
            }
        }
    };
    (@entry $map:ident, $json:literal, $value:expr) => {
        $map.serialize_entry($json, $value)?
    };
    (@entry $map:ident, $json:literal, $value:expr, $wrapper:ty) => {
        $map.serialize_entry($json, &<$wrapper>::from($value.clone()))?
    };
}
pub use go_object;

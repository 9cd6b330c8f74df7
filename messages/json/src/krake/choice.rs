//! The macro for enumerations with JSON names.

/// Defines an enum whose values have JSON names.
#[macro_export]
macro_rules! choice {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)*
        }

        impl $name {
            /// Every value, in Krake's order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];
            /// The JSON names, in the order of `ALL`.
            pub const NAMES: &[&str] = &[$($text),*];

            /// The JSON name.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// The value with this JSON name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($text => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::krake::document::deserialize(deserializer)
            }
        }

        impl $crate::krake::reader::Field for $name {
            const SHAPE: $crate::krake::schema::Shape =
                $crate::krake::schema::Shape::Choice(Self::NAMES);

            fn read(
                raw: &serde_json::value::RawValue,
                path: $crate::strict::walk::Path<'_>,
                reader: &mut $crate::krake::reader::Reader,
            ) -> Option<Self> {
                let name = serde_json::from_str::<std::borrow::Cow<'_, str>>(raw.get()).ok();
                let value = name.and_then(|name| Self::from_name(&name));
                if value.is_none() {
                    reader.wrong(path, raw, Self::SHAPE.expected());
                }
                value
            }
        }
    };
}
pub use choice;

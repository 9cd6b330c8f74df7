//! The macro that defines an enumeration with its names in JSON.

/// Defines an enum whose values have JSON names.
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
        #[derive(strum::Display, strum::EnumString, strum::IntoStaticStr, strum::VariantArray, strum::VariantNames)]
        pub enum $name {
            $($(#[$variant_meta])* #[serde(rename = $text)] #[strum(serialize = $text)] $variant,)*
        }

        $crate::named!($name all names);

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
                let value = name.and_then(|name| name.parse().ok());
                if value.is_none() {
                    reader.add_problem(path, raw, Self::SHAPE.expected());
                }
                value
            }
        }
    };
}
pub use named_enum;

//! The macro for Go's string "enums": known names, and `Other` for any other name.

/// Defines an enum of known strings with `Other` for the names of newer versions.
#[macro_export]
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, strum::AsRefStr, strum::Display, strum::EnumString)]
        pub enum $name {
            $($(#[$variant_meta])* #[strum(serialize = $text)] $variant,)*
            /// An unknown name; empty when the input gave none.
            #[strum(default, transparent)]
            Other(String),
        }

        impl $name {
            /// Every known value, in CKE's order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name in JSON, also for `Other`.
            #[must_use]
            pub fn as_str(&self) -> &str {
                self.as_ref()
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::Other(String::new())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Ok(Self::from(String::deserialize(deserializer)?.as_str()))
            }
        }
    };
}
pub use open_enum;

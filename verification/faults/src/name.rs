//! Closed sets of names in the language: acts, targets, kinds of clients, counts.

use madako_json::strict::{nearest, shown_text};

pub(crate) trait Named: Copy + 'static {
    /// In the order of documentation and messages.
    const ALL: &'static [Self];

    fn name(self) -> &'static str;

    /// Finds the member with this name. The error lists the expected names, the nearest one apart.
    fn named(text: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|one| one.name() == text).ok_or_else(|| {
            let names = || Self::ALL.iter().map(|one| one.name());
            let all = names().collect::<Vec<_>>().join(", ");
            match nearest(text, names()) {
                Some(near) => format!("one of {all}; {near:?}, perhaps"),
                None => format!("one of {all}"),
            }
        })
    }
}

/// Implements [`Named`], `ALL`, `Display` and `Serialize`.
macro_rules! named {
    ($type:ty: $($variant:ident = $name:literal),+ $(,)?) => {
        impl $crate::name::Named for $type {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl $type {
            /// In the order of documentation and messages.
            pub const ALL: &'static [Self] = <Self as $crate::name::Named>::ALL;
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad($crate::name::Named::name(*self))
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str($crate::name::Named::name(*self))
            }
        }
    };
}
pub(crate) use named;

/// Bytes of the name of a scenario or a provider: Kubernetes' limit on labels, so that the name can be a label.
const MAX_NAME: usize = 63;

/// The form of a name that a user chooses, for messages.
pub(crate) const OWN_NAME: &str = "a name of at most 63 lower-case letters, digits and dashes that begins with a letter and does not end with a dash";

/// Whether a user may choose this name. Such a name can be a file name, too.
pub(crate) fn is_own_name(text: &str) -> bool {
    text.len() <= MAX_NAME
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && !text.ends_with('-')
        && text.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
}

pub(crate) fn shown(text: &str) -> String {
    if text.is_empty() { "an empty text".to_owned() } else { shown_text(text) }
}

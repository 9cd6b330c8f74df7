//! Names with one word each in the language: of acts, targets, kinds of clients, counts.

use madako_json::strict::{nearest, shown_text};

/// Something of a closed set, each with one name.
pub(crate) trait Named: Copy + 'static {
    /// All of the set, in the order in which they are told.
    const ALL: &'static [Self];

    /// Its name.
    fn name(self) -> &'static str;

    /// Who has that name; else what was expected, with the name that may have been meant.
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

/// Implements [`Named`] and what follows from it: printing, and writing as a text.
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
            /// All there are, in the order in which they are told.
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

/// Longest name of a scenario or a provider, in bytes: Kubernetes' limit on labels, so that it can be one.
const MAX_NAME: usize = 63;

/// What a name of somebody's own looks like, for messages.
pub(crate) const OWN_NAME: &str = "a name of at most 63 lower-case letters, digits and dashes that begins with a letter and does not end with a dash";

/// Whether a text may be a name of somebody's own. Such a name can be a file's name, too.
pub(crate) fn is_own_name(text: &str) -> bool {
    text.len() <= MAX_NAME
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && !text.ends_with('-')
        && text.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
}

/// A text for a message, or that there is none.
pub(crate) fn shown(text: &str) -> String {
    if text.is_empty() { "an empty text".to_owned() } else { shown_text(text) }
}

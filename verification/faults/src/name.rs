//! Closed sets of names in the scenario language: acts, targets, kinds of clients, counts.

use std::str::FromStr;

use madako_json::strict::{nearest_name, shown_text};
use strum::VariantNames;

/// Finds the member with this name. The error lists the expected names, the nearest one apart.
pub(crate) fn parse_name<T: FromStr + VariantNames>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| {
        let all = T::VARIANTS.join(", ");
        match nearest_name(text, T::VARIANTS.iter().copied()) {
            Some(near) => format!("one of {all}; {near:?}, perhaps"),
            None => format!("one of {all}"),
        }
    })
}

/// Bytes of the name of a scenario or a provider: Kubernetes' limit on labels, so that the name can be a label.
const MAX_NAME: usize = 63;

/// The form of a name that a user chooses, for messages.
pub(crate) const OWN_NAME: &str = "a name of at most 63 lower-case letters, digits and dashes that begins with a letter and does not end with a dash";

/// True if a user may choose this name. Such a name can be a file name, too.
pub(crate) fn is_own_name(text: &str) -> bool {
    text.len() <= MAX_NAME
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && !text.ends_with('-')
        && text.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
}

pub(crate) fn quote_shortened(text: &str) -> String {
    if text.is_empty() { "an empty text".to_owned() } else { shown_text(text) }
}

//! The names that Krake allows: labels' keys and values, and names of resources (its `krake/data/core.py`).
//!
//! They are wider than those of Kubernetes: `_` counts as a letter, so it may stand at both ends, and the prefix of a
//! key may have capitals. Letters and digits are ASCII.

use crate::limits::{MAX_LABEL, MAX_PREFIX, MAX_RESOURCE_NAME};

/// True for a label's key: a name with an optional prefix and `/`.
#[must_use]
pub fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        None => is_name(text, MAX_LABEL, ""),
        Some((prefix, name)) => is_name(prefix, MAX_PREFIX, "") && is_name(name, MAX_LABEL, ""),
    }
}

/// True for a label's value. The empty text is not a value.
#[must_use]
pub fn is_label_value(text: &str) -> bool {
    is_name(text, MAX_LABEL, "")
}

/// True for the name of a resource or of a namespace, which may contain `:`.
#[must_use]
pub fn is_resource_name(text: &str) -> bool {
    is_name(text, MAX_RESOURCE_NAME, ":")
}

fn is_name(text: &str, longest: usize, also_inside: &str) -> bool {
    let letter = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    let inside = |c: u8| letter(c) || matches!(c, b'-' | b'.') || also_inside.as_bytes().contains(&c);
    match text.as_bytes() {
        [only] => letter(*only),
        [first, middle @ .., last] => {
            text.len() <= longest && letter(*first) && letter(*last) && middle.iter().all(|c| inside(*c))
        }
        [] => false,
    }
}

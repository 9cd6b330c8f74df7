//! Names of resources, and keys and values of labels, by Krake's patterns (its `data/core.py`).

use super::entries::Labels;
use crate::input::Problems;
use crate::strict::tree::shown_text;
use crate::strict::walk::Path;

/// Bytes of a resource's name and of a namespace.
const MAX_NAME: usize = 255;
/// Bytes of a label's value, and of its key behind the prefix.
const MAX_LABEL: usize = 63;
/// Bytes of the prefix of a label's key.
const MAX_LABEL_PREFIX: usize = 253;

const NAME: &str =
    "1 to 255 ASCII letters, digits, '_', and inside also ':', '.' or '-'";
const LABEL_KEY: &str = "a key of 1 to 63 ASCII letters, digits, '_', and inside also '.' or '-', optionally after \
    a prefix of up to 253 of the same and '/'";
const LABEL_VALUE: &str = "1 to 63 ASCII letters, digits, '_', and inside also '.' or '-'";

/// Whether it may be the name of a resource, or a namespace.
#[must_use]
pub fn is_name(name: &str) -> bool {
    is_word(name, MAX_NAME, b"-.:")
}

/// Whether it may be the key of a label.
#[must_use]
pub fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, key)) => is_word(prefix, MAX_LABEL_PREFIX, b"-.") && is_word(key, MAX_LABEL, b"-."),
        None => is_word(key, MAX_LABEL, b"-."),
    }
}

/// Whether it may be the value of a label.
#[must_use]
pub fn is_label_value(value: &str) -> bool {
    is_word(value, MAX_LABEL, b"-.")
}

/// Letters, digits and underscores, with others allowed inside.
fn is_word(text: &str, most: usize, inside: &[u8]) -> bool {
    let plain = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    let bytes = text.as_bytes();
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else { return false };
    bytes.len() <= most && plain(first) && plain(last) && bytes.iter().all(|&c| plain(c) || inside.contains(&c))
}

/// Checks the name of a resource.
#[expect(clippy::ptr_arg, reason = "a rule gets the field as its type has it")]
pub(crate) fn check_name(name: &String, path: Path<'_>, problems: &mut Problems) {
    if !is_name(name) {
        problems.add(path, shown_text(name), NAME);
    }
}

/// Checks a namespace.
#[expect(clippy::ref_option, reason = "a rule gets the field as its type has it")]
pub(crate) fn check_namespace(namespace: &Option<String>, path: Path<'_>, problems: &mut Problems) {
    if let Some(namespace) = namespace {
        check_name(namespace, path, problems);
    }
}

/// Checks labels.
pub(crate) fn check_labels(labels: &Labels, path: Path<'_>, problems: &mut Problems) {
    for (key, value) in labels.iter() {
        if !is_label_key(key) {
            problems.add(path, shown_text(key), LABEL_KEY);
        }
        if !is_label_value(value) {
            problems.add(path.entry(&super::reader::shortened(key)), shown_text(value), LABEL_VALUE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_krakes_pattern() {
        for good in ["a", "_", "9", "a-b", "system:admin", "A.b_c-9", "a::b", &"a".repeat(255)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "-", "-a", "a-", ".a", "a:", "a b", "a/b", "ä", "a\n", "a\0b", &"a".repeat(256)] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn labels_follow_krakes_patterns() {
        let longest = format!("{}/{}", "p".repeat(253), "k".repeat(63));
        for good in ["a", "a/b", "k8s.io/a_b.c-d", "_", &longest] {
            assert!(is_label_key(good), "{good}");
        }
        for bad in ["", "/", "a/", "/a", "a/b/c", "a:b", "a ", &"k".repeat(64), &format!("{}/k", "p".repeat(254))]
        {
            assert!(!is_label_key(bad), "{bad}");
        }
        for (value, good) in [("IT", true), ("1.0", true), ("", false), ("a/b", false), ("a:b", false)] {
            assert_eq!(is_label_value(value), good, "{value}");
        }
    }
}

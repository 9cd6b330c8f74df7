//! Validates names by the rules of Kubernetes (its "Labels and Selectors", "Object Names and IDs"; apimachinery 0.30).

use crate::limits::{MAX_DNS_SUBDOMAIN, MAX_LABEL_NAME};

/// The rule of [`is_qualified`] for messages.
pub(crate) const QUALIFIED: &str = "at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both \
    ends, optionally after a lower-case DNS name and '/'";
/// The rule of [`is_label_value`] for messages.
pub(crate) const LABEL_VALUE: &str =
    "at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends, or nothing";
/// The rule of [`is_dns_subdomain`] for messages.
pub(crate) const DNS_SUBDOMAIN: &str = "a lower-case DNS name such as cluster.local";

/// True for a "qualified name": the key of a label, an annotation or a taint.
pub(crate) fn is_qualified(name: &str) -> bool {
    match name.split_once('/') {
        None => is_plain(name),
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_plain(name),
    }
}

/// True for the value of a label or a taint.
pub(crate) fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_plain(value)
}

fn is_plain(name: &str) -> bool {
    name.len() <= MAX_LABEL_NAME
        && has_allowed_ends(name, |c| c.is_ascii_alphanumeric())
        && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
}

/// True for a DNS subdomain by RFC 1123, in lower case.
pub(crate) fn is_dns_subdomain(name: &str) -> bool {
    let letter_or_digit = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= MAX_DNS_SUBDOMAIN
        && name.split('.').all(|label| {
            has_allowed_ends(label, letter_or_digit) && label.bytes().all(|c| letter_or_digit(c) || c == b'-')
        })
}

/// True if the first and the last byte are allowed; false for the empty text.
fn has_allowed_ends(text: &str, allowed: impl Fn(u8) -> bool) -> bool {
    match (text.bytes().next(), text.bytes().next_back()) {
        (Some(first), Some(last)) => allowed(first) && allowed(last),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qualified_names_follow_the_rules_of_kubernetes() {
        let longest = "a".repeat(63);
        let prefix = format!("{}.{}.{}.{}/x", longest, longest, longest, "a".repeat(61));
        for good in ["a", "A_b.c-9", "cke.cybozu.com/role", "1/2", &longest, &prefix] {
            assert!(is_qualified(good), "{good}");
        }
        let too_long = "a".repeat(64);
        let long_prefix = format!("{}.{}.{}.{}/x", longest, longest, longest, "a".repeat(62));
        for bad in [
            "",
            "/",
            "a/",
            "/a",
            "a/b/c",
            "-a",
            "a-",
            ".a",
            "a b",
            "Upper.com/a",
            "a..b/c",
            "ä",
            "a\n",
            &too_long,
            &long_prefix,
        ] {
            assert!(!is_qualified(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_label_value_may_be_empty_but_never_starts_or_ends_with_a_separator() {
        for good in ["", "6.0", "a_b", &"a".repeat(63)] {
            assert!(is_label_value(good), "{good}");
        }
        for bad in ["-", "a.", "_a", "a/b", "a b", &"a".repeat(64)] {
            assert!(!is_label_value(bad), "{bad}");
        }
    }
}

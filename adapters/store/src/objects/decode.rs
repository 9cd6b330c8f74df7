//! Decodes stored values into resources: decrypts them and parses them leniently. Pure.

use std::sync::Arc;

use bytes::Bytes;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::object_value::Object;
use madako_domain::placement::objects::Stored;
use madako_domain::store::Entry;

use crate::encryption::{DecryptError, Encryption};
use crate::limits::LONGEST_WHY;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DecodeFault {
    pub(super) why: String,
    /// True if the value may be valid for an instance with its encryption key.
    pub(super) encrypted: bool,
}

impl From<String> for DecodeFault {
    fn from(why: String) -> Self {
        Self { why, encrypted: false }
    }
}

impl From<DecryptError> for DecodeFault {
    fn from(error: DecryptError) -> Self {
        let encrypted = matches!(error, DecryptError::UnknownKey { .. } | DecryptError::Form { .. });
        Self { why: error.to_string(), encrypted }
    }
}

/// The resource at a key.
///
/// # Errors
/// The fault of the value.
pub(super) fn decode(key: &str, entry: &Entry, encryption: &Encryption) -> Result<Arc<Stored>, DecodeFault> {
    let of = ObjectKey::from_etcd_key(key)
        .ok_or_else(|| "the key does not have the form of a resource key: it is ignored".to_owned())?;
    let text = std::str::from_utf8(&entry.value).map_err(|error| format!("it is not UTF-8: {error}"))?;
    let text = encryption.decrypt(&of, text)?;
    let object = Object::from_stored(of.kind, &text).map_err(|error| shorten_reason(error.to_string()))?;
    let wire = Bytes::from(object.to_json());
    let (create_revision, mod_revision) = (entry.create_revision, entry.mod_revision);
    Ok(Arc::new(Stored { key: of, create_revision, mod_revision, object, wire }))
}

fn shorten_reason(mut why: String) -> String {
    if why.len() > LONGEST_WHY {
        why.truncate(why.floor_char_boundary(LONGEST_WHY));
        why.push_str(" ...");
    }
    why
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(value: &[u8]) -> Entry {
        Entry { value: Bytes::copy_from_slice(value), create_revision: 3, mod_revision: 7, lease: 0 }
    }

    #[test]
    fn a_value_becomes_a_resource_with_its_revisions_and_one_line_of_json() {
        let value = br#"{"api": "core", "kind": "Role",
            "metadata": {"name": "r", "uid": "u", "created": "2026-01-01T00:00:00", "modified": "2026-01-01T00:00:00"},
            "rules": [], "later": 1}"#;
        let stored = decode("/core/roles/r", &entry(value), &Encryption::default()).unwrap();
        assert_eq!(
            (stored.key.to_string().as_str(), stored.create_revision, stored.mod_revision),
            ("Role r", 3, 7)
        );
        let wire = std::str::from_utf8(&stored.wire).unwrap();
        assert!(
            !wire.contains('\n') && wire.contains(r#""later": 1"#) && wire.contains(r#""labels": {}"#),
            "{wire}"
        );
    }

    #[test]
    fn unreadable_object_has_a_reason_of_bounded_length() {
        for (key, value, expected) in [
            ("/core/roles/r", &b"\xff"[..], "it is not UTF-8"),
            ("/core/roles/r", b"{", "JSON"),
            ("/core/roles/r", b"{}", "metadata"),
            ("/core/roles/a/b", b"{}", "the form of a resource key"),
        ] {
            let why = decode(key, &entry(value), &Encryption::default()).unwrap_err().why;
            assert!(why.contains(expected), "{why} does not say {expected}");
        }
        let rules = vec![r#"{"api": 1, "verbs": 2}"#; 1000].join(", ");
        let why = decode(
            "/core/roles/r",
            &entry(format!(r#"{{"rules": [{rules}]}}"#).as_bytes()),
            &Encryption::default(),
        )
        .unwrap_err()
        .why;
        assert!(why.len() <= LONGEST_WHY + 4, "{} bytes", why.len());
    }
}

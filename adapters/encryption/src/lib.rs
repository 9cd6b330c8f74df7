//! Encryption at rest of single values in etcd.
//!
//! For: adapters that keep secrets in etcd. The store encrypts secret fields of placement's resources, and the
//! certificate authorities encrypt their private keys.
//!
//! Guarantees:
//! - An encrypted value is bound to its key in etcd and to its field: it does not decrypt anywhere else.
//! - The same value at the same place always gives the same text, so that a write without a change writes no
//!   difference. Different values, or values at different places, give unrelated texts.
//! - Keys and values are in no error and no `Debug`.
//!
//! Format: `["madako-sealed", 1, "<id of the key>", "<Base64>"]`. The bytes are a code of 32 bytes and a ciphertext. As
//! in RFC 5297 the code is computed from the plaintext and its place (HMAC-SHA-256) and serves as a nonce. The key of
//! the single message is derived from the code (HKDF, RFC 5869); ChaCha20-Poly1305 (RFC 8439) encrypts with that key.
//! No random numbers are used, so none can repeat.
//!
//! Does not: hide the length of a value, or that a place has an earlier value again; prevent a client with write access
//! to etcd from restoring an earlier value of a place.

mod limits;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::hmac::{self, HMAC_SHA256};

use crate::limits::MOST_ENCRYPTION_KEYS;

/// The expected form of a text with encryption keys, for messages.
pub const ENCRYPTION_KEYS_FORM: &str =
    "one to 16 different keys, a line each, of 32 bytes in Base64 (openssl rand -base64 32 makes a key)";

/// First element of an encrypted value, as JSON.
pub const MARK: &str = "\"madako-sealed\"";
/// Version of the format; only this version is read and written.
const VERSION: u64 = 1;
const KEY_BYTES: usize = 32;
/// Bytes of the code before the ciphertext: a whole HMAC-SHA-256.
const CODE_BYTES: usize = 32;
/// Bytes of a key's id: among a few keys, no two have the same id.
const ID_BYTES: usize = 4;

/// Invalid keys. Errors do not quote them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// No key, only comments.
    #[error("the list of encryption keys is empty: expected one key of {KEY_BYTES} bytes in Base64 a line")]
    None,
    #[error(
        "the list has more than {MOST_ENCRYPTION_KEYS} encryption keys: remove keys that no stored value uses"
    )]
    TooMany,
    #[error("line {0} of the list of encryption keys is not a key of {KEY_BYTES} bytes in Base64")]
    NotAKey(usize),
    #[error("line {0} of the list of encryption keys repeats an earlier key: remove the line")]
    Twice(usize),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    #[error(
        "the stored value is encrypted with the key {id}, which is not configured here: add this key to the encryption keys of the instance"
    )]
    UnknownKey {
        /// Id of the key, without unusual characters.
        id: String,
    },
    #[error("the stored value cannot be decrypted: it was changed, or moved from another key of the store")]
    Altered,
    /// The format is unknown: written by a later version, or invalid.
    #[error("the stored value is encrypted in a form that this version of Madako does not know")]
    Form,
}

/// Encryption keys; the default has none.
#[derive(Clone, Default)]
pub struct Keys {
    /// The first key encrypts.
    keys: Arc<[Key]>,
}

struct Key {
    id: String,
    code: hmac::Key,
    messages: Prk,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.key_ids()).finish()
    }
}

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl Key {
    fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        let messages = Salt::new(HKDF_SHA256, b"madako: secrets of placement, 1").extract(bytes);
        let mut id = [0; ID_BYTES];
        let fits = "HKDF gives up to 255 blocks";
        messages.expand(&[b"id"], Length(ID_BYTES)).and_then(|okm| okm.fill(&mut id)).expect(fits);
        let code = hmac::Key::from(messages.expand(&[b"code"], HMAC_SHA256).expect(fits));
        let id = id.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { id, code, messages }
    }

    /// The cipher of the single message with this code. Another message has another code.
    fn derive_cipher(&self, code: &[u8]) -> LessSafeKey {
        let info = [b"message", code];
        let key = self.messages.expand(&info, &CHACHA20_POLY1305).expect("a key is one block long");
        LessSafeKey::new(UnboundKey::from(key))
    }

    fn encrypt(&self, place: &str, value: &str) -> String {
        let mut code = hmac::Context::with_key(&self.code);
        // The length of the place comes first, so that no two pairs of place and value give the same bytes.
        code.update(&(place.len() as u64).to_be_bytes());
        code.update(place.as_bytes());
        code.update(value.as_bytes());
        let code = code.sign();
        let mut encrypted = value.as_bytes().to_vec();
        self.derive_cipher(code.as_ref())
            .seal_in_place_append_tag(draw_nonce(), Aad::from(place.as_bytes()), &mut encrypted)
            .expect("ciphers take up to 256 GiB");
        STANDARD.encode([code.as_ref(), &encrypted].concat())
    }

    fn decrypt(&self, place: &str, encrypted: &str) -> Option<String> {
        let mut bytes = STANDARD.decode(encrypted).ok()?;
        let (code, encrypted) = bytes.split_at_mut_checked(CODE_BYTES)?;
        let opened = self
            .derive_cipher(code)
            .open_in_place(draw_nonce(), Aad::from(place.as_bytes()), encrypted)
            .ok()?;
        String::from_utf8(opened.to_vec()).ok()
    }
}

/// Each message has its own key, so a constant nonce is safe.
fn draw_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

/// The place that an encrypted value is bound to.
fn associated_data(key: &str, field: &str) -> String {
    format!("{}:{key}{field}", key.len())
}

impl Keys {
    /// Parses a key file: one key per line, each 32 bytes in Base64. The first key encrypts, all decrypt. Empty lines
    /// and text after a `#` are ignored.
    ///
    /// # Errors
    /// The expected form, and the line.
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let mut keys: Vec<Key> = Vec::new();
        let mut ids = BTreeSet::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            if keys.len() == MOST_ENCRYPTION_KEYS {
                return Err(KeysError::TooMany);
            }
            let bytes = STANDARD.decode(line).ok().and_then(|bytes| <[u8; KEY_BYTES]>::try_from(bytes).ok());
            let key = Key::new(&bytes.ok_or(KeysError::NotAKey(index + 1))?);
            if !ids.insert(key.id.clone()) {
                return Err(KeysError::Twice(index + 1));
            }
            keys.push(key);
        }
        if keys.is_empty() { Err(KeysError::None) } else { Ok(Self { keys: keys.into() }) }
    }

    /// Ids of the keys; the first one encrypts.
    pub fn key_ids(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| key.id.as_str())
    }

    /// The value in encrypted form, for a key in etcd and a field of its value; `None` without keys. An empty field is
    /// the whole value.
    #[must_use]
    pub fn encrypt(&self, key: &str, field: &str, value: &str) -> Option<String> {
        let first = self.keys.first()?;
        let encrypted = first.encrypt(&associated_data(key, field), value);
        Some(format!("[{MARK}, {VERSION}, \"{}\", \"{encrypted}\"]", first.id))
    }

    /// An encrypted value of this place in clear text.
    pub fn decrypt(&self, key: &str, field: &str, value: &str) -> Result<String, ValueError> {
        let Ok((_, VERSION, id, encrypted)) = serde_json::from_str::<(String, u64, String, String)>(value)
        else {
            return Err(ValueError::Form);
        };
        let Some(found) = self.keys.iter().find(|key| key.id == id) else {
            // The text may contain anything, so keep only plain characters.
            let id = id.chars().filter(char::is_ascii_alphanumeric).take(2 * ID_BYTES).collect();
            return Err(ValueError::UnknownKey { id });
        };
        found.decrypt(&associated_data(key, field), encrypted.as_str()).ok_or(ValueError::Altered)
    }
}

/// True if a JSON value is encrypted. No text or object can be mistaken for it.
#[must_use]
pub fn is_encrypted(value: &str) -> bool {
    value.strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with(MARK))
}

#[cfg(test)]
mod tests {
    //! Values decrypt at their place with their key. The tests of the store show the same of fields of resources.

    use super::*;

    const FIRST: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    const SECOND: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

    #[test]
    fn keys_are_one_per_line_and_never_shown_in_errors() {
        let keys = Keys::parse(&format!("# ours\n\n {FIRST} # since May\r\n{SECOND}\n")).unwrap();
        let ids: Vec<&str> = keys.key_ids().collect();
        assert_eq!((ids.len(), ids[0].len()), (2, 8));
        assert_ne!(ids[0], ids[1]);
        let alone = Keys::parse(FIRST).unwrap();
        assert_eq!(alone.key_ids().collect::<Vec<_>>(), ids[..1], "an id depends on the key alone");
        assert_eq!(format!("{keys:?}"), format!("{ids:?}"));
        let many: Vec<String> = (0..=16_u8).map(|byte| STANDARD.encode([byte; KEY_BYTES])).collect();
        for (text, expected) in [
            ("", KeysError::None),
            ("# none\n", KeysError::None),
            ("\nAAAA", KeysError::NotAKey(2)),
            ("hunter2!", KeysError::NotAKey(1)),
            (&format!("{FIRST}\n{SECOND}\n{FIRST}"), KeysError::Twice(3)),
            (&many.join("\n"), KeysError::TooMany),
        ] {
            let error = Keys::parse(text).unwrap_err();
            assert_eq!(error, expected, "{text}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn the_described_form_has_the_limits_of_the_code() {
        assert!(ENCRYPTION_KEYS_FORM.contains(&format!("one to {MOST_ENCRYPTION_KEYS} different keys")));
        assert!(ENCRYPTION_KEYS_FORM.contains(&format!("{KEY_BYTES} bytes in Base64")));
    }

    #[test]
    fn a_value_decrypts_at_its_place_with_its_key_only() {
        let (first, second) = (Keys::parse(FIRST).unwrap(), Keys::parse(SECOND).unwrap());
        let encrypted = first.encrypt("a/b", "/c", "hunter2").unwrap();
        assert!(is_encrypted(&encrypted) && !encrypted.contains("hunter2"), "{encrypted}");
        assert_eq!(first.decrypt("a/b", "/c", &encrypted).unwrap(), "hunter2");
        for (key, field) in [("a/b", ""), ("a", "/b/c"), ("a/b/c", ""), ("a/b", "/d")] {
            assert_eq!(
                first.decrypt(key, field, &encrypted).unwrap_err(),
                ValueError::Altered,
                "{key} {field}"
            );
        }
        let id = first.key_ids().next().unwrap().to_owned();
        assert_eq!(second.decrypt("a/b", "/c", &encrypted).unwrap_err(), ValueError::UnknownKey { id });
        assert_eq!(first.decrypt("a/b", "/c", "hunter2").unwrap_err(), ValueError::Form);
        assert_eq!(Keys::default().encrypt("a/b", "/c", "hunter2"), None);
    }

    #[test]
    fn encryption_keeps_the_form_of_earlier_versions() {
        let keys = Keys::parse(FIRST).unwrap();
        let encrypted =
            keys.encrypt("/kubernetes/clusters/testing/c", "/spec/kubeconfig", "\"value\"").unwrap();
        assert_eq!(
            encrypted,
            r#"["madako-sealed", 1, "90c6ce39", "aH4rv8ELDleuw7awx+dnY+bSTI9piwkgRmir915VgxZtCSS7xhiWBW/4PCirn6YV20nO33hqdw=="]"#
        );
    }
}

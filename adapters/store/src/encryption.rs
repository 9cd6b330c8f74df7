//! Encryption at rest of the secrets in placement's resources.
//!
//! For: all writers and readers of resources in etcd. [`EtcdStore`](crate::EtcdStore) encrypts its commits, and the
//! cache of resources decrypts the values of the watch. Other code never sees encrypted values.
//!
//! Guarantees:
//! - The types declare which fields are secret ([`madako_domain::placement::secrets`]). All other bytes stay unchanged.
//! - An encrypted value is bound to its resource's key in etcd and to its field: it does not decrypt anywhere else.
//! - A value that does not decrypt is an error of its resource and is never replaced by other data.
//! - The same value at the same place always gives the same text, so that a write without a change writes no
//!   difference. Different values, or values at different places, give unrelated texts.
//! - Values in clear text are read too; the next write encrypts them.
//! - Keys and values are in no error and no `Debug`.
//!
//! Format: `["madako-sealed", 1, "<id of the key>", "<Base64>"]`. No text or object field can be mistaken for it. The
//! bytes are a code of 32 bytes and a ciphertext. As in RFC 5297 the code is computed from the plaintext and its place
//! (HMAC-SHA-256) and serves as a nonce. The key of the single message is derived from the code (HKDF, RFC 5869);
//! ChaCha20-Poly1305 (RFC 8439) encrypts with that key. No random numbers are used, so none can repeat.
//!
//! Does not: hide the length of a value, or that a field has an earlier value again; encrypt the texts of manifests and
//! templates; prevent a client with write access to etcd from restoring an older value of a field.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::secrets::{SecretLocation, replaced, secret_locations};
use madako_domain::store::{Transaction, Write};
use madako_json::krake::json;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::hmac::{self, HMAC_SHA256};

use crate::limits::MOST_ENCRYPTION_KEYS;

/// First element of an encrypted value, as JSON.
const MARK: &str = "\"madako-sealed\"";
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
    #[error("at least one key")]
    None,
    #[error("at most {MOST_ENCRYPTION_KEYS} keys")]
    TooMany,
    /// A line that is no key.
    #[error("{KEY_BYTES} bytes in Base64 in line {0} (openssl rand -base64 {KEY_BYTES} makes a key)")]
    NotAKey(usize),
    #[error("each key once, but line {0} repeats an earlier key")]
    Twice(usize),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecryptError {
    /// No given key has this id.
    #[error("{field} is encrypted with the key {id}, which is not configured here")]
    UnknownKey { field: String, id: String },
    /// The value was changed or moved.
    #[error("{field} cannot be decrypted: it was changed, or moved from another resource or field")]
    Altered { field: String },
    /// The format is unknown: written by a later version, or invalid.
    #[error("{field} is encrypted in a form that this version does not know")]
    Form { field: String },
}

/// The value to be encrypted is not JSON. It is not written, because it may contain secrets.
#[derive(Debug, thiserror::Error)]
#[error("cannot encrypt the secrets of {0}: its value is not JSON")]
pub struct EncryptError(ObjectKey);

/// Encryption of secrets. Without keys nothing is encrypted, and encrypted values cannot be read.
#[derive(Clone, Default)]
pub struct Encryption {
    /// The first key encrypts.
    keys: Arc<[Key]>,
}

struct Key {
    id: String,
    code: hmac::Key,
    messages: Prk,
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
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
    fn cipher(&self, code: &[u8]) -> LessSafeKey {
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
        self.cipher(code.as_ref())
            .seal_in_place_append_tag(nonce(), Aad::from(place.as_bytes()), &mut encrypted)
            .expect("ciphers take up to 256 GiB");
        STANDARD.encode([code.as_ref(), &encrypted].concat())
    }

    fn decrypt(&self, place: &str, encrypted: &str) -> Option<String> {
        let mut bytes = STANDARD.decode(encrypted).ok()?;
        let (code, encrypted) = bytes.split_at_mut_checked(CODE_BYTES)?;
        let opened = self.cipher(code).open_in_place(nonce(), Aad::from(place.as_bytes()), encrypted).ok()?;
        String::from_utf8(opened.to_vec()).ok()
    }
}

/// Each message has its own key, so a constant nonce is safe.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

/// The place that an encrypted value is bound to.
fn place(key: &str, field: &str) -> String {
    format!("{}:{key}{field}", key.len())
}

impl Encryption {
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
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| key.id.as_str())
    }

    /// The value of a resource with its secrets encrypted. Encrypted parts stay unchanged.
    ///
    /// # Errors
    /// The value is not JSON.
    pub fn encrypt(&self, key: &ObjectKey, text: &str) -> Result<String, EncryptError> {
        let Some(first) = self.keys.first().filter(|_| key.kind.holds_secrets()) else {
            return Ok(text.to_owned());
        };
        let path = key.etcd_key();
        // The parser's error could quote the value.
        let found = secret_locations(key.kind, text).map_err(|_| EncryptError(key.clone()))?;
        let encrypted = |SecretLocation { range, field }| {
            let value = &text[range.clone()];
            if is_encrypted(value) || value == "{}" {
                // An empty object means no secret.
                return None;
            }
            let encrypted = first.encrypt(&place(&path, &field), value);
            Some((range, format!("[{MARK}, {VERSION}, \"{}\", \"{encrypted}\"]", first.id)))
        };
        let values: Vec<(Range<usize>, String)> = found.into_iter().filter_map(encrypted).collect();
        Ok(replaced(text, &values))
    }

    /// A stored value in clear text.
    ///
    /// # Errors
    /// An encrypted part cannot be decrypted.
    pub fn decrypt<'t>(&self, key: &ObjectKey, text: &'t str) -> Result<Cow<'t, str>, DecryptError> {
        if !text.contains(MARK) || !key.kind.holds_secrets() {
            return Ok(Cow::Borrowed(text));
        }
        // The reader of the resource reports a value that is not JSON.
        let Some(text) = json::readable(text) else { return Ok(Cow::Borrowed(text)) };
        let Ok(found) = secret_locations(key.kind, &text) else { return Ok(text) };
        let path = key.etcd_key();
        let mut values = Vec::new();
        for SecretLocation { range, field } in found {
            let value = &text[range.clone()];
            if is_encrypted(value) {
                values.push((range, self.decrypted(&path, field, value)?));
            }
        }
        Ok(Cow::Owned(replaced(&text, &values)))
    }

    fn decrypted(&self, path: &str, field: String, value: &str) -> Result<String, DecryptError> {
        let Ok((_, VERSION, id, encrypted)) = serde_json::from_str::<(String, u64, String, String)>(value)
        else {
            return Err(DecryptError::Form { field });
        };
        let Some(key) = self.keys.iter().find(|key| key.id == id) else {
            // The text may contain anything, so keep only plain characters.
            let id = id.chars().filter(char::is_ascii_alphanumeric).take(2 * ID_BYTES).collect();
            return Err(DecryptError::UnknownKey { field, id });
        };
        key.decrypt(&place(path, &field), encrypted.as_str()).ok_or(DecryptError::Altered { field })
    }

    /// A transaction with the secrets of resources encrypted. `absolute` converts its keys to absolute keys in etcd.
    ///
    /// # Errors
    /// See [`Encryption::encrypt`].
    pub(crate) fn transaction(
        &self,
        mut transaction: Transaction,
        absolute: impl Fn(&str) -> String,
    ) -> Result<Transaction, EncryptError> {
        if self.keys.is_empty() {
            return Ok(transaction);
        }
        for write in &mut transaction.writes {
            let Write::Put { key, value, .. } = write else { continue };
            let Some(of) = ObjectKey::from_etcd_key(&absolute(key)) else { continue };
            let Ok(text) = std::str::from_utf8(value) else { return Err(EncryptError(of)) };
            *value = Bytes::from(self.encrypt(&of, text)?);
        }
        Ok(transaction)
    }
}

fn is_encrypted(value: &str) -> bool {
    value.strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with(MARK))
}

#[cfg(test)]
mod tests;

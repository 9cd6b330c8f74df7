//! Secrets of placement's resources, encrypted where they are stored.
//!
//! For: everything that writes a resource to etcd or reads one: [`EtcdStore`](crate::EtcdStore) seals what it commits,
//! the cache of resources opens what the watch brings. Nobody else knows that anything is encrypted.
//!
//! Guarantees:
//! - which fields are secret is said by the types ([`madako_domain::placement::secrets`]); everything else stays as it
//!   is, byte for byte;
//! - a sealed value is bound to its resource's key in etcd and to its field: put anywhere else it does not open;
//! - what cannot be opened is an error of that resource, never something else in its place;
//! - the same value at the same place becomes the same text, so that a write that changes nothing writes nothing else;
//!   two values that differ, or stand at different places, have nothing in common;
//! - values in clear text are read as well, and sealed by the next write;
//! - keys and values are in no error and no `Debug`.
//!
//! The form: `["madako-sealed", 1, "<id of the key>", "<Base64>"]`. Neither a text nor an object can be taken for it.
//! The bytes are a code of 32 bytes and a ciphertext. As in RFC 5297 the code is computed from what is sealed and its
//! place (HMAC-SHA-256), and stands for a nonce; the key of the one message is derived from it (HKDF, RFC 5869), and
//! ChaCha20-Poly1305 seals with that key (RFC 8439). No random number is drawn, so none can come twice.
//!
//! Does not: hide how long a value is, or that a field has the value again that it had before; encrypt the texts of
//! manifests and templates; keep somebody who may write to etcd from putting an older value of a field back.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::secrets::{Place, places, replaced};
use madako_domain::store::{Transaction, Write};
use madako_json::krake::json;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::hmac::{self, HMAC_SHA256};

use crate::limits::MOST_SEALING_KEYS;

/// What a sealed value begins with, as JSON.
const MARK: &str = "\"madako-sealed\"";
/// The form that is written, and the only one that is read.
const VERSION: u64 = 1;
/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// Bytes of the code before the ciphertext: a whole HMAC-SHA-256.
const CODE_BYTES: usize = 32;
/// Bytes of a key's id: who has a few keys does not meet two with one id.
const ID_BYTES: usize = 4;

/// Keys that cannot be used. Says nothing of what they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// Nothing but comments.
    #[error("at least one key")]
    None,
    /// Too many.
    #[error("at most {MOST_SEALING_KEYS} keys")]
    TooMany,
    /// Not a key.
    #[error("{KEY_BYTES} bytes in Base64 in line {0} (openssl rand -base64 {KEY_BYTES} makes some)")]
    NotAKey(usize),
    /// A key for the second time.
    #[error("each key once: the one of line {0} came before")]
    Twice(usize),
}

/// Why a stored value cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Another key sealed it.
    #[error("{field} is encrypted with the key {id}, which is not configured here")]
    UnknownKey {
        /// The field.
        field: String,
        /// The key's id.
        id: String,
    },
    /// It is not what the key sealed there.
    #[error("{field} cannot be decrypted: it was changed, or moved from another resource or field")]
    Altered {
        /// The field.
        field: String,
    },
    /// A later version sealed it, or nobody did.
    #[error("{field} is encrypted in a form that this version does not know")]
    Form {
        /// The field.
        field: String,
    },
}

/// What is to be sealed is no JSON: it is not written, since there may be secrets in it.
#[derive(Debug, thiserror::Error)]
#[error("the value of {0} is no JSON, so that its secrets cannot be encrypted")]
pub struct SealError(ObjectKey);

/// How secrets are kept. Without keys nothing is encrypted, and what is encrypted cannot be read.
#[derive(Clone, Default)]
pub struct Sealing {
    /// The first one seals.
    keys: Arc<[Key]>,
}

struct Key {
    id: String,
    code: hmac::Key,
    messages: Prk,
}

impl fmt::Debug for Sealing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

/// A length for HKDF.
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

    /// The cipher of the one message that has this code, which is used once: another message has another code.
    fn cipher(&self, code: &[u8]) -> LessSafeKey {
        let info = [b"message", code];
        let key = self.messages.expand(&info, &CHACHA20_POLY1305).expect("a key is one block long");
        LessSafeKey::new(UnboundKey::from(key))
    }

    fn seal(&self, place: &str, value: &str) -> String {
        let mut code = hmac::Context::with_key(&self.code);
        // Where the place ends is said first, so that no other pair has the same bytes.
        code.update(&(place.len() as u64).to_be_bytes());
        code.update(place.as_bytes());
        code.update(value.as_bytes());
        let code = code.sign();
        let mut sealed = value.as_bytes().to_vec();
        self.cipher(code.as_ref())
            .seal_in_place_append_tag(nonce(), Aad::from(place.as_bytes()), &mut sealed)
            .expect("ciphers take up to 256 GiB");
        STANDARD.encode([code.as_ref(), &sealed].concat())
    }

    fn open(&self, place: &str, sealed: &str) -> Option<String> {
        let mut bytes = STANDARD.decode(sealed).ok()?;
        let (code, sealed) = bytes.split_at_mut_checked(CODE_BYTES)?;
        let opened = self.cipher(code).open_in_place(nonce(), Aad::from(place.as_bytes()), sealed).ok()?;
        String::from_utf8(opened.to_vec()).ok()
    }
}

/// Each message has a key of its own, so that one nonce does for all.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

/// The place that a sealed value is bound to.
fn place(key: &str, field: &str) -> String {
    format!("{}:{key}{field}", key.len())
}

impl Sealing {
    /// Keys as a file has them: one a line, each 32 bytes in Base64; the first one encrypts, all decrypt. Empty lines and
    /// what follows a `#` are passed over.
    ///
    /// # Errors
    /// Says what was expected, and where.
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let mut keys: Vec<Key> = Vec::new();
        let mut ids = BTreeSet::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            if keys.len() == MOST_SEALING_KEYS {
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

    /// The value of a resource as it is stored. What is sealed already stays so.
    ///
    /// # Errors
    /// It is no JSON.
    pub fn seal(&self, key: &ObjectKey, text: &str) -> Result<String, SealError> {
        let Some(first) = self.keys.first().filter(|_| key.kind.holds_secrets()) else {
            return Ok(text.to_owned());
        };
        let path = key.etcd_key();
        // What is wrong with it could quote it.
        let found = places(key.kind, text).map_err(|_| SealError(key.clone()))?;
        let sealed = |Place { range, field }| {
            let value = &text[range.clone()];
            if is_sealed(value) || value == "{}" {
                // An empty object stands for none.
                return None;
            }
            let sealed = first.seal(&place(&path, &field), value);
            Some((range, format!("[{MARK}, {VERSION}, \"{}\", \"{sealed}\"]", first.id)))
        };
        let values: Vec<(Range<usize>, String)> = found.into_iter().filter_map(sealed).collect();
        Ok(replaced(text, &values))
    }

    /// A stored value in clear text.
    ///
    /// # Errors
    /// A part of it is sealed and does not open.
    pub fn open<'t>(&self, key: &ObjectKey, text: &'t str) -> Result<Cow<'t, str>, OpenError> {
        if !text.contains(MARK) || !key.kind.holds_secrets() {
            return Ok(Cow::Borrowed(text));
        }
        // What is no JSON even then is told by whoever reads the resource.
        let Some(text) = json::readable(text) else { return Ok(Cow::Borrowed(text)) };
        let Ok(found) = places(key.kind, &text) else { return Ok(text) };
        let path = key.etcd_key();
        let mut values = Vec::new();
        for Place { range, field } in found {
            let value = &text[range.clone()];
            if is_sealed(value) {
                values.push((range, self.opened(&path, field, value)?));
            }
        }
        Ok(Cow::Owned(replaced(&text, &values)))
    }

    fn opened(&self, path: &str, field: String, value: &str) -> Result<String, OpenError> {
        let Ok((_, VERSION, id, sealed)) = serde_json::from_str::<(String, u64, String, String)>(value)
        else {
            return Err(OpenError::Form { field });
        };
        let Some(key) = self.keys.iter().find(|key| key.id == id) else {
            // It may be anything that somebody put there.
            let id = id.chars().filter(char::is_ascii_alphanumeric).take(2 * ID_BYTES).collect();
            return Err(OpenError::UnknownKey { field, id });
        };
        key.open(&place(path, &field), sealed.as_str()).ok_or(OpenError::Altered { field })
    }

    /// A transaction with the values of resources sealed. `absolute` makes etcd's keys of the transaction's.
    ///
    /// # Errors
    /// See [`Sealing::seal`].
    pub(crate) fn transaction(
        &self,
        mut transaction: Transaction,
        absolute: impl Fn(&str) -> String,
    ) -> Result<Transaction, SealError> {
        if self.keys.is_empty() {
            return Ok(transaction);
        }
        for write in &mut transaction.writes {
            let Write::Put { key, value, .. } = write else { continue };
            let Some(of) = ObjectKey::from_etcd_key(&absolute(key)) else { continue };
            let Ok(text) = std::str::from_utf8(value) else { return Err(SealError(of)) };
            *value = Bytes::from(self.seal(&of, text)?);
        }
        Ok(transaction)
    }
}

fn is_sealed(value: &str) -> bool {
    value.strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with(MARK))
}

#[cfg(test)]
mod tests;

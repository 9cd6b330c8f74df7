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
//! [`Keys`] defines the form of an encrypted value.
//!
//! Does not: hide the length of a value, or that a field has an earlier value again; encrypt the texts of manifests and
//! templates; prevent a client with write access to etcd from restoring an older value of a field.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::secrets::{SecretLocation, replace_ranges, secret_locations};
use madako_domain::store::{Transaction, Write};
use madako_encryption::{Keys, KeysError, MARK, ValueError, is_encrypted};
use madako_json::krake::json;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecryptError {
    #[error(
        "{field} is encrypted with the key {id}, which is not configured here: add this key to the file of `placement.encryption`"
    )]
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
#[derive(Debug, Clone, Default)]
pub struct Encryption(Keys);

impl From<Keys> for Encryption {
    fn from(keys: Keys) -> Self {
        Self(keys)
    }
}

impl Encryption {
    /// Parses a key file, as [`Keys::parse`].
    ///
    /// # Errors
    /// The expected form, and the line.
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        Keys::parse(text).map(Self)
    }

    pub fn key_ids(&self) -> impl Iterator<Item = &str> {
        self.0.key_ids()
    }

    /// The value of a resource with its secrets encrypted. Encrypted parts stay unchanged.
    ///
    /// # Errors
    /// The value is not JSON.
    pub fn encrypt(&self, key: &ObjectKey, text: &str) -> Result<String, EncryptError> {
        if self.key_ids().next().is_none() || !key.kind.holds_secrets() {
            return Ok(text.to_owned());
        }
        let path = key.etcd_key();
        // The parser's error could quote the value.
        let found = secret_locations(key.kind, text).map_err(|_| EncryptError(key.clone()))?;
        let encrypted = |SecretLocation { range, field }| {
            let value = &text[range.clone()];
            if is_encrypted(value) || value == "{}" {
                // An empty object means no secret.
                return None;
            }
            Some((range, self.0.encrypt(&path, &field, value)?))
        };
        let values: Vec<(Range<usize>, String)> = found.into_iter().filter_map(encrypted).collect();
        Ok(replace_ranges(text, &values))
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
        let Some(text) = json::make_readable(text) else { return Ok(Cow::Borrowed(text)) };
        let Ok(found) = secret_locations(key.kind, &text) else { return Ok(text) };
        let path = key.etcd_key();
        let mut values = Vec::new();
        for SecretLocation { range, field } in found {
            let value = &text[range.clone()];
            if is_encrypted(value) {
                values.push((range, self.decrypt_value(&path, field, value)?));
            }
        }
        Ok(Cow::Owned(replace_ranges(&text, &values)))
    }

    fn decrypt_value(&self, path: &str, field: String, value: &str) -> Result<String, DecryptError> {
        self.0.decrypt(path, &field, value).map_err(|error| match error {
            ValueError::UnknownKey { id } => DecryptError::UnknownKey { field, id },
            ValueError::Altered => DecryptError::Altered { field },
            ValueError::Form => DecryptError::Form { field },
        })
    }

    /// A transaction with the secrets of resources encrypted. `absolute` converts its keys to absolute keys in etcd.
    ///
    /// # Errors
    /// See [`Encryption::encrypt`].
    pub(crate) fn encrypt_transaction(
        &self,
        mut transaction: Transaction,
        absolute: impl Fn(&str) -> String,
    ) -> Result<Transaction, EncryptError> {
        if self.key_ids().next().is_none() {
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

#[cfg(test)]
mod tests;

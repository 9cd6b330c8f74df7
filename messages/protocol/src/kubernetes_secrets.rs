//! The port to the secrets that all API servers of a cluster share: a key pair, which is made once, and encryption keys.

use std::fmt;

use async_trait::async_trait;

use crate::authorities::{AuthorityError, IssuedCertificate};
use crate::permit::{Permit, PermitEnded};
use crate::secret::Secret;

/// The reason why a shared secret is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KubernetesSecretError {
    /// The permit had expired; nothing was made.
    #[error(transparent)]
    Permit(#[from] PermitEnded),
    /// The pair of service accounts cannot be issued.
    #[error("cannot issue the key pair for service accounts: {0}")]
    Authority(#[from] AuthorityError),
    /// The stored secret cannot be read or written.
    #[error("{what}: {why}")]
    Stored {
        /// The secret in words, for messages.
        what: &'static str,
        /// The fault, without a part of the secret.
        why: String,
    },
}

/// A change of the keys with which API servers encrypt Secrets, by the name of a key. Each may be repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EncryptionKeyChange {
    /// Makes a key of this name, behind the first one.
    Add(String),
    /// Puts the key of this name in front of the others.
    PutFirst(String),
    /// Checks that the key of this name is the first one. Changes nothing.
    CheckFirst(String),
    /// Removes all keys but the one of this name, which is the first one.
    KeepOnly(String),
}

impl EncryptionKeyChange {
    /// Changes a list of keys, the first one first. Returns whether the list has changed.
    ///
    /// # Errors
    /// The reason for which the keys do not fit the change, or that of `make`. Nothing has changed.
    pub fn apply<K>(
        &self,
        keys: &mut Vec<K>,
        name_of: impl Fn(&K) -> &str,
        make: impl FnOnce(&str) -> Result<K, String>,
    ) -> Result<bool, String> {
        let (Self::Add(name) | Self::PutFirst(name) | Self::CheckFirst(name) | Self::KeepOnly(name)) = self;
        let place = keys.iter().position(|key| name_of(key) == name);
        match (self, place) {
            (Self::Add(_), None) if keys.is_empty() => Err("there is no key".to_owned()),
            (Self::Add(_), None) => {
                keys.insert(1, make(name)?);
                Ok(true)
            }
            // An addition never makes the first key.
            (Self::Add(_), Some(0)) => Err(format!("the present key has the name {name}")),
            (Self::Add(_), Some(_)) | (Self::CheckFirst(_) | Self::PutFirst(_), Some(0)) => Ok(false),
            (Self::PutFirst(_), Some(place)) => {
                keys[..=place].rotate_right(1);
                Ok(true)
            }
            (Self::KeepOnly(_), Some(0)) => {
                let is_changed = keys.len() > 1;
                keys.truncate(1);
                Ok(is_changed)
            }
            (Self::CheckFirst(_) | Self::KeepOnly(_), Some(_)) => {
                Err(format!("another key is in front of {name}"))
            }
            (Self::PutFirst(_) | Self::CheckFirst(_) | Self::KeepOnly(_), None) => {
                Err(format!("there is no key of the name {name}"))
            }
        }
    }
}

impl fmt::Display for EncryptionKeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(name) => write!(f, "addition of the key {name}"),
            Self::PutFirst(name) => write!(f, "move of the key {name} to the front"),
            Self::CheckFirst(name) => write!(f, "check that the key {name} is the first one"),
            Self::KeepOnly(name) => write!(f, "removal of all keys but {name}"),
        }
    }
}

/// The port to the shared secrets.
#[async_trait]
pub trait KubernetesSecrets: Send + Sync + 'static {
    /// The certificate and key with which API servers check and sign the tokens of service accounts. The first call
    /// issues them; they are never renewed, since all tokens would end.
    async fn service_account(&self, permit: &Permit) -> Result<IssuedCertificate, KubernetesSecretError>;

    /// The keys with which API servers encrypt Secrets, in CKE's form:
    /// `{"keys": [{"name": NAME, "secret": BASE64}]}`. The first one encrypts, all decrypt. Without Vault, the first call makes a key.
    ///
    /// # Errors
    /// See [`KubernetesSecretError`].
    async fn encryption_keys(&self, permit: &Permit) -> Result<Secret, KubernetesSecretError>;

    /// Changes these keys. With Vault, whose store compares nothing, the change begins and ends while the permit is valid.
    ///
    /// # Errors
    /// See [`KubernetesSecretError`]. The present keys do not fit the change: another program has changed them.
    async fn change_encryption_keys(
        &self,
        permit: &Permit,
        change: &EncryptionKeyChange,
    ) -> Result<(), KubernetesSecretError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys after a change, or the error.
    fn after(keys: &str, change: &EncryptionKeyChange) -> Result<String, String> {
        let mut keys: Vec<String> = keys.split_whitespace().map(str::to_owned).collect();
        let before = keys.clone();
        let is_changed = change.apply(&mut keys, |key| key, |name| Ok(name.to_owned()))?;
        assert_eq!(is_changed, keys != before);
        Ok(keys.join(" "))
    }

    #[test]
    fn a_rotation_keeps_earlier_keys_until_the_last_step_and_each_step_may_be_repeated() {
        use EncryptionKeyChange::{Add, CheckFirst, KeepOnly, PutFirst};
        let name = || "new".to_owned();
        for before in ["old", "old older"] {
            let mut keys = before.to_owned();
            for (change, expected) in [
                (Add(name()), before.replacen("old", "old new", 1)),
                (PutFirst(name()), format!("new {before}")),
                (CheckFirst(name()), format!("new {before}")),
                (KeepOnly(name()), name()),
            ] {
                for _ in 0..2 {
                    keys = after(&keys, &change).unwrap();
                    assert_eq!(keys, expected, "{change}");
                }
            }
        }
    }

    #[test]
    fn keys_that_another_program_changed_are_refused() {
        use EncryptionKeyChange::{Add, CheckFirst, KeepOnly, PutFirst};
        let name = || "new".to_owned();
        let refused = |keys: &str, change: EncryptionKeyChange| after(keys, &change).unwrap_err();
        assert_eq!(refused("", Add(name())), "there is no key");
        assert_eq!(refused("new old", Add(name())), "the present key has the name new");
        assert_eq!(refused("other old", PutFirst(name())), "there is no key of the name new");
        for change in [CheckFirst(name()), KeepOnly(name())] {
            assert_eq!(refused("other new", change.clone()), "another key is in front of new");
            assert_eq!(refused("other", change), "there is no key of the name new");
        }
        let failed = Add(name()).apply(&mut vec!["old".to_owned()], |key| key, |_| Err("x".to_owned()));
        assert_eq!(failed, Err("x".to_owned()));
    }
}

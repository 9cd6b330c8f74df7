//! The private keys for logins on nodes: those of Vault, then those that `madako ssh key set` stored encrypted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use madako_domain::keys;
use madako_domain::store::{StoreError, Transaction, Write};
use madako_encryption::Keys;
use madako_protocol::login_keys::{LoginKeySource, LoginKeys, LoginKeysError};
use madako_protocol::secret::Secret;
use madako_protocol::store::Store;

use crate::vault::Vault;

#[derive(Debug, thiserror::Error)]
pub enum PutLoginKeyError {
    /// There is nothing to encrypt the key with.
    #[error(
        "cannot encrypt the private key for logins: set pki.key_file or pki.key_env in the configuration file"
    )]
    NoEncryption,
    /// The write failed.
    #[error("cannot store the private key for logins under the key {key} in etcd")]
    Store { key: String, source: StoreError },
}

pub struct LoginKeySources {
    vault: Arc<Vault>,
    store: Arc<dyn Store>,
    keys: Keys,
}

impl fmt::Debug for LoginKeySources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginKeySources").field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl LoginKeySources {
    /// The keys of `vault`, and those in `store`, which are encrypted with `keys`.
    #[must_use]
    pub fn new(vault: Arc<Vault>, store: Arc<dyn Store>, keys: Keys) -> Self {
        Self { vault, store, keys }
    }

    /// Stores a private key for logins on a node, or the default key under the empty address. Replaces an earlier one.
    ///
    /// # Errors
    /// See [`PutLoginKeyError`].
    pub async fn put(&self, address: &str, private_key: &Secret) -> Result<(), PutLoginKeyError> {
        let key = keys::ssh_key(address);
        let value = self.keys.encrypt(&key, "", private_key.reveal());
        let value = Bytes::from(value.ok_or(PutLoginKeyError::NoEncryption)?);
        let writes = vec![Write::Put { key: key.clone(), value, lease: 0 }];
        let written = self.store.commit(Transaction { conditions: Vec::new(), writes }).await;
        written.map(drop).map_err(|source| PutLoginKeyError::Store { key, source })
    }

    async fn read_stored_keys(&self) -> Result<LoginKeys, LoginKeysError> {
        let failed = |place: &str, why: String| LoginKeysError { place: place.to_owned(), why };
        let listed = self.store.list(keys::SSH_KEYS).await;
        let entries = listed.map_err(|error| failed("the store", error.to_string()))?.entries;
        let mut found = BTreeMap::new();
        for (key, entry) in entries {
            let decrypt = |text: &str| self.keys.decrypt(&key, "", text).map_err(|error| error.to_string());
            let text = std::str::from_utf8(&entry.value).map_err(|_| "it is not text".to_owned());
            let private = text.and_then(decrypt).map(Secret::new).map_err(|why| failed(&key, why));
            found.insert(key[keys::SSH_KEYS.len()..].to_owned(), private);
        }
        Ok(LoginKeys(found))
    }
}

#[async_trait]
impl LoginKeySource for LoginKeySources {
    async fn read(&self) -> Result<Vec<LoginKeys>, LoginKeysError> {
        let failed = |why: String| LoginKeysError { place: "Vault".to_owned(), why };
        let secrets = self.vault.open_secrets().await.map_err(|error| failed(error.to_string()))?;
        let mut all = Vec::new();
        if let Some(secrets) = secrets {
            all.push(secrets.login_keys().await.map_err(|error| failed(error.to_string()))?);
        }
        all.push(self.read_stored_keys().await?);
        Ok(all)
    }
}

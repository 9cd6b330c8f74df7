//! The secrets of CKE in Vault: private keys for logins on nodes, and the keys with which Kubernetes encrypts.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use madako_domain::vault::{KUBERNETES_SECRET, SSH_SECRET};
use madako_protocol::kubernetes_secrets::EncryptionKeyChange;
use madako_protocol::login_keys::LoginKeys;
use madako_protocol::secret::Secret;
use madako_protocol::vault::VaultError;
use rand::TryRng as _;
use rand::rngs::SysRng;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Vault;
use super::client::{Request, RequestBody};
use super::session::Session;
use super::telemetry::Call;
use crate::limits::{ENCRYPTION_KEY_BYTES, KEPT_ENCRYPTION_KEYS};

/// Name of Kubernetes' provider of encryption.
const PROVIDER: &str = "aescbc";

/// Kubernetes' configuration of the provider.
#[derive(Default, Serialize, Deserialize)]
struct Provider {
    #[serde(default)]
    keys: Vec<EncryptionKey>,
}

impl Provider {
    fn to_secret(&self) -> Secret {
        Secret::new(serde_json::to_string(self).expect("texts always have a JSON form"))
    }
}

#[derive(Serialize, Deserialize)]
struct EncryptionKey {
    name: String,
    secret: String,
}

/// A new key. Its name is the time.
fn new_key(now: OffsetDateTime) -> Result<EncryptionKey, &'static str> {
    let now = now.replace_nanosecond(0).unwrap_or(now);
    new_named_key(now.format(&Rfc3339).map_err(|_| "the clock of this host has a year beyond 9999")?)
}

fn new_named_key(name: String) -> Result<EncryptionKey, &'static str> {
    let mut bytes = [0; ENCRYPTION_KEY_BYTES];
    // The seeded generator would let a reader of the seed know the key.
    SysRng
        .try_fill_bytes(&mut bytes)
        .map_err(|_| "cannot get random bytes for an encryption key from the operating system")?;
    Ok(EncryptionKey { name, secret: STANDARD.encode(bytes) })
}

/// Changes keys in CKE's form. `None`: they are already so.
///
/// # Errors
/// The reason, without a part of a key.
pub(crate) fn change_keys(stored: &Secret, change: &EncryptionKeyChange) -> Result<Option<Secret>, String> {
    let mut provider: Provider =
        serde_json::from_str(stored.reveal()).map_err(|_| "the stored keys are not readable".to_owned())?;
    let make = |name: &str| new_named_key(name.to_owned()).map_err(str::to_owned);
    let is_changed = change.apply(&mut provider.keys, |key| &key.name, make)?;
    Ok(is_changed.then(|| provider.to_secret()))
}

/// The first keys of a cluster, in CKE's form.
pub(crate) fn generate_first_keys(now: OffsetDateTime) -> Result<Secret, &'static str> {
    Ok(Provider { keys: vec![new_key(now)?] }.to_secret())
}

/// CKE's secrets at a server.
#[derive(Debug)]
pub struct VaultSecrets(pub(crate) std::sync::Arc<Session>);

impl Vault {
    /// CKE's secrets; `None` if the store has no access to Vault.
    ///
    /// # Errors
    /// The access is unusable.
    pub async fn open_secrets(&self) -> Result<Option<VaultSecrets>, VaultError> {
        Ok(self.open_session().await?.map(VaultSecrets))
    }
}

impl VaultSecrets {
    /// The private keys for logins on nodes; none if there never was one.
    ///
    /// # Errors
    /// See [`VaultError`].
    pub async fn login_keys(&self) -> Result<LoginKeys, VaultError> {
        let fields = self.read(SSH_SECRET).await?;
        let text = |(address, value): (String, Value)| Some((address, Ok(Secret::new(value.as_str()?))));
        Ok(LoginKeys(fields.into_iter().filter_map(text).collect::<BTreeMap<_, _>>()))
    }

    /// Stores a private key for logins on a node, or the default key under the empty address. Two commands at the same time
    /// may lose one of two keys: this store of Vault compares nothing.
    ///
    /// # Errors
    /// See [`VaultError`].
    pub async fn put_login_key(&self, address: &str, key: &Secret) -> Result<(), VaultError> {
        let mut fields = self.read(SSH_SECRET).await?;
        fields.insert(address.to_owned(), key.reveal().into());
        self.write(SSH_SECRET, fields).await
    }

    /// True if there are keys with which Kubernetes encrypts.
    ///
    /// # Errors
    /// See [`VaultError`].
    pub async fn has_encryption_keys(&self) -> Result<bool, VaultError> {
        Ok(!self.read(KUBERNETES_SECRET).await?.is_empty())
    }

    /// The keys with which Kubernetes encrypts, in CKE's form; `None` if there are none.
    ///
    /// # Errors
    /// See [`VaultError`].
    pub async fn encryption_keys(&self) -> Result<Option<Secret>, VaultError> {
        let fields = self.read(KUBERNETES_SECRET).await?;
        Ok(fields.get(PROVIDER).and_then(Value::as_str).map(Secret::new))
    }

    /// Adds a new key with which Kubernetes encrypts, in front of the present one. Earlier ones are removed.
    ///
    /// # Errors
    /// See [`VaultError`].
    pub async fn rotate_encryption_key(&self, now: OffsetDateTime) -> Result<(), VaultError> {
        let mut fields = self.read(KUBERNETES_SECRET).await?;
        let unusable = |why: &str| VaultError::Access { why: why.to_owned() };
        let mut provider: Provider = match fields.get(PROVIDER) {
            None => Provider::default(),
            Some(text) => {
                text.as_str().and_then(|text| serde_json::from_str(text).ok()).ok_or_else(|| {
                    let request = Request::get(Call::Secrets, KUBERNETES_SECRET);
                    self.0.client.missing_member_error(&request, "aescbc with keys in JSON")
                })?
            }
        };
        provider.keys.insert(0, new_key(now).map_err(unusable)?);
        provider.keys.truncate(KEPT_ENCRYPTION_KEYS);
        fields.insert(PROVIDER.to_owned(), provider.to_secret().reveal().into());
        self.write(KUBERNETES_SECRET, fields).await
    }

    /// Changes these keys, and reads them again: this store of Vault compares nothing.
    ///
    /// # Errors
    /// The reason, without a part of a key: Vault failed, or the keys do not fit the change.
    pub(crate) async fn change_encryption_keys(&self, change: &EncryptionKeyChange) -> Result<(), String> {
        let failed = |why: &dyn std::fmt::Display| format!("{change} in Vault: {why}");
        let mut fields = self.read(KUBERNETES_SECRET).await.map_err(|error| failed(&error))?;
        let stored = fields.get(PROVIDER).and_then(Value::as_str).map(Secret::new);
        let stored = stored.ok_or_else(|| failed(&"there is no key"))?;
        let Some(changed) = change_keys(&stored, change).map_err(|why| failed(&why))? else {
            return Ok(());
        };
        fields.insert(PROVIDER.to_owned(), changed.reveal().into());
        self.write(KUBERNETES_SECRET, fields).await.map_err(|error| failed(&error))?;
        let written = self.encryption_keys().await.map_err(|error| failed(&error))?;
        if written.as_ref() == Some(&changed) {
            return Ok(());
        }
        Err(failed(&"another program changed the keys at the same time"))
    }

    async fn read(&self, path: &str) -> Result<Map<String, Value>, VaultError> {
        Ok(self.0.call(&Request::get(Call::Secrets, path)).await?.data.unwrap_or_default())
    }

    async fn write(&self, path: &str, fields: Map<String, Value>) -> Result<(), VaultError> {
        self.0.call(&Request::put(Call::Secrets, path, RequestBody(fields))).await.map(drop)
    }
}

//! The secrets that all API servers share: the key pair of service accounts, and the keys that encrypt Secrets.
//!
//! With Vault, both are where CKE looks for them, so that CKE may lead again. Without Vault, CKE cannot lead, and the
//! private parts are encrypted with the keys of the section `pki`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use madako_domain::authority::Authority;
use madako_domain::keys;
use madako_domain::store::{Condition, Outcome, Transaction, Write};
use madako_encryption::Keys;
use madako_protocol::authorities::{Authorities, CertificateRequest, IssuedCertificate, Usage};
use madako_protocol::kubernetes_secrets::{EncryptionKeyChange, KubernetesSecretError, KubernetesSecrets};
use madako_protocol::permit::{Permit, PermitEnded};
use madako_protocol::ports::Clock;
use madako_protocol::secret::Secret;
use madako_protocol::store::Store;
use tokio::time::{Instant, timeout_at};

use crate::limits::SERVICE_ACCOUNT_VALIDITY;
use crate::vault::{Vault, change_keys, generate_first_keys};

const PAIR: &str = "the key pair of service accounts";
const ENCRYPTION: &str = "the encryption keys of the API servers";

pub struct SharedSecrets {
    vault: Arc<Vault>,
    authorities: Arc<dyn Authorities>,
    store: Arc<dyn Store>,
    keys: Keys,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for SharedSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSecrets").field("keys", &self.keys).finish_non_exhaustive()
    }
}

fn stored_secret_error(what: &'static str, why: impl ToString) -> KubernetesSecretError {
    KubernetesSecretError::Stored { what, why: why.to_string() }
}

impl SharedSecrets {
    /// The secrets of `vault`, and those in `store`, which are encrypted with `keys`.
    #[must_use]
    pub fn new(
        vault: Arc<Vault>,
        authorities: Arc<dyn Authorities>,
        store: Arc<dyn Store>,
        keys: Keys,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { vault, authorities, store, keys, clock }
    }

    /// The text of a key of the store.
    async fn read_secret(
        &self,
        what: &'static str,
        key: &str,
    ) -> Result<Option<String>, KubernetesSecretError> {
        Ok(self.read_revised_secret(what, key).await?.map(|(text, _)| text))
    }

    /// The text of a key of the store, with its mod revision.
    async fn read_revised_secret(
        &self,
        what: &'static str,
        key: &str,
    ) -> Result<Option<(String, i64)>, KubernetesSecretError> {
        let mut listed = self.store.list(key).await.map_err(|error| stored_secret_error(what, error))?;
        let Some(entry) = listed.entries.remove(key) else { return Ok(None) };
        let text = String::from_utf8(entry.value.to_vec());
        let text = text.map_err(|_| stored_secret_error(what, format_args!("{key} is not text")))?;
        Ok(Some((text, entry.mod_revision)))
    }

    /// Changes the encrypted keys in the store, by compare-and-swap.
    async fn change_encrypted_keys(
        &self,
        permit: &Permit,
        change: &EncryptionKeyChange,
    ) -> Result<(), KubernetesSecretError> {
        let key = keys::ENCRYPTION_KEYS;
        let failed = |why: String| stored_secret_error(ENCRYPTION, format_args!("{change} in {key}: {why}"));
        let read = self.read_revised_secret(ENCRYPTION, key).await?;
        let (text, revision) = read.ok_or_else(|| failed("there is no key".to_owned()))?;
        let present = self.decrypt(ENCRYPTION, key, &text)?;
        let Some(changed) = change_keys(&present, change).map_err(failed)? else { return Ok(()) };
        let value = Bytes::from(self.encrypt(ENCRYPTION, key, &changed)?);
        permit.check(Instant::now())?;
        let key = key.to_owned();
        let conditions = vec![Condition::Unchanged { key: key.clone(), revision }];
        let writes = vec![Write::Put { key, value, lease: 0 }];
        let written = self.store.commit(Transaction { conditions, writes }).await;
        match written.map_err(|error| stored_secret_error(ENCRYPTION, error))? {
            Outcome::Committed { .. } => Ok(()),
            Outcome::Refused { .. } => {
                Err(failed("another program changed the keys at the same time".to_owned()))
            }
        }
    }

    fn decrypt(&self, what: &'static str, key: &str, text: &str) -> Result<Secret, KubernetesSecretError> {
        let decrypted = self.keys.decrypt(key, "", text);
        decrypted.map(Secret::new).map_err(|error| stored_secret_error(what, format_args!("{key}: {error}")))
    }

    fn encrypt(&self, what: &'static str, key: &str, text: &Secret) -> Result<String, KubernetesSecretError> {
        let missing = "no key encrypts it: set pki.key_file or pki.key_env in the configuration";
        self.keys.encrypt(key, "", text.reveal()).ok_or_else(|| stored_secret_error(what, missing))
    }

    /// Writes keys that do not exist. Another leader may have written them first, and then they stay.
    async fn create(
        &self,
        what: &'static str,
        permit: &Permit,
        values: BTreeMap<&str, String>,
    ) -> Result<(), KubernetesSecretError> {
        permit.check(Instant::now())?;
        let absent = |key: &&str| Condition::Unchanged { key: (*key).to_owned(), revision: 0 };
        let conditions = values.keys().map(absent).collect();
        let put = |(key, value): (&str, String)| Write::Put {
            key: key.to_owned(),
            value: Bytes::from(value),
            lease: 0,
        };
        let writes = values.into_iter().map(put).collect();
        let written = self.store.commit(Transaction { conditions, writes }).await;
        match written.map_err(|error| stored_secret_error(what, error))? {
            Outcome::Committed { .. } | Outcome::Refused { .. } => Ok(()),
        }
    }

    async fn read_pair(&self) -> Result<Option<IssuedCertificate>, KubernetesSecretError> {
        let certificate = self.read_secret(PAIR, keys::SERVICE_ACCOUNT_CERTIFICATE).await?;
        let plain = self.read_secret(PAIR, keys::SERVICE_ACCOUNT_KEY).await?;
        let encrypted = self.read_secret(PAIR, keys::SERVICE_ACCOUNT_ENCRYPTED).await?;
        let private_key = match (plain, encrypted) {
            (Some(plain), _) => Some(Secret::new(plain)),
            (None, Some(encrypted)) => {
                Some(self.decrypt(PAIR, keys::SERVICE_ACCOUNT_ENCRYPTED, &encrypted)?)
            }
            (None, None) => None,
        };
        match (certificate, private_key) {
            (Some(certificate), Some(private_key)) => {
                Ok(Some(IssuedCertificate { certificate, private_key }))
            }
            (None, None) => Ok(None),
            // A new pair would end all tokens.
            (Some(_), None) => {
                Err(stored_secret_error(PAIR, "the store has its certificate and lacks its private key"))
            }
            (None, Some(_)) => {
                Err(stored_secret_error(PAIR, "the store has its private key and lacks its certificate"))
            }
        }
    }
}

#[async_trait]
impl KubernetesSecrets for SharedSecrets {
    async fn service_account(&self, permit: &Permit) -> Result<IssuedCertificate, KubernetesSecretError> {
        if let Some(pair) = self.read_pair().await? {
            return Ok(pair);
        }
        permit.check(Instant::now())?;
        let issued = self.authorities.issue(&service_account()).await?;
        let vault = self.vault.read_access().await.map_err(|error| stored_secret_error(PAIR, error))?;
        let (key, private_key) = match vault {
            Some(_) => (keys::SERVICE_ACCOUNT_KEY, issued.private_key.reveal().to_owned()),
            None => {
                let key = keys::SERVICE_ACCOUNT_ENCRYPTED;
                (key, self.encrypt(PAIR, key, &issued.private_key)?)
            }
        };
        let values =
            BTreeMap::from([(keys::SERVICE_ACCOUNT_CERTIFICATE, issued.certificate), (key, private_key)]);
        self.create(PAIR, permit, values).await?;
        self.read_pair().await?.ok_or_else(|| stored_secret_error(PAIR, "it is gone from the store"))
    }

    async fn encryption_keys(&self, permit: &Permit) -> Result<Secret, KubernetesSecretError> {
        let failed = |error: madako_protocol::vault::VaultError| stored_secret_error(ENCRYPTION, error);
        if let Some(secrets) = self.vault.open_secrets().await.map_err(failed)? {
            let missing = "Vault has none: madako vault enckey makes the first one";
            return secrets
                .encryption_keys()
                .await
                .map_err(failed)?
                .ok_or_else(|| stored_secret_error(ENCRYPTION, missing));
        }
        let key = keys::ENCRYPTION_KEYS;
        if let Some(text) = self.read_secret(ENCRYPTION, key).await? {
            return self.decrypt(ENCRYPTION, key, &text);
        }
        let first =
            generate_first_keys(self.clock.now()).map_err(|why| stored_secret_error(ENCRYPTION, why))?;
        let encrypted = self.encrypt(ENCRYPTION, key, &first)?;
        self.create(ENCRYPTION, permit, BTreeMap::from([(key, encrypted)])).await?;
        let text = self.read_secret(ENCRYPTION, key).await?;
        let text = text.ok_or_else(|| stored_secret_error(ENCRYPTION, "they are gone from the store"))?;
        self.decrypt(ENCRYPTION, key, &text)
    }

    async fn change_encryption_keys(
        &self,
        permit: &Permit,
        change: &EncryptionKeyChange,
    ) -> Result<(), KubernetesSecretError> {
        let failed = |error: madako_protocol::vault::VaultError| stored_secret_error(ENCRYPTION, error);
        permit.check(Instant::now())?;
        let Some(secrets) = self.vault.open_secrets().await.map_err(failed)? else {
            return self.change_encrypted_keys(permit, change).await;
        };
        // The permit is the only fence: another leader may change the keys after its end.
        let changed = timeout_at(permit.expires_at(), secrets.change_encryption_keys(change)).await;
        let changed = changed.map_err(|_| PermitEnded { epoch: permit.epoch() })?;
        changed.map_err(|why| stored_secret_error(ENCRYPTION, why))
    }
}

/// CKE's request for the pair.
fn service_account() -> CertificateRequest {
    CertificateRequest {
        authority: Authority::Kubernetes,
        common_name: "service-account".to_owned(),
        organization: String::new(),
        dns_names: Vec::new(),
        addresses: Vec::new(),
        usage: Usage::Tokens,
        validity: SERVICE_ACCOUNT_VALIDITY,
    }
}

//! The certificate authorities with their keys in etcd: reading, creation, import.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use madako_domain::authority::Authority;
use madako_domain::certificate::Validity;
use madako_domain::keys;
use madako_domain::store::{Condition, Outcome, StoreError, Transaction, Write};
use madako_encryption::Keys;
use madako_protocol::authorities::{
    Authorities, AuthorityError, CertificateRequest, IssuedCertificate, RenewalReason,
};
use madako_protocol::ports::Clock;
use madako_protocol::secret::Secret;
use madako_protocol::store::Store;

use crate::ca::{self, AuthorityFault, Ca, SigningRefusal};
use crate::renewal;

/// The error of a creation or an import.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// An authority cannot be read.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// A certificate without its key.
    #[error(
        "the authority {0} has a certificate ({certificate}) but no private key ({private}): madako ca set {0} FILE \
         --key FILE stores both",
        certificate = keys::ca(*.0),
        private = keys::ca_key(*.0)
    )]
    NoKey(Authority),
    /// A private key without its certificate.
    #[error(
        "the authority {0} has a private key ({private}) but no certificate ({certificate}): madako ca set {0} FILE \
         --key FILE stores both",
        certificate = keys::ca(*.0),
        private = keys::ca_key(*.0)
    )]
    NoCertificate(Authority),
    /// The given certificate and key are unusable.
    #[error("cannot use the given files as the authority {authority}: {why}")]
    Rejected { authority: Authority, why: String },
    /// There is nothing to encrypt private keys with.
    #[error(
        "cannot encrypt the private keys of authorities: set pki.key_file or pki.key_env in the configuration file"
    )]
    NoEncryption,
    /// Another command wrote the authority first.
    #[error("another command changed the authority {0} at the same time: run the command again")]
    Changed(Authority),
    #[error("cannot store the authority {authority}")]
    Store { authority: Authority, source: StoreError },
}

pub struct BuiltInAuthorities {
    store: Arc<dyn Store>,
    keys: Keys,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for BuiltInAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuiltInAuthorities").field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl BuiltInAuthorities {
    /// The authorities in `store`, whose private keys are encrypted with `keys`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, keys: Keys, clock: Arc<dyn Clock>) -> Self {
        Self { store, keys, clock }
    }

    /// Creates the missing authorities, each in one transaction. Returns their names.
    ///
    /// # Errors
    /// Before anything is written: an authority whose certificate or key is missing or unusable, so that certificates
    /// of two authorities of one name never mix.
    pub async fn init(&self) -> Result<Vec<Authority>, CaError> {
        let mut missing = Vec::new();
        for authority in Authority::ALL {
            match (
                self.read_stored_text(authority, keys::ca).await?,
                self.read_stored_text(authority, keys::ca_key).await?,
            ) {
                (None, None) => missing.push(authority),
                (Some(_), None) => return Err(CaError::NoKey(authority)),
                (None, Some(_)) => return Err(CaError::NoCertificate(authority)),
                (Some(certificate), Some(key)) => drop(self.open_authority(authority, &certificate, &key)?),
            }
        }
        for authority in &missing {
            let (certificate, key) = Ca::create(*authority, self.clock.now())
                .map_err(|refusal| key_error(*authority, refusal.to_string()))?;
            let absent = |key: String| Condition::Unchanged { key, revision: 0 };
            let conditions = vec![absent(keys::ca(*authority)), absent(keys::ca_key(*authority))];
            self.write(*authority, &certificate, &key, conditions).await?;
        }
        Ok(missing)
    }

    /// Stores a certificate and its key as an authority, in place of an earlier one.
    ///
    /// # Errors
    /// The certificate or the key is unusable, or the store did not write.
    pub async fn import(&self, authority: Authority, certificate: &str, key: &Secret) -> Result<(), CaError> {
        let rejected = |why: SigningRefusal| CaError::Rejected { authority, why: why.to_string() };
        let ca = Ca::read(certificate, key.reveal()).map_err(|fault| rejected(fault.into()))?;
        ca.check(self.clock.now()).map_err(rejected)?;
        self.write(authority, certificate, key, Vec::new()).await
    }

    async fn write(
        &self,
        authority: Authority,
        certificate: &str,
        key: &Secret,
        conditions: Vec<Condition>,
    ) -> Result<(), CaError> {
        let path = keys::ca_key(authority);
        let encrypted = self.keys.encrypt(&path, "", key.reveal()).ok_or(CaError::NoEncryption)?;
        let put = |key: String, value: String| Write::Put { key, value: Bytes::from(value), lease: 0 };
        let writes = vec![put(keys::ca(authority), certificate.to_owned()), put(path, encrypted)];
        match self.store.commit(Transaction { conditions, writes }).await {
            Ok(Outcome::Committed { .. }) => Ok(()),
            Ok(Outcome::Refused { .. }) => Err(CaError::Changed(authority)),
            Err(source) => Err(CaError::Store { authority, source }),
        }
    }

    async fn read_stored_text(
        &self,
        authority: Authority,
        path: impl Fn(Authority) -> String,
    ) -> Result<Option<String>, AuthorityError> {
        let path = path(authority);
        // Another key may have this one as its prefix: ca/kubernetes and ca/kubernetes-webhook.
        let mut snapshot = self
            .store
            .list(&path)
            .await
            .map_err(|error| AuthorityError::Unavailable { authority, why: error.to_string() })?;
        let Some(entry) = snapshot.entries.remove(&path) else { return Ok(None) };
        let text = String::from_utf8(entry.value.to_vec());
        text.map(Some).map_err(|_| key_error(authority, format!("{path} is not text")))
    }

    /// An authority from its stored values.
    fn open_authority(
        &self,
        authority: Authority,
        certificate: &str,
        key: &str,
    ) -> Result<Ca, AuthorityError> {
        let path = keys::ca_key(authority);
        let key = self.keys.decrypt(&path, "", key);
        let key = key.map_err(|error| key_error(authority, format!("{path}: {error}")))?;
        Ca::read(certificate, &key)
            .map_err(|fault| key_error(authority, format!("{} and {path}: {fault}", keys::ca(authority))))
    }
}

fn key_error(authority: Authority, why: String) -> AuthorityError {
    AuthorityError::Key { authority, why }
}

#[async_trait]
impl Authorities for BuiltInAuthorities {
    async fn certificate(&self, authority: Authority) -> Result<String, AuthorityError> {
        let found = self.read_stored_text(authority, keys::ca).await?;
        found.ok_or(AuthorityError::Missing { authority })
    }

    async fn issue(&self, request: &CertificateRequest) -> Result<IssuedCertificate, AuthorityError> {
        let authority = request.authority;
        let certificate = self.certificate(authority).await?;
        let key = self.read_stored_text(authority, keys::ca_key).await?;
        let key =
            key.ok_or_else(|| key_error(authority, format!("{} is missing", keys::ca_key(authority))))?;
        let ca = self.open_authority(authority, &certificate, &key)?;
        ca.issue(request, self.clock.now()).map_err(|refusal| match refusal {
            SigningRefusal::Authority(fault @ AuthorityFault::Time { .. }) => {
                key_error(authority, fault.to_string())
            }
            other => {
                AuthorityError::Request { common_name: request.common_name.clone(), why: other.to_string() }
            }
        })
    }
    fn validity(&self, certificate: &str) -> Option<Validity> {
        let certificate = ca::certificate_der(certificate).ok()?;
        ca::parse_certificate(&certificate).ok().map(|certificate| renewal::validity_of(&certificate))
    }

    fn due(
        &self,
        certificate: Option<&str>,
        issuer: &str,
        wanted: &CertificateRequest,
    ) -> Option<RenewalReason> {
        renewal::reason_to_renew(certificate, issuer, wanted, self.clock.now())
    }
}

//! The port to the secrets that all API servers of a cluster share. Each is made once.

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
        /// The secret.
        what: &'static str,
        /// The fault, without a part of the secret.
        why: String,
    },
}

/// The port to the shared secrets.
#[async_trait]
pub trait KubernetesSecrets: Send + Sync + 'static {
    /// The certificate and key with which API servers check and sign the tokens of service accounts. The first call
    /// issues them; they are never renewed, since all tokens would end.
    async fn service_account(&self, permit: &Permit) -> Result<IssuedCertificate, KubernetesSecretError>;

    /// The keys with which API servers encrypt Secrets, in CKE's form:
    /// `{"keys": [{"name": NAME, "secret": BASE64}]}`, the newest first. Without Vault, the first call makes a key.
    async fn encryption_keys(&self, permit: &Permit) -> Result<Secret, KubernetesSecretError>;
}

//! The port to the certificate authorities of the cluster.

use std::time::Duration;

use async_trait::async_trait;
use madako_domain::authority::Authority;
use madako_domain::certificate::Validity;

use crate::permit::{Permit, PermitEnded};
use crate::secret::Secret;
use crate::vault::VaultError;

/// The permitted use of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// TLS server.
    Server,
    /// TLS client.
    Client,
    /// TLS server and client.
    Both,
    /// No TLS: signatures of tokens, as CKE has it for service accounts.
    Tokens,
}

/// A certificate to issue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    /// The authority that signs the certificate.
    pub authority: Authority,
    /// Common name of the subject.
    pub common_name: String,
    /// Organization of the subject; empty for none.
    pub organization: String,
    /// DNS names of the subject.
    pub dns_names: Vec<String>,
    /// IP addresses of the subject.
    pub addresses: Vec<String>,
    /// Use that the certificate permits.
    pub usage: Usage,
    /// Validity from now on.
    pub validity: Duration,
}

/// An issued certificate with its private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// The certificate in PEM.
    pub certificate: String,
    /// The private key in PEM.
    pub private_key: Secret,
}

/// The reason why an authority issued nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// The authority has no certificate.
    #[error(
        "there is no authority {authority}: madako ca init creates it, or madako vault init where Vault is used"
    )]
    Missing {
        /// Name of the authority.
        authority: Authority,
    },
    /// The key of the authority is missing or not readable.
    #[error("the key of the authority {authority} is not usable: {why}")]
    Key {
        /// Name of the authority.
        authority: Authority,
        /// The fault, without a part of the key.
        why: String,
    },
    /// The store with the authorities did not answer.
    #[error("cannot read the authority {authority}: {why}")]
    Unavailable {
        /// Name of the authority.
        authority: Authority,
        /// The message of the store.
        why: String,
    },
    /// Neither Vault nor a key of this service's own can issue.
    #[error(
        "cannot issue certificates: the store has no key vault (madako vault init writes it), and the configuration \
         has no section pki"
    )]
    NoIssuer,
    /// Vault did not carry out a request.
    #[error(transparent)]
    Vault(#[from] VaultError),
    /// The issued certificate is not the requested one.
    #[error("the certificate that Vault issued for {common_name} is not usable: {why}")]
    Unfit {
        /// Common name of the subject.
        common_name: String,
        /// The part of the certificate that differs from the request.
        why: String,
    },
    /// The permit had expired; the removal did not begin.
    #[error(transparent)]
    Permit(#[from] PermitEnded),
    /// The request is invalid.
    #[error("cannot issue a certificate for {common_name}: {why}")]
    Request {
        /// Common name of the subject.
        common_name: String,
        /// The field of the request that is invalid.
        why: String,
    },
}

/// The reason why a certificate must be issued anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewalReason {
    /// There is no certificate, or an unreadable one.
    Missing,
    /// Another authority issued it, or it lacks a wanted name or use.
    Foreign,
    /// It is not valid yet, ended, or ends soon.
    Old,
}

/// The port to the certificate authorities.
#[async_trait]
pub trait Authorities: Send + Sync + 'static {
    /// The certificate of an authority in PEM.
    async fn certificate(&self, authority: Authority) -> Result<String, AuthorityError>;

    /// Issues a certificate with a new key.
    async fn issue(&self, request: &CertificateRequest) -> Result<IssuedCertificate, AuthorityError>;

    /// True if certificates can be issued at present, by one cheap request.
    ///
    /// # Errors
    /// The reason why not. A later [`Authorities::issue`] would fail for it.
    async fn ready(&self) -> Result<(), AuthorityError> {
        Ok(())
    }

    /// Removes the expired certificates of an authority, where a server keeps them. Returns whether one does.
    async fn tidy(&self, _permit: &Permit, _authority: Authority) -> Result<bool, AuthorityError> {
        Ok(false)
    }

    /// The validity of a certificate in PEM; `None` if the text is none.
    fn validity(&self, certificate: &str) -> Option<Validity>;

    /// The first reason to issue a certificate anew; `None` if it can stay. `issuer` is the certificate of the wanted
    /// authority. Names and uses beyond the wanted ones do not count: a certificate that CKE issued has some.
    fn due(
        &self,
        certificate: Option<&str>,
        issuer: &str,
        wanted: &CertificateRequest,
    ) -> Option<RenewalReason>;
}

//! Selects the certificate authorities of a cluster: those of Vault if the store has the settings of its access (key
//! `vault`), else the built-in ones.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use madako_domain::authority::Authority;
use madako_domain::certificate::Validity;
use madako_protocol::authorities::{
    Authorities, AuthorityError, CertificateRequest, IssuedCertificate, RenewalReason,
};
use madako_protocol::permit::Permit;
use tokio::time::Instant;

use crate::vault::Vault;

/// Chooses for each request. The certificates of authorities are in the store either way.
pub struct ChosenAuthorities {
    vault: Arc<Vault>,
    /// Reads certificates, and issues where Vault does not.
    own: Arc<dyn Authorities>,
    /// True if `own` has keys.
    issues: bool,
}

impl fmt::Debug for ChosenAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChosenAuthorities").field("issues", &self.issues).finish_non_exhaustive()
    }
}

impl ChosenAuthorities {
    /// Without Vault, `own` issues if `issues` is true; else nothing can be issued.
    #[must_use]
    pub fn new(vault: Arc<Vault>, own: Arc<dyn Authorities>, issues: bool) -> Self {
        Self { vault, own, issues }
    }

    /// A certificate for other names, or of another authority than the store has, must not reach a node.
    async fn check(
        &self,
        issued: &IssuedCertificate,
        wanted: &CertificateRequest,
    ) -> Result<(), AuthorityError> {
        let issuer = self.own.certificate(wanted.authority).await?;
        let why = match self.own.due(Some(&issued.certificate), &issuer, wanted) {
            None | Some(RenewalReason::Old) => return Ok(()),
            Some(RenewalReason::Missing) => "it cannot be read".to_owned(),
            Some(RenewalReason::Foreign) => format!(
                "it lacks a name or a use, or ca/{} is not the certificate of Vault's authority",
                wanted.authority
            ),
        };
        Err(AuthorityError::Unfit { common_name: wanted.common_name.clone(), why })
    }
}

#[async_trait]
impl Authorities for ChosenAuthorities {
    async fn certificate(&self, authority: Authority) -> Result<String, AuthorityError> {
        self.own.certificate(authority).await
    }

    async fn issue(&self, request: &CertificateRequest) -> Result<IssuedCertificate, AuthorityError> {
        match self.vault.open_session().await? {
            Some(session) => {
                let issued = session.issue(request).await?;
                self.check(&issued, request).await?;
                Ok(issued)
            }
            None if self.issues => self.own.issue(request).await,
            None => Err(AuthorityError::NoIssuer),
        }
    }

    async fn ready(&self) -> Result<(), AuthorityError> {
        match self.vault.open_session().await? {
            Some(session) => Ok(session.check_ready().await?),
            None if self.issues => self.own.ready().await,
            None => Err(AuthorityError::NoIssuer),
        }
    }

    async fn tidy(&self, permit: &Permit, authority: Authority) -> Result<bool, AuthorityError> {
        let Some(session) = self.vault.open_session().await? else { return Ok(false) };
        permit.check(Instant::now())?;
        session.tidy(authority).await?;
        Ok(true)
    }

    fn validity(&self, certificate: &str) -> Option<Validity> {
        self.own.validity(certificate)
    }

    fn due(
        &self,
        certificate: Option<&str>,
        issuer: &str,
        wanted: &CertificateRequest,
    ) -> Option<RenewalReason> {
        self.own.due(certificate, issuer, wanted)
    }
}

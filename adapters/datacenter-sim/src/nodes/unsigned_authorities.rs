//! Certificate authorities for simulated nodes, whose certificates are readable text.
//!
//! A certificate names its issuer, its subject and its validity. Nothing is signed: simulated nodes check no certificate.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::authority::Authority;
use madako_domain::certificate::Validity;
use madako_protocol::authorities::{
    Authorities, AuthorityError, CertificateRequest, IssuedCertificate, RenewalReason,
};
use madako_protocol::ports::Clock;
use madako_protocol::secret::Secret;
use time::OffsetDateTime;

/// Authorities that issue certificates of text.
pub struct UnsignedAuthorities {
    clock: Arc<dyn Clock>,
    /// Upper bound of the life of certificates, so that a simulation of some days shows renewals.
    longest: Duration,
}

impl UnsignedAuthorities {
    /// Certificates are valid for the requested time, and at most for `longest`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, longest: Duration) -> Self {
        Self { clock, longest }
    }
}

/// The part of a certificate that does not depend on time.
fn certificate_subject(wanted: &CertificateRequest) -> String {
    let CertificateRequest { authority, common_name, organization, dns_names, addresses, usage, .. } = wanted;
    let names: Vec<&str> = dns_names.iter().chain(addresses).map(String::as_str).collect();
    format!("{authority} certifies {common_name} {organization} {} {usage:?}", names.join(","))
}

#[async_trait]
impl Authorities for UnsignedAuthorities {
    async fn certificate(&self, authority: Authority) -> Result<String, AuthorityError> {
        Ok(format!("certificate of {authority}"))
    }

    async fn issue(&self, request: &CertificateRequest) -> Result<IssuedCertificate, AuthorityError> {
        let from = self.clock.now().unix_timestamp();
        let life = request.validity.min(self.longest).as_secs();
        let to = from.saturating_add_unsigned(life);
        let certificate = format!("{} from {from} to {to}", certificate_subject(request));
        Ok(IssuedCertificate { certificate, private_key: Secret::new("key".to_owned()) })
    }

    fn validity(&self, certificate: &str) -> Option<Validity> {
        let (_, times) = certificate.rsplit_once(" from ")?;
        let (from, to) = times.split_once(" to ")?;
        let time = |text: &str| OffsetDateTime::from_unix_timestamp(text.parse().ok()?).ok();
        Some(Validity { from: time(from)?, to: time(to)? })
    }

    fn due(
        &self,
        certificate: Option<&str>,
        issuer: &str,
        wanted: &CertificateRequest,
    ) -> Option<RenewalReason> {
        let Some((certificate, validity)) = certificate.and_then(|it| Some((it, self.validity(it)?))) else {
            return Some(RenewalReason::Missing);
        };
        let is_own = issuer == format!("certificate of {}", wanted.authority)
            && certificate.starts_with(&format!("{} from ", certificate_subject(wanted)));
        if !is_own {
            return Some(RenewalReason::Foreign);
        }
        validity.must_renew(self.clock.now()).then_some(RenewalReason::Old)
    }
}

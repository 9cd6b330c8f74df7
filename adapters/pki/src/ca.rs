//! A certificate authority in memory, which signs with its certificate and its private key.

use std::net::IpAddr;

use madako_domain::authority::Authority;
use madako_domain::certificate::Validity;
use madako_protocol::authorities::{CertificateRequest, IssuedCertificate, Usage};
use madako_protocol::secret::Secret;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData as _, SanType,
};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::pem::Pem;

use crate::limits::{CA_VALIDITY, MAX_PEM, SKEW};
use crate::renewal::validity_of;

/// Label of a private key that this crate reads and writes.
const KEY_LABEL: &str = "PRIVATE KEY";
const CERTIFICATE_LABEL: &str = "CERTIFICATE";

/// A certificate and key that make no authority. Nothing is quoted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityFault {
    /// The certificate is not one PEM block of a certificate.
    #[error("expected exactly one CA certificate in PEM: the text has none, or several")]
    Certificate,
    /// The certificate is that of no authority.
    #[error(
        "the certificate is not a CA certificate: expected basicConstraints with CA:TRUE, and keyCertSign if it has a key usage"
    )]
    NoAuthority,
    /// The certificate is not valid now.
    #[error(
        "the certificate is valid from {from} to {to}, and not at the present time: import a new one with madako ca \
         set, or correct the clock of this host"
    )]
    Time {
        /// Begin of its validity.
        from: OffsetDateTime,
        /// End of its validity.
        to: OffsetDateTime,
    },
    /// The key is not one PEM block of a private key.
    #[error("expected exactly one private key in PEM (PKCS#8): the text has none, or several")]
    Key,
    /// The key has another form, or is encrypted.
    #[error(
        "the private key is not in PKCS#8, or has a password: openssl pkcs8 -topk8 -nocrypt -in FILE converts it"
    )]
    KeyForm,
    /// The kind of the key cannot be used.
    #[error(
        "the private key has an unsupported algorithm or size: expected a key of RSA with 2048 to 4096 bits, of ECDSA on P-256 or P-384, or of Ed25519"
    )]
    KeyKind,
    /// The key is that of another certificate.
    #[error(
        "the private key does not belong to the certificate: give the key for which the certificate was issued"
    )]
    OtherKey,
    /// The subject of the certificate cannot be repeated in issued certificates.
    #[error(
        "the subject of the certificate cannot be repeated exactly in issued certificates: expected a simple subject, such as only CN and O"
    )]
    Name,
}

/// A request that cannot be fulfilled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SigningRefusal {
    /// The authority cannot sign.
    #[error(transparent)]
    Authority(#[from] AuthorityFault),
    /// A name that a certificate cannot contain.
    #[error("a certificate cannot contain the name {0:?}: expected an IP address or a DNS name")]
    Name(String),
    /// The cryptographic library failed.
    #[error("the cryptographic library cannot {what}: {why}")]
    Library { what: &'static str, why: String },
}

/// An authority that can sign.
pub(crate) struct Ca {
    /// The certificate in DER.
    certificate: Vec<u8>,
    key: KeyPair,
}

/// The bytes of the only certificate in a PEM text.
pub(crate) fn certificate_der(pem: &str) -> Result<Vec<u8>, AuthorityFault> {
    match parse_pem_blocks(pem).ok_or(AuthorityFault::Certificate)?.as_mut_slice() {
        [one] if one.label == CERTIFICATE_LABEL => Ok(std::mem::take(&mut one.contents)),
        _ => Err(AuthorityFault::Certificate),
    }
}

/// A certificate with nothing after it.
pub(crate) fn parse_certificate(der: &[u8]) -> Result<X509Certificate<'_>, AuthorityFault> {
    match x509_parser::parse_x509_certificate(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(AuthorityFault::Certificate),
    }
}

/// The time in which the first certificate of a PEM text is valid.
///
/// # Errors
/// The text does not begin with a certificate.
pub fn read_validity(pem: &str) -> Result<Validity, AuthorityFault> {
    let blocks = parse_pem_blocks(pem).ok_or(AuthorityFault::Certificate)?;
    let first =
        blocks.first().filter(|block| block.label == CERTIFICATE_LABEL).ok_or(AuthorityFault::Certificate)?;
    Ok(validity_of(&parse_certificate(&first.contents)?))
}

fn parse_pem_blocks(pem: &str) -> Option<Vec<Pem>> {
    if pem.len() > MAX_PEM {
        return None;
    }
    Pem::iter_from_buffer(pem.as_bytes()).collect::<Result<_, _>>().ok()
}

/// The only private key in a PEM text.
fn private_key(pem: &str) -> Result<KeyPair, AuthorityFault> {
    let blocks = parse_pem_blocks(pem).ok_or(AuthorityFault::Key)?;
    if blocks.iter().any(|block| block.label.ends_with(KEY_LABEL) && block.label != KEY_LABEL) {
        return Err(AuthorityFault::KeyForm);
    }
    match blocks.as_slice() {
        [one] if one.label == KEY_LABEL => {
            KeyPair::try_from(one.contents.as_slice()).map_err(|_| AuthorityFault::KeyKind)
        }
        _ => Err(AuthorityFault::Key),
    }
}

/// True if `signer` signed the certificate, and is named as its issuer.
pub(crate) fn is_signed_by(certificate: &X509Certificate<'_>, signer: &X509Certificate<'_>) -> bool {
    certificate.issuer().as_raw() == signer.subject().as_raw()
        && certificate.verify_signature(Some(signer.public_key())).is_ok()
}

impl Ca {
    pub(crate) fn read(certificate_pem: &str, key_pem: &str) -> Result<Self, AuthorityFault> {
        let certificate = certificate_der(certificate_pem)?;
        let key = private_key(key_pem)?;
        if parse_certificate(&certificate)?.public_key().raw != key.subject_public_key_info() {
            return Err(AuthorityFault::OtherKey);
        }
        Ok(Self { certificate, key })
    }

    /// Makes a new authority. Returns its certificate and key in PEM.
    pub(crate) fn create(
        authority: Authority,
        now: OffsetDateTime,
    ) -> Result<(String, Secret), SigningRefusal> {
        let key = generate_key()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, authority.common_name());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = now - SKEW;
        params.not_after = now + CA_VALIDITY;
        let certificate =
            params.self_signed(&key).map_err(library_error("sign the certificate of the new authority"))?;
        Ok((certificate.pem(), Secret::new(key.serialize_pem())))
    }

    /// Checks that the certificate is that of an authority, is valid now, and signs certificates that name it.
    pub(crate) fn check(&self, now: OffsetDateTime) -> Result<(), SigningRefusal> {
        let own = parse_certificate(&self.certificate)?;
        let may_sign = match own.key_usage() {
            Ok(None) => true,
            Ok(Some(usage)) => usage.value.key_cert_sign(),
            Err(_) => false,
        };
        if !own.is_ca() || !may_sign {
            return Err(AuthorityFault::NoAuthority.into());
        }
        let trial = self.sign_certificate(leaf_parameters("trial", Usage::Client), now)?;
        match certificate_der(&trial.certificate).as_deref().map(parse_certificate) {
            Ok(Ok(trial)) if is_signed_by(&trial, &own) => Ok(()),
            _ => Err(AuthorityFault::Name.into()),
        }
    }

    /// Issues a certificate with a new key.
    pub(crate) fn issue(
        &self,
        request: &CertificateRequest,
        now: OffsetDateTime,
    ) -> Result<IssuedCertificate, SigningRefusal> {
        let mut params = leaf_parameters(&request.common_name, request.usage);
        if request.common_name.is_empty() {
            return Err(SigningRefusal::Name(String::new()));
        }
        if !request.organization.is_empty() {
            params.distinguished_name.push(DnType::OrganizationName, request.organization.as_str());
        }
        for name in &request.dns_names {
            let text = name.as_str().try_into().map_err(|_| SigningRefusal::Name(name.clone()))?;
            params.subject_alt_names.push(SanType::DnsName(text));
        }
        for address in &request.addresses {
            let parsed: IpAddr = address.parse().map_err(|_| SigningRefusal::Name(address.clone()))?;
            params.subject_alt_names.push(SanType::IpAddress(parsed));
        }
        let validity = time::Duration::try_from(request.validity).unwrap_or(time::Duration::MAX);
        // A later end than the calendar has is replaced by the authority's own end.
        params.not_after = now.checked_add(validity).unwrap_or(params.not_after);
        self.sign_certificate(params, now)
    }

    /// Signs a certificate for a new key. It begins a little before `now`, and ends with the authority at the latest.
    fn sign_certificate(
        &self,
        mut params: CertificateParams,
        now: OffsetDateTime,
    ) -> Result<IssuedCertificate, SigningRefusal> {
        let validity = parse_certificate(&self.certificate)?.validity().clone();
        let (from, to) = (validity.not_before.to_datetime(), validity.not_after.to_datetime());
        if now < from || to <= now {
            return Err(AuthorityFault::Time { from, to }.into());
        }
        params.not_before = from.max(now - SKEW);
        params.not_after = to.min(params.not_after);
        let issuer = Issuer::from_ca_cert_der(&self.certificate.as_slice().into(), &self.key);
        let issuer = issuer.map_err(|_| AuthorityFault::Name)?;
        let key = generate_key()?;
        let signed = params.signed_by(&key, &issuer);
        let certificate =
            signed.map_err(library_error("sign the certificate with the key of the authority"))?;
        Ok(IssuedCertificate {
            certificate: certificate.pem(),
            private_key: Secret::new(key.serialize_pem()),
        })
    }
}

fn generate_key() -> Result<KeyPair, SigningRefusal> {
    KeyPair::generate().map_err(library_error("generate a private key"))
}

fn library_error(what: &'static str) -> impl Fn(rcgen::Error) -> SigningRefusal {
    move |error| SigningRefusal::Library { what, why: error.to_string() }
}

/// A certificate of no authority. Its serial number comes from the hash of its new public key.
fn leaf_parameters(common_name: &str, usage: Usage) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = match usage {
        Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
        Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
        Usage::Both => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        Usage::Tokens => {
            params.key_usages.push(KeyUsagePurpose::KeyCertSign);
            Vec::new()
        }
    };
    params
}

//! The decision whether a certificate must be issued anew. Pure: the time comes from the caller.

use std::collections::BTreeSet;
use std::net::IpAddr;

use madako_domain::certificate::Validity;
use madako_protocol::authorities::{CertificateRequest, RenewalReason, Usage};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use crate::ca::{certificate_der, is_signed_by, parse_certificate};

pub(crate) fn validity_of(leaf: &X509Certificate<'_>) -> Validity {
    let validity = leaf.validity();
    Validity { from: validity.not_before.to_datetime(), to: validity.not_after.to_datetime() }
}

/// The first reason to issue a certificate anew; `None` if it can stay. `authority` is the certificate of the wanted
/// issuer.
pub(crate) fn reason_to_renew(
    leaf: Option<&str>,
    authority: &str,
    wanted: &CertificateRequest,
    now: OffsetDateTime,
) -> Option<RenewalReason> {
    let Some(leaf) = leaf.and_then(|pem| certificate_der(pem).ok()) else {
        return Some(RenewalReason::Missing);
    };
    let Ok(leaf) = parse_certificate(&leaf) else { return Some(RenewalReason::Missing) };
    let signer = certificate_der(authority).ok();
    let signer = signer.as_deref().and_then(|der| parse_certificate(der).ok());
    let is_own = signer.is_some_and(|signer| is_signed_by(&leaf, &signer));
    if !is_own || !has_names(&leaf, wanted) || !has_usage(&leaf, wanted.usage) {
        return Some(RenewalReason::Foreign);
    }
    validity_of(&leaf).must_renew(now).then_some(RenewalReason::Old)
}

fn has_names(leaf: &X509Certificate<'_>, wanted: &CertificateRequest) -> bool {
    let subject = leaf.subject();
    let mut common_names = subject.iter_common_name().map(|name| name.as_str());
    if common_names.next() != Some(Ok(wanted.common_name.as_str())) {
        return false;
    }
    // The organization of a client certificate is its group in Kubernetes: it must be the wanted one alone.
    let organizations: Vec<_> = subject.iter_organization().map(|name| name.as_str()).collect();
    let wanted_organizations: Vec<_> =
        Some(Ok(wanted.organization.as_str())).into_iter().filter(|name| *name != Ok("")).collect();
    if organizations != wanted_organizations {
        return false;
    }
    let Ok(names) = leaf.subject_alternative_name() else { return false };
    let names = names.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    let dns: BTreeSet<&str> = names
        .iter()
        .filter_map(|name| if let GeneralName::DNSName(name) = name { Some(*name) } else { None })
        .collect();
    let addresses: BTreeSet<IpAddr> = names
        .iter()
        .filter_map(|name| if let GeneralName::IPAddress(bytes) = name { parse_address(bytes) } else { None })
        .collect();
    wanted.dns_names.iter().all(|name| dns.contains(name.as_str()))
        && wanted.addresses.iter().all(|text| text.parse().is_ok_and(|ip| addresses.contains(&ip)))
}

fn parse_address(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

/// True if the certificate permits the use. Without the extension it permits any (RFC 5280, section 4.2.1.12).
fn has_usage(leaf: &X509Certificate<'_>, wanted: Usage) -> bool {
    let Ok(usage) = leaf.extended_key_usage() else { return false };
    let Some(usage) = usage.map(|extension| extension.value) else { return true };
    let (server, client) = (usage.any || usage.server_auth, usage.any || usage.client_auth);
    match wanted {
        Usage::Server => server,
        Usage::Client => client,
        Usage::Both => server && client,
        // Programs use the key alone.
        Usage::Tokens => true,
    }
}

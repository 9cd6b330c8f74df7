//! Certificates that the authorities issue, as TLS validates them; creation and import in an embedded store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use madako_domain::authority::Authority;
use madako_domain::store::{Transaction, Write};
use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, Options};
use madako_protocol::authorities::{
    Authorities as _, AuthorityError, CertificateRequest, IssuedCertificate, RenewalReason, Usage,
};
use madako_protocol::ports::Clock;
use madako_protocol::secret::Secret;
use madako_protocol::store::Store;
use madako_store::{EtcdStore, StoreConfig};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use time::OffsetDateTime;

use crate::ca::{Ca, certificate_der, parse_certificate, read_validity};
use crate::renewal::reason_to_renew;
use crate::{BuiltInAuthorities, CaError, Keys};

/// The begin of 2027.
const NOW: OffsetDateTime = match OffsetDateTime::from_unix_timestamp(1_798_761_600) {
    Ok(now) => now,
    Err(_) => panic!("a time of this century"),
};
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const FIRST: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
const SECOND: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

/// Authorities of openssl, valid from November 2026 on for a hundred years.
const RSA: (&str, &str) = (include_str!("tests/rsa.crt"), include_str!("tests/rsa.key"));
const RSA_PKCS1: &str = include_str!("tests/rsa-pkcs1.key");
const RSA_1024: (&str, &str) = (include_str!("tests/rsa-1024.crt"), include_str!("tests/rsa-1024.key"));

/// A clock that stands still.
struct At(OffsetDateTime);

impl Clock for At {
    fn now(&self) -> OffsetDateTime {
        self.0
    }
}

/// An embedded store, and the authorities in it.
struct Place {
    _etcd: EmbeddedEtcd,
    store: Arc<EtcdStore>,
}

impl Place {
    async fn new() -> Self {
        let etcd = EmbeddedEtcd::open(Options::new(Backend::Memory, Commit::Inline, 1)).unwrap();
        let client = etcd.direct_client().await.unwrap();
        let config = StoreConfig { prefix: "/cke/".into(), ..StoreConfig::default() };
        let store = Arc::new(EtcdStore::from_client(client, &config, 1).unwrap());
        Self { _etcd: etcd, store }
    }

    fn authorities(&self, keys: &str, now: OffsetDateTime) -> BuiltInAuthorities {
        let store: Arc<dyn Store> = Arc::clone(&self.store) as _;
        BuiltInAuthorities::new(store, Keys::parse(keys).unwrap(), Arc::new(At(now)))
    }

    async fn value(&self, key: &str) -> Option<String> {
        let snapshot = self.store.list(key).await.unwrap();
        snapshot.entries.get(key).map(|entry| String::from_utf8(entry.value.to_vec()).unwrap())
    }

    async fn write(&self, write: Write) {
        self.store.commit(Transaction { conditions: Vec::new(), writes: vec![write] }).await.unwrap();
    }

    async fn put(&self, key: &str, value: &str) {
        self.write(Write::Put { key: key.into(), value: Bytes::from(value.to_owned()), lease: 0 }).await;
    }

    async fn delete(&self, key: &str) {
        self.write(Write::Delete { key: key.into() }).await;
    }
}

fn request(authority: Authority, usage: Usage) -> CertificateRequest {
    CertificateRequest {
        authority,
        common_name: "10.0.0.1".into(),
        organization: String::new(),
        dns_names: vec!["localhost".into(), "cke-etcd.kube-system.svc".into()],
        addresses: vec!["127.0.0.1".into(), "10.0.0.1".into()],
        usage,
        validity: YEAR,
    }
}

fn roots(authority: &str) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    Arc::new(roots)
}

fn time_of(now: OffsetDateTime) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(now.unix_timestamp().try_into().unwrap()))
}

fn serves(authority: &str, leaf: &str, name: &str, now: OffsetDateTime) -> bool {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(authority), provider).build().unwrap();
    let leaf = CertificateDer::from_pem_slice(leaf.as_bytes()).unwrap();
    let name = ServerName::try_from(name).unwrap();
    verifier.verify_server_cert(&leaf, &[], &name, &[], time_of(now)).is_ok()
}

fn logs_in(authority: &str, leaf: &str, now: OffsetDateTime) -> bool {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(authority), provider).build().unwrap();
    let leaf = CertificateDer::from_pem_slice(leaf.as_bytes()).unwrap();
    verifier.verify_client_cert(&leaf, &[], time_of(now)).is_ok()
}

/// A leaf of an authority that is in memory alone.
fn leaf(ca: &(String, Secret), request: &CertificateRequest, now: OffsetDateTime) -> IssuedCertificate {
    Ca::read(&ca.0, ca.1.reveal()).unwrap().issue(request, now).unwrap()
}

fn new_ca(authority: Authority) -> (String, Secret) {
    Ca::create(authority, NOW).unwrap()
}

#[tokio::test]
async fn issued_certificates_serve_and_log_in_as_requested_and_no_more() {
    let place = Place::new().await;
    let authorities = place.authorities(FIRST, NOW);
    authorities.init().await.unwrap();
    for (usage, server, client) in
        [(Usage::Server, true, false), (Usage::Client, false, true), (Usage::Both, true, true)]
    {
        for authority in Authority::ALL {
            let issued = authorities.issue(&request(authority, usage)).await.unwrap();
            let own = authorities.certificate(authority).await.unwrap();
            for name in ["localhost", "cke-etcd.kube-system.svc", "127.0.0.1", "10.0.0.1"] {
                assert_eq!(
                    serves(&own, &issued.certificate, name, NOW),
                    server,
                    "{authority} {usage:?} {name}"
                );
            }
            assert!(!serves(&own, &issued.certificate, "10.0.0.2", NOW), "{authority} {usage:?}");
            assert_eq!(logs_in(&own, &issued.certificate, NOW), client, "{authority} {usage:?}");
        }
        let server = authorities.certificate(Authority::Server).await.unwrap();
        let foreign = authorities.issue(&request(Authority::EtcdPeer, usage)).await.unwrap();
        assert!(!serves(&server, &foreign.certificate, "localhost", NOW), "another authority signed it");
        assert!(!logs_in(&server, &foreign.certificate, NOW), "another authority signed it");
    }
}

#[tokio::test]
async fn a_certificate_has_the_requested_subject_and_time_and_a_key_of_its_own() {
    let place = Place::new().await;
    let authorities = place.authorities(FIRST, NOW);
    authorities.init().await.unwrap();
    let requested = CertificateRequest {
        organization: "system:masters".into(),
        common_name: "admin".into(),
        dns_names: vec![],
        addresses: vec![],
        ..request(Authority::Kubernetes, Usage::Client)
    };
    let issued = authorities.issue(&requested).await.unwrap();
    let der = certificate_der(&issued.certificate).unwrap();
    let read = parse_certificate(&der).unwrap();
    assert_eq!(read.issuer().to_string(), "CN=kubernetes CA");
    let mut names: Vec<String> = read.subject().to_string().split(", ").map(str::to_owned).collect();
    names.sort();
    assert_eq!(names, ["CN=admin", "O=system:masters"]);
    assert_eq!(read.validity().not_before.to_datetime(), NOW - time::Duration::minutes(5));
    assert_eq!(read.validity().not_after.to_datetime(), NOW + YEAR);
    assert!(!read.is_ca());
    let again = authorities.issue(&requested).await.unwrap();
    let other = certificate_der(&again.certificate).unwrap();
    assert_ne!(parse_certificate(&other).unwrap().raw_serial(), read.raw_serial());
    assert_ne!(again.private_key, issued.private_key);
    rcgen::KeyPair::from_pem(issued.private_key.reveal()).unwrap();
}

#[test]
fn an_authority_has_the_name_and_the_life_of_ckes() {
    for authority in Authority::ALL {
        let (pem, key) = new_ca(authority);
        let der = certificate_der(&pem).unwrap();
        let own = parse_certificate(&der).unwrap();
        assert_eq!(own.subject().to_string(), format!("CN={}", authority.common_name()));
        assert_eq!(own.validity().not_after.to_datetime(), NOW + time::Duration::hours(876_000));
        assert_eq!(read_validity(&pem).unwrap().to, NOW + time::Duration::hours(876_000));
        read_validity(key.reveal()).unwrap_err();
        let usage = own.key_usage().unwrap().unwrap().value;
        assert!(own.is_ca() && usage.key_cert_sign() && usage.crl_sign());
        Ca::read(&pem, key.reveal()).unwrap().check(NOW).unwrap();
    }
}

#[test]
fn a_certificate_ends_with_its_authority() {
    let ca = new_ca(Authority::Server);
    let late = NOW + time::Duration::hours(876_000) - time::Duration::days(1);
    for validity in [YEAR, Duration::MAX] {
        let issued =
            leaf(&ca, &CertificateRequest { validity, ..request(Authority::Server, Usage::Server) }, late);
        let der = certificate_der(&issued.certificate).unwrap();
        assert_eq!(
            parse_certificate(&der).unwrap().validity().not_after.to_datetime(),
            late + time::Duration::days(1)
        );
    }
    let ca = Ca::read(&ca.0, ca.1.reveal()).unwrap();
    for never in [late + time::Duration::days(1), NOW - time::Duration::days(1)] {
        let refused = ca.issue(&request(Authority::Server, Usage::Server), never).unwrap_err();
        assert!(refused.to_string().contains("the certificate is valid from"), "{refused}");
    }
}

#[tokio::test]
async fn invalid_certificate_names_are_refused() {
    let place = Place::new().await;
    let authorities = place.authorities(FIRST, NOW);
    authorities.init().await.unwrap();
    let good = request(Authority::Server, Usage::Server);
    for bad in [
        CertificateRequest { common_name: String::new(), ..good.clone() },
        CertificateRequest { dns_names: vec!["kö".into()], ..good.clone() },
        CertificateRequest { addresses: vec!["10.0.0.1/8".into()], ..good },
    ] {
        let error = authorities.issue(&bad).await.unwrap_err();
        assert!(matches!(error, AuthorityError::Request { .. }), "{error}");
    }
}

#[tokio::test]
async fn only_missing_authorities_are_created() {
    let place = Place::new().await;
    let authorities = place.authorities(FIRST, NOW);
    let missing = authorities.issue(&request(Authority::Server, Usage::Server)).await.unwrap_err();
    assert_eq!(missing, AuthorityError::Missing { authority: Authority::Server });
    assert_eq!(authorities.init().await.unwrap(), Authority::ALL);
    let kept = authorities.certificate(Authority::Kubernetes).await.unwrap();
    assert_eq!(authorities.init().await.unwrap(), []);
    place.delete("ca/server").await;
    place.delete("madako/pki/server").await;
    assert_eq!(authorities.init().await.unwrap(), [Authority::Server]);
    assert_eq!(authorities.certificate(Authority::Kubernetes).await.unwrap(), kept);
}

#[tokio::test]
async fn an_authority_without_its_own_key_is_refused_before_anything_is_written() {
    let place = Place::new().await;
    let authorities = place.authorities(FIRST, NOW);
    authorities.init().await.unwrap();
    let key = place.value("madako/pki/kubernetes-webhook").await.unwrap();
    place.delete("ca/server").await;
    place.delete("madako/pki/server").await;

    place.delete("madako/pki/kubernetes-webhook").await;
    let error = authorities.init().await.unwrap_err();
    assert!(matches!(error, CaError::NoKey(Authority::KubernetesWebhook)), "{error}");
    assert!(error.to_string().contains("madako/pki/kubernetes-webhook"), "{error}");
    let error = authorities.issue(&request(Authority::KubernetesWebhook, Usage::Server)).await.unwrap_err();
    assert!(error.to_string().contains("madako/pki/kubernetes-webhook is missing"), "{error}");

    let other = new_ca(Authority::KubernetesWebhook);
    place.put("madako/pki/kubernetes-webhook", &key).await;
    let own = place.value("ca/kubernetes-webhook").await.unwrap();
    place.put("ca/kubernetes-webhook", &other.0).await;
    let error = authorities.init().await.unwrap_err();
    assert!(error.to_string().contains("does not belong to the certificate"), "{error}");
    assert!(authorities.issue(&request(Authority::KubernetesWebhook, Usage::Server)).await.is_err());

    place.delete("ca/kubernetes-webhook").await;
    let error = authorities.init().await.unwrap_err();
    assert!(matches!(error, CaError::NoCertificate(Authority::KubernetesWebhook)), "{error}");

    place.put("ca/kubernetes-webhook", &own).await;
    assert_eq!(place.value("ca/server").await, None, "no refused creation wrote anything");
    assert_eq!(authorities.init().await.unwrap(), [Authority::Server]);
}

#[tokio::test]
async fn private_keys_are_stored_encrypted_and_named_nowhere() {
    let place = Place::new().await;
    let authorities = place.authorities(FIRST, NOW);
    authorities.init().await.unwrap();
    let stored = place.value("madako/pki/server").await.unwrap();
    assert!(stored.starts_with("[\"madako-sealed\", 1, ") && !stored.contains("PRIVATE"), "{stored}");
    assert!(!format!("{authorities:?}").contains(FIRST));

    // Another key, and the value of another authority.
    let error = place.authorities(SECOND, NOW).init().await.unwrap_err();
    assert!(error.to_string().contains("which is not configured here"), "{error}");
    place.put("madako/pki/etcd-peer", &stored).await;
    let error = authorities.issue(&request(Authority::EtcdPeer, Usage::Both)).await.unwrap_err();
    assert!(error.to_string().contains("changed, or moved from another key"), "{error}");

    // A former key still decrypts.
    place
        .authorities(&format!("{SECOND}\n{FIRST}"), NOW)
        .issue(&request(Authority::Server, Usage::Server))
        .await
        .unwrap();
    let store: Arc<dyn Store> = Arc::clone(&place.store) as _;
    let none = BuiltInAuthorities::new(store, Keys::default(), Arc::new(At(NOW)));
    let error = none.import(Authority::Server, RSA.0, &Secret::new(RSA.1)).await.unwrap_err();
    assert!(matches!(error, CaError::NoEncryption), "{error}");
}

#[tokio::test]
async fn an_authority_of_openssl_with_an_rsa_key_is_imported() {
    let place = Place::new().await;
    let authorities = place.authorities(FIRST, NOW);
    authorities.init().await.unwrap();
    authorities.import(Authority::EtcdPeer, RSA.0, &Secret::new(RSA.1)).await.unwrap();
    assert_eq!(place.value("ca/etcd-peer").await.unwrap(), RSA.0, "the certificate is stored unchanged");
    let issued = authorities.issue(&request(Authority::EtcdPeer, Usage::Both)).await.unwrap();
    assert!(serves(RSA.0, &issued.certificate, "10.0.0.1", NOW));
    assert!(logs_in(RSA.0, &issued.certificate, NOW));
    assert_eq!(authorities.init().await.unwrap(), []);
}

#[tokio::test]
async fn files_that_make_no_authority_are_refused() {
    let place = Place::new().await;
    let authorities = place.authorities(FIRST, NOW);
    let (pem, key) = new_ca(Authority::Server);
    let leaf = leaf(&(pem.clone(), key.clone()), &request(Authority::Server, Usage::Server), NOW);
    let two = format!("{pem}{}", RSA.0);
    let encrypted = RSA.1.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let long = format!("{}{}", "#\n".repeat(40_000), pem);
    for (certificate, key, expected) in [
        (pem.as_str(), RSA.1, "the private key does not belong to the certificate"),
        (leaf.certificate.as_str(), leaf.private_key.reveal(), "not a CA certificate"),
        (two.as_str(), key.reveal(), "expected exactly one CA certificate"),
        (key.reveal(), key.reveal(), "expected exactly one CA certificate"),
        ("", key.reveal(), "expected exactly one CA certificate"),
        (long.as_str(), key.reveal(), "expected exactly one CA certificate"),
        (pem.as_str(), pem.as_str(), "expected exactly one private key"),
        (pem.as_str(), "hunter2", "expected exactly one private key"),
        (RSA.0, RSA_PKCS1, "openssl pkcs8 -topk8 -nocrypt"),
        (RSA.0, encrypted.as_str(), "openssl pkcs8 -topk8 -nocrypt"),
        (RSA_1024.0, RSA_1024.1, "expected a key of RSA with 2048 to 4096 bits"),
    ] {
        let error = authorities.import(Authority::Server, certificate, &Secret::new(key)).await;
        let error = error.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("hunter2") && !text.contains("-----"), "{text}");
    }
    let late = place.authorities(FIRST, NOW + time::Duration::days(40_000));
    let error = late.import(Authority::Server, &pem, &key).await.unwrap_err();
    assert!(error.to_string().contains("the certificate is valid from"), "{error}");
    assert!(place.store.list("").await.unwrap().entries.is_empty(), "no refused import wrote anything");
}

#[test]
fn a_certificate_is_renewed_for_a_reason() {
    let ca = new_ca(Authority::Server);
    let wanted = request(Authority::Server, Usage::Both);
    let day = time::Duration::days(1);
    let issued = leaf(&ca, &wanted, NOW).certificate;
    let of = |request: &CertificateRequest| leaf(&ca, request, NOW).certificate;
    let less = CertificateRequest { addresses: vec!["127.0.0.1".into()], ..wanted.clone() };
    let unnamed = CertificateRequest { dns_names: vec![], ..wanted.clone() };
    let server = CertificateRequest { usage: Usage::Server, ..wanted.clone() };
    let client = CertificateRequest { usage: Usage::Client, ..wanted.clone() };
    let another = CertificateRequest { common_name: "10.0.0.2".into(), ..wanted.clone() };
    let member = CertificateRequest { organization: "system:masters".into(), ..wanted.clone() };
    for (case, leaf, wanted, now, expected) in [
        ("new", issued.clone(), &wanted, NOW, None),
        ("more names than wanted", issued.clone(), &less, NOW, None),
        ("more uses than wanted", issued.clone(), &client, NOW, None),
        ("no PEM", "hunter2".to_owned(), &wanted, NOW, Some(RenewalReason::Missing)),
        ("two certificates", format!("{issued}{issued}"), &wanted, NOW, Some(RenewalReason::Missing)),
        ("an address is missing", of(&less), &wanted, NOW, Some(RenewalReason::Foreign)),
        ("a name is missing", of(&unnamed), &wanted, NOW, Some(RenewalReason::Foreign)),
        ("a use is missing", of(&server), &wanted, NOW, Some(RenewalReason::Foreign)),
        ("another subject", of(&another), &wanted, NOW, Some(RenewalReason::Foreign)),
        ("another organization", of(&member), &wanted, NOW, Some(RenewalReason::Foreign)),
        ("an organization is missing", issued.clone(), &member, NOW, Some(RenewalReason::Foreign)),
        ("not valid yet", issued.clone(), &wanted, NOW - day, Some(RenewalReason::Old)),
        ("31 days are left", issued.clone(), &wanted, NOW + day * 334, None),
        ("29 days are left", issued.clone(), &wanted, NOW + day * 336, Some(RenewalReason::Old)),
        ("it ended", issued.clone(), &wanted, NOW + day * 400, Some(RenewalReason::Old)),
    ] {
        assert_eq!(reason_to_renew(Some(&leaf), &ca.0, wanted, now), expected, "{case}");
    }
    assert_eq!(reason_to_renew(None, &ca.0, &wanted, NOW), Some(RenewalReason::Missing));
    // Another authority of the same name.
    assert_eq!(
        reason_to_renew(Some(&issued), &new_ca(Authority::Server).0, &wanted, NOW),
        Some(RenewalReason::Foreign)
    );
    assert_eq!(reason_to_renew(Some(&issued), "hunter2", &wanted, NOW), Some(RenewalReason::Foreign));
}

#[test]
fn a_short_life_is_renewed_in_its_last_third() {
    let ca = new_ca(Authority::EtcdClient);
    let validity = Duration::from_secs(3 * 60 * 60 - 5 * 60);
    let wanted = CertificateRequest { validity, ..request(Authority::EtcdClient, Usage::Client) };
    let issued = leaf(&ca, &wanted, NOW).certificate;
    let end = NOW + validity;
    let minute = time::Duration::minutes(1);
    assert_eq!(reason_to_renew(Some(&issued), &ca.0, &wanted, end - minute * 61), None);
    assert_eq!(reason_to_renew(Some(&issued), &ca.0, &wanted, end - minute * 59), Some(RenewalReason::Old));
}

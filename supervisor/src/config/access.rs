//! The keys of the configuration file for access to etcd: endpoints, password, certificates (the keys of
//! cybozu-go/etcdutil).
//!
//! etcdutil silently ignores some mistakes; this module reports them. A certificate without its key is an error,
//! since the connection would differ. A user without a password, or a password without a user, is ignored as in CKE's
//! programs, with a warning.

use madako_json::strict::shown_text;
use madako_protocol::secret::Secret;
use madako_store::{ConfigError, StoreConfig};

use super::embedded::ServerTls;
use super::pem;
use super::settings::{ConfigFindings, Pem};

/// The client fields, before their checks.
#[derive(Default)]
pub(super) struct GivenAccess {
    pub(super) clients: StoreConfig,
    pub(super) endpoints: Option<Vec<String>>,
    pub(super) prefix: Option<String>,
    pub(super) username: Option<String>,
    pub(super) password: Option<Secret>,
    /// Authorities of etcd, and certificate and key of the client.
    pub(super) pems: [Pem; 3],
}

/// The text of a certificate or key, and its origin.
struct LoadedPem {
    field: String,
    text: String,
    /// The configuration itself contains it, not a separate file.
    inline: bool,
}

/// Checks the access of a client. Without `endpoints` in the file the endpoints are empty.
pub(super) fn read_access(given: GivenAccess, findings: &mut ConfigFindings) -> StoreConfig {
    let GivenAccess { mut clients, endpoints, prefix, username, password, pems: [ca, cert, key] } = given;
    check_endpoints(endpoints.as_deref(), findings);
    clients.endpoints = endpoints.unwrap_or_default();
    clients.prefix = prefix.unwrap_or_else(|| super::DEFAULT_PREFIX.to_owned());
    match (username, password) {
        (Some(username), Some(password)) => (clients.username, clients.password) = (username, password),
        (Some(_), None) => findings.warn("`username` has no effect without `password`"),
        (None, Some(_)) => findings.warn("`password` has no effect without `username`"),
        (None, None) => {}
    }
    let names = [cert.names, key.names];
    let ca = load_certificate(&ca, "", findings);
    let cert = load_certificate(&cert, "", findings);
    let key = private_key(&key, "", findings);
    check_pair(names, cert.as_ref(), key.as_ref(), findings);
    clients.tls_ca = ca.map(|ca| ca.text);
    clients.tls_cert = cert.map(|cert| cert.text);
    clients.tls_key = key.map(|key| Secret::new(key.text));
    clients
}

/// Reads the certificates of a server: its own, its key, and the authorities of its clients. `section` is the path of
/// the section with a dot. `needed` says why an absent one is an error; its argument is true if one of them was given.
pub(super) fn server_tls(
    [cert, key, client_ca]: &[Pem; 3],
    section: &str,
    findings: &mut ConfigFindings,
    needed: impl FnOnce(bool) -> [Option<String>; 3],
) -> Option<ServerTls> {
    let names = [cert, key, client_ca].map(|pem| pem.names);
    let cert = load_certificate(cert, section, findings);
    let key = private_key(key, section, findings);
    let client_ca = load_certificate(client_ca, section, findings);
    let given = [cert.is_some(), key.is_some(), client_ca.is_some()];
    for (index, expected) in needed(given.contains(&true)).into_iter().enumerate() {
        if let Some(expected) = expected.filter(|_| !given[index]) {
            report_missing(section, names[index], 0, expected, findings);
        }
    }
    let (cert, key) = (cert?, key?);
    check_match(&cert, &key, findings);
    let client_ca = client_ca.map(|ca| ca.text);
    Some(ServerTls { certificate: cert.text, key: Secret::new(key.text), client_ca })
}

/// Reports one of the two fields as missing, unless one of them has a problem.
fn report_missing(
    section: &str,
    names: [&str; 2],
    missing: usize,
    expected: String,
    findings: &mut ConfigFindings,
) {
    let fields = names.map(|name| format!("{section}{name}"));
    if !findings.problems.has_problem(|wrong| fields.iter().any(|field| field == wrong)) {
        findings.report(fields[missing].clone(), "", expected);
    }
}

/// The store itself checks each endpoint.
fn check_endpoints(endpoints: Option<&[String]>, findings: &mut ConfigFindings) {
    let Some(endpoints) = endpoints else { return };
    if endpoints.is_empty() {
        let expected = "URLs such as http://127.0.0.1:2379; without the key, the embedded store is used";
        findings.report("endpoints", "an empty list", expected);
    }
    // An empty text replaces an item with a problem.
    for (index, endpoint) in endpoints.iter().enumerate().filter(|(_, endpoint)| !endpoint.is_empty()) {
        let alone = StoreConfig { endpoints: vec![endpoint.clone()], ..StoreConfig::default() };
        let Err(error) = alone.check() else { continue };
        let (got, expected) = match error {
            ConfigError::Endpoint { endpoint, why } => {
                (shown_text(&endpoint), why.trim_start_matches("expected ").to_owned())
            }
            other => (String::new(), other.to_string()),
        };
        findings.report(format!("endpoints[{index}]"), got, expected);
    }
}

/// Text from a file or from the field itself; the file wins, as in etcdutil. Includes the file's mode.
fn load_pem(pem: &Pem, section: &str, findings: &mut ConfigFindings) -> Option<(LoadedPem, Option<u32>)> {
    let [file, inline] = pem.names.map(|name| format!("{section}{name}"));
    match pem.file.as_deref().map(|path| (pem::read_file(path), path)) {
        None => {
            let text = pem.text.clone()?;
            Some((LoadedPem { field: inline, text, inline: true }, None))
        }
        Some((Ok((text, mode)), _)) => Some((LoadedPem { field: file, text, inline: false }, mode)),
        Some((Err(expected), path)) => {
            findings.report(file, format!("{path:?}"), expected);
            None
        }
    }
}

fn load_certificate(pem: &Pem, section: &str, findings: &mut ConfigFindings) -> Option<LoadedPem> {
    let (loaded, _) = load_pem(pem, section, findings)?;
    if !pem::has_certificates(&loaded.text) {
        findings.report(loaded.field, "another value", "certificates in PEM");
        return None;
    }
    Some(loaded)
}

fn private_key(pem: &Pem, section: &str, findings: &mut ConfigFindings) -> Option<LoadedPem> {
    let (loaded, mode) = load_pem(pem, section, findings)?;
    if mode.is_some_and(|mode| mode & super::OTHERS_READ != 0) {
        findings.warn(format!("`{}`: other users can read the private key (chmod o-r)", loaded.field));
    }
    if !pem::is_key(&loaded.text) {
        findings.report(loaded.field, "another value", "a private key in PEM, not encrypted");
        return None;
    }
    Some(loaded)
}

/// A certificate and its key must come together and in the same form: etcdutil uses no other pair.
fn check_pair(
    names: [[&str; 2]; 2],
    cert: Option<&LoadedPem>,
    key: Option<&LoadedPem>,
    findings: &mut ConfigFindings,
) {
    match (cert, key) {
        (Some(cert), Some(key)) if cert.inline != key.inline => findings.report(
            key.field.clone(),
            format!("another form than `{}`", cert.field),
            "both as files or both as PEM text (CKE's programs ignore a mixed pair)",
        ),
        (Some(cert), Some(key)) => check_match(cert, key, findings),
        (Some(cert), None) => {
            let expected = format!("the private key of `{}`", cert.field);
            report_missing("", names[1], 1, expected, findings);
        }
        (None, Some(key)) => {
            let expected = format!("the certificate of `{}`", key.field);
            report_missing("", names[0], 1, expected, findings);
        }
        (None, None) => {}
    }
}

fn check_match(cert: &LoadedPem, key: &LoadedPem, findings: &mut ConfigFindings) {
    if !pem::may_match(&cert.text, &key.text) {
        findings.report(key.field.clone(), "another key", format!("the private key of `{}`", cert.field));
    }
}

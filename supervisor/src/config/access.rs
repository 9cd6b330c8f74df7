//! Access to etcd: endpoints, password, certificates (the keys of cybozu-go/etcdutil).
//!
//! etcdutil silently ignores some mistakes; this module reports them. A certificate without its key is an error,
//! since the connection would differ. A user without a password, or a password without a user, is ignored as in CKE's
//! programs, with a warning.

use madako_protocol::secret::Secret;
use madako_store::{ConfigError, StoreConfig};

use super::document::{Fields, shorten};
use super::embedded::ServerTls;
use super::pem;

/// A certificate or key, and its origin.
struct Pem {
    field: &'static str,
    text: String,
    /// The configuration itself contains it, not a separate file.
    inline: bool,
}

/// Reads the client fields; prefix and time-out keep their defaults. Without `endpoints` in the file the endpoints are
/// empty.
pub(super) fn read(root: &mut Fields) -> StoreConfig {
    let endpoints = endpoints(root);
    root.note_secret("password");
    let username = root.filled("username");
    let password = root.secret("password");
    let ca = certificate(root, ["tls-ca-file", "tls-ca"]);
    let cert = certificate(root, ["tls-cert-file", "tls-cert"]);
    let key = private_key(root, ["tls-key-file", PRIVATE_KEY]);

    let (username, password) = match (username, password) {
        (Some(username), Some(password)) => (username, Secret::new(password)),
        (username, password) => {
            if username.is_some() {
                root.warn("`username` has no effect without `password`");
            }
            if password.is_some() {
                root.warn("`password` has no effect without `username`");
            }
            Default::default()
        }
    };
    check_pair(root, cert.as_ref(), key.as_ref());
    StoreConfig {
        endpoints,
        username,
        password,
        tls_ca: ca.map(|ca| ca.text),
        tls_cert: cert.map(|cert| cert.text),
        tls_key: key.map(|key| Secret::new(key.text)),
        ..StoreConfig::default()
    }
}

/// Name of the field with a private key as PEM text.
pub(super) const PRIVATE_KEY: &str = "tls-key";

/// Reads the certificates of a server: its own, its key, and the authorities of its clients, each from the first field
/// as a file or from the second as PEM. `needed` says why an absent one is an error; its argument is true if one of
/// them was given.
pub(super) fn server_tls(
    fields: &mut Fields,
    names: [[&'static str; 2]; 3],
    needed: impl FnOnce(bool) -> [Option<String>; 3],
) -> Option<ServerTls> {
    let cert = certificate(fields, names[0]);
    let key = private_key(fields, names[1]);
    let client_ca = certificate(fields, names[2]);
    let given = [cert.is_some(), key.is_some(), client_ca.is_some()];
    for (index, expected) in needed(given.contains(&true)).into_iter().enumerate() {
        if let Some(expected) = expected.filter(|_| !given[index]) {
            fields.report_missing(names[index][0], expected);
        }
    }
    let (cert, key) = (cert?, key?);
    check_match(fields, &cert, &key);
    let client_ca = client_ca.map(|ca| ca.text);
    Some(ServerTls { certificate: cert.text, key: Secret::new(key.text), client_ca })
}

/// The endpoints, each checked by the store itself.
fn endpoints(root: &mut Fields) -> Vec<String> {
    let Some(endpoints) = root.texts("endpoints") else { return Vec::new() };
    if endpoints.is_empty() {
        root.report(
            "endpoints",
            "an empty list",
            "URLs such as http://127.0.0.1:2379; without the key, the embedded store is used",
        );
    }
    for (index, endpoint) in endpoints.iter().enumerate() {
        let alone = StoreConfig { endpoints: vec![endpoint.clone()], ..StoreConfig::default() };
        let Err(error) = alone.check() else { continue };
        let (got, expected) = match error {
            ConfigError::Endpoint { endpoint, why } => {
                (format!("{:?}", shorten(&endpoint)), why.trim_start_matches("expected ").to_owned())
            }
            other => (String::new(), other.to_string()),
        };
        root.findings().problems.add(format!("endpoints[{index}]"), got, expected);
    }
    endpoints
}

/// Text from a file or from the field itself; the file wins, as in etcdutil. Includes the file's mode.
fn either(fields: &mut Fields, [file, inline]: [&'static str; 2]) -> Option<(Pem, Option<u32>)> {
    let path = fields.filled(file);
    let text = fields.secret(inline);
    match path.map(|path| (pem::read_file(&path), path)) {
        None => Some((Pem { field: inline, text: text?, inline: true }, None)),
        Some((Ok((text, mode)), _)) => Some((Pem { field: file, text, inline: false }, mode)),
        Some((Err(expected), path)) => {
            fields.report(file, format!("{path:?}"), expected);
            None
        }
    }
}

fn certificate(fields: &mut Fields, names: [&'static str; 2]) -> Option<Pem> {
    let (pem, _) = either(fields, names)?;
    if !pem::has_certificates(&pem.text) {
        fields.report(pem.field, "another value", "certificates in PEM");
        return None;
    }
    Some(pem)
}

fn private_key(fields: &mut Fields, names: [&'static str; 2]) -> Option<Pem> {
    // A text in a secret field counts as secret, even if it is rejected below.
    fields.note_secret(names[1]);
    let (pem, mode) = either(fields, names)?;
    if mode.is_some_and(|mode| mode & super::OTHERS_READ != 0) {
        let field = fields.path(pem.field);
        fields.warn(format!("`{field}`: other users can read the private key (chmod o-r)"));
    }
    if !pem::is_key(&pem.text) {
        fields.report(pem.field, "another value", "a private key in PEM, not encrypted");
        return None;
    }
    Some(pem)
}

/// A certificate and its key must come together and in the same form: etcdutil uses no other pair.
fn check_pair(root: &mut Fields, cert: Option<&Pem>, key: Option<&Pem>) {
    match (cert, key) {
        (Some(cert), Some(key)) if cert.inline != key.inline => root.report(
            key.field,
            format!("another form than `{}`", cert.field),
            "both as files or both as PEM text (CKE's programs ignore a mixed pair)",
        ),
        (Some(cert), Some(key)) => check_match(root, cert, key),
        (Some(cert), None) => {
            root.report_missing("tls-key", format!("the private key of `{}`", cert.field));
        }
        (None, Some(key)) => {
            root.report_missing("tls-cert", format!("the certificate of `{}`", key.field));
        }
        (None, None) => {}
    }
}

fn check_match(fields: &mut Fields, cert: &Pem, key: &Pem) {
    if !pem::may_match(&cert.text, &key.text) {
        let expected = format!("the private key of `{}`", fields.path(cert.field));
        fields.report(key.field, "another key", expected);
    }
}

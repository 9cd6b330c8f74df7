//! Access to etcd: endpoints, password, certificates (the keys of cybozu-go/etcdutil).
//!
//! etcdutil silently ignores some mistakes; this module reports them. A certificate without its key is an error,
//! since the connection would differ. A user without a password, or a password without a user, is ignored as in CKE's
//! programs, with a warning.

use madako_json::input::Problems;
use madako_store::{ConfigError, Secret, StoreConfig};

use super::document::{Fields, shorten};
use super::pem;

/// Settings of clients. Without `endpoints` in the file the endpoints are empty.
pub(super) struct Access {
    pub(super) clients: StoreConfig,
    /// Name of a field with a secret value in the file itself.
    pub(super) secret: Option<String>,
}

/// A certificate or key, and its origin.
pub(super) struct Pem {
    pub(super) field: &'static str,
    pub(super) text: String,
    /// The configuration itself contains it, not a separate file.
    pub(super) inline: bool,
}

/// Reads the client fields; prefix and time-out keep their defaults.
pub(super) fn read(root: &mut Fields, problems: &mut Problems, warnings: &mut Vec<String>) -> Access {
    let endpoints = endpoints(root, problems);
    // A text in a secret field counts as secret, even if it is rejected below.
    let secret = secret_among(root, &["password", PRIVATE_KEY]);
    let username = root.filled("username", problems);
    let password = root.secret("password", problems);
    let ca = certificate(root, ["tls-ca-file", "tls-ca"], problems);
    let cert = certificate(root, ["tls-cert-file", "tls-cert"], problems);
    let key = private_key(root, ["tls-key-file", PRIVATE_KEY], problems, warnings);

    let (username, password) = match (username, password) {
        (Some(username), Some(password)) => (username, Secret::new(password)),
        (username, password) => {
            if username.is_some() {
                warnings.push("`username` has no effect without `password`".to_owned());
            }
            if password.is_some() {
                warnings.push("`password` has no effect without `username`".to_owned());
            }
            Default::default()
        }
    };
    check_pair(root, cert.as_ref(), key.as_ref(), problems);
    let clients = StoreConfig {
        endpoints,
        username,
        password,
        tls_ca: ca.map(|ca| ca.text),
        tls_cert: cert.map(|cert| cert.text),
        tls_key: key.map(|key| Secret::new(key.text)),
        ..StoreConfig::default()
    };
    Access { clients, secret }
}

/// Name of the field with a private key as PEM text.
pub(super) const PRIVATE_KEY: &str = "tls-key";

/// Path of the first of these fields with a value.
pub(super) fn secret_among(fields: &Fields, names: &[&str]) -> Option<String> {
    names.iter().find(|name| fields.gives(name)).map(|name| fields.path(name))
}

/// The endpoints, each checked by the store itself.
fn endpoints(root: &mut Fields, problems: &mut Problems) -> Vec<String> {
    let Some(endpoints) = root.texts("endpoints", problems) else { return Vec::new() };
    if endpoints.is_empty() {
        root.report(
            "endpoints",
            "an empty list",
            "URLs such as http://127.0.0.1:2379; without the key, the embedded store is used",
            problems,
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
        problems.add(format!("endpoints[{index}]"), got, expected);
    }
    endpoints
}

/// Text from a file or from the field itself; the file wins, as in etcdutil. Includes the file's mode.
fn either(
    fields: &mut Fields,
    names: [&'static str; 2],
    problems: &mut Problems,
) -> Option<(Pem, Option<u32>)> {
    let [file, inline] = names;
    let path = fields.filled(file, problems);
    let text = fields.secret(inline, problems);
    match path.map(|path| (pem::read_file(&path), path)) {
        None => Some((Pem { field: inline, text: text?, inline: true }, None)),
        Some((Ok((text, mode)), _)) => Some((Pem { field: file, text, inline: false }, mode)),
        Some((Err(expected), path)) => {
            fields.report(file, format!("{path:?}"), expected, problems);
            None
        }
    }
}

pub(super) fn certificate(
    fields: &mut Fields,
    names: [&'static str; 2],
    problems: &mut Problems,
) -> Option<Pem> {
    let (pem, _) = either(fields, names, problems)?;
    if !pem::has_certificates(&pem.text) {
        fields.report(pem.field, "another value", "certificates in PEM", problems);
        return None;
    }
    Some(pem)
}

pub(super) fn private_key(
    fields: &mut Fields,
    names: [&'static str; 2],
    problems: &mut Problems,
    warnings: &mut Vec<String>,
) -> Option<Pem> {
    let (pem, mode) = either(fields, names, problems)?;
    if mode.is_some_and(|mode| mode & super::OTHERS_READ != 0) {
        warnings
            .push(format!("`{}`: other users can read the private key (chmod o-r)", fields.path(pem.field)));
    }
    if !pem::is_key(&pem.text) {
        fields.report(pem.field, "another value", "a private key in PEM, not encrypted", problems);
        return None;
    }
    Some(pem)
}

/// A certificate and its key must come together and in the same form: etcdutil uses no other pair.
fn check_pair(root: &mut Fields, cert: Option<&Pem>, key: Option<&Pem>, problems: &mut Problems) {
    match (cert, key) {
        (Some(cert), Some(key)) if cert.inline != key.inline => root.report(
            key.field,
            format!("another form than `{}`", cert.field),
            "both as files or both as PEM text (CKE's programs ignore a mixed pair)",
            problems,
        ),
        (Some(cert), Some(key)) => check_match(root, cert, key, problems),
        (Some(cert), None) => {
            root.report_missing("tls-key", format!("the private key of `{}`", cert.field), problems);
        }
        (None, Some(key)) => {
            root.report_missing("tls-cert", format!("the certificate of `{}`", key.field), problems);
        }
        (None, None) => {}
    }
}

pub(super) fn check_match(fields: &mut Fields, cert: &Pem, key: &Pem, problems: &mut Problems) {
    if !pem::may_match(&cert.text, &key.text) {
        let expected = format!("the private key of `{}`", fields.path(cert.field));
        fields.report(key.field, "another key", expected, problems);
    }
}

//! Tests of `madako ca`, `etcd` and `ssh`: authorities, certificates of etcd's users, and pinned host keys.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use serde_json::{Value, json};

use crate::program::{Answer, Etcd, Files, command, madako};

const NAMES: [&str; 6] =
    ["server", "etcd-peer", "etcd-client", "kubernetes", "kubernetes-aggregation", "kubernetes-webhook"];

/// An etcd, and a configuration with a key for the authorities.
struct Place {
    etcd: Etcd,
    config: String,
}

impl Place {
    async fn start() -> Option<Self> {
        let etcd = Etcd::start().await?;
        let keys = etcd.file("pki-keys", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n");
        std::fs::set_permissions(&keys, Permissions::from_mode(0o600)).unwrap();
        let text = std::fs::read_to_string(etcd.config()).unwrap();
        let config = etcd.file("pki.yml", format!("{text}pki: {{key_file: {keys}}}\n"));
        Some(Self { etcd, config })
    }

    async fn run(&self, args: &[&str]) -> Answer {
        madako(&[args, &["--config", &self.config]].concat()).await
    }
}

/// Certificate and private key of a new authority.
fn authority() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// True if a client of etcd can log in with the certificate, this time from now on.
fn logs_in(authority: &str, certificate: &str, after: Duration) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let at = UnixTime::since_unix_epoch(Duration::from_secs(UnixTime::now().as_secs()) + after);
    verifier.verify_client_cert(&certificate, &[], at).is_ok()
}

#[tokio::test]
async fn authorities_are_created_once_and_shown() {
    let Some(place) = Place::start().await else { return };
    let message = place.etcd.run(&["ca", "init"]).await.refused(2);
    assert!(message.contains("no section `pki`"), "{message}");
    let message = place.run(&["ca", "get", "server"]).await.refused(1);
    assert!(message.contains("madako ca init creates it"), "{message}");

    let lines = |state: &str| NAMES.map(|name| format!("{name}: {state}\n")).concat();
    assert_eq!(place.run(&["ca", "init"]).await.calm(), lines("created"));
    let revision = place.etcd.revision().await;
    assert_eq!(place.run(&["ca", "init"]).await.calm(), lines("existing"));
    let json = place.run(&["ca", "init", "-o", "json"]).await.json();
    assert_eq!(json[5], json!({"name": "kubernetes-webhook", "created": false}));
    assert_eq!(place.etcd.revision().await, revision, "nothing more was written");
    for name in NAMES {
        // The certificate needs no key.
        let shown = place.etcd.run(&["ca", "get", name]).await.calm();
        assert!(shown.starts_with("-----BEGIN CERTIFICATE-----"), "{shown}");
        assert_eq!(place.etcd.get(&format!("ca/{name}")).await, Some(shown));
        let private = place.etcd.get(&format!("madako/pki/{name}")).await.unwrap();
        assert!(private.contains("madako-sealed") && !private.contains("PRIVATE KEY"), "{private}");
    }
    let message = place.run(&["ca", "get", "etcd"]).await.refused(2);
    assert!(message.contains("kubernetes-webhook"), "the names are shown: {message}");
}

#[tokio::test]
async fn an_authority_of_another_program_is_stored() {
    let Some(place) = Place::start().await else { return };
    let (certificate, private) = authority();
    let file = place.etcd.file("ca.crt", &certificate);
    let key = place.etcd.file("ca.key", &private);
    let other_key = place.etcd.file("other.key", authority().1);

    // As ckecli does: without a private key, and without the section `pki`.
    let output = place.etcd.run(&["ca", "set", "server", &file]).await.calm();
    assert!(output.starts_with("server: stored; "), "{output}");
    assert_eq!(place.etcd.get("ca/server").await.as_ref(), Some(&certificate));
    assert_eq!(place.etcd.run(&["ca", "set", "server", &file]).await.calm(), "server: stored, unchanged\n");
    let message = place.run(&["ca", "init"]).await.refused(1);
    assert!(message.contains("madako ca set server FILE --key FILE"), "{message}");
    assert_eq!(place.etcd.get("ca/etcd-peer").await, None, "the refused command created nothing");

    let message = place.run(&["ca", "set", "server", &file, "--key", &other_key]).await.refused(2);
    assert!(message.contains("does not belong to the certificate"), "{message}");
    let output = place.run(&["ca", "set", "server", &file, "--key", &key]).await.calm();
    assert_eq!(output, "server: stored with its private key\n");
    assert!(place.run(&["ca", "init"]).await.calm().starts_with("server: existing\netcd-peer: created\n"));
    let certificate_alone = place.etcd.file("new.crt", authority().0);
    let message = place.run(&["ca", "set", "server", &certificate_alone]).await.refused(2);
    assert!(message.contains("madako/pki/server has the private key of another certificate"), "{message}");

    for wrong in [&["ca", "set", "server", &key][..], &["ca", "set", "server", "-", "--key", "-"]] {
        let message = place.run(wrong).await.refused(2);
        assert!(!message.contains(private.lines().nth(1).unwrap()), "{message}");
    }
    assert_eq!(place.etcd.get("ca/server").await, Some(certificate), "no refused command changed it");
}

#[tokio::test]
async fn certificates_for_users_of_etcd_come_in_ckeclis_forms() {
    let Some(place) = Place::start().await else { return };
    let message = place.run(&["etcd", "root-issue"]).await.refused(1);
    assert!(message.contains("there is no authority server"), "{message}");
    place.run(&["ca", "init"]).await.calm();
    let client_ca = place.etcd.get("ca/etcd-client").await.unwrap();
    let server_ca = place.etcd.get("ca/server").await.unwrap();

    let hour = Duration::from_secs(3600);
    for (args, validity) in [
        (&["etcd", "root-issue"][..], hour),
        (&["etcd", "issue", "backup"], hour * 87_600),
        (&["etcd", "issue", "backup", "--ttl", "3h"], hour * 3),
    ] {
        let shown = place.run(args).await.calm();
        let lines: Vec<&str> = shown.lines().collect();
        let fields = ["  \"certificate\": ", "  \"private_key\": ", "  \"ca_certificate\": "];
        assert_eq!((lines.len(), lines[0], lines[4]), (5, "{", "}"));
        assert!(lines[1..4].iter().zip(fields).all(|(line, field)| line.starts_with(field)), "{shown}");
        let issued: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(issued["ca_certificate"], server_ca.as_str());
        let certificate = issued["certificate"].as_str().unwrap();
        assert!(logs_in(&client_ca, certificate, validity - hour / 2), "{args:?}");
        assert!(!logs_in(&client_ca, certificate, validity + hour / 2), "{args:?}");
    }
    for wrong in [
        &["etcd", "issue", "a/b"][..],
        &["etcd", "issue", ""],
        &["etcd", "issue", "a", "--ttl", "0s"],
        &["etcd", "issue", "a", "--ttl", "87601h"],
        &["etcd", "issue", "a", "--output", "yaml"],
    ] {
        place.run(wrong).await.refused(2);
    }
}

#[tokio::test]
async fn files_of_a_certificate_have_ckeclis_names_and_modes() {
    let Some(place) = Place::start().await else { return };
    place.run(&["ca", "init"]).await.calm();
    let files = Files::new();
    // A former file may be readable for all users.
    let key = files.write("etcd-backup.key", "");
    let directory = std::path::Path::new(&key).parent().unwrap().to_owned();
    let args = ["etcd", "issue", "backup", "--output", "file", "--config", &place.config];
    let output = command(&args).current_dir(&directory).output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"cert files:  etcd-ca.crt etcd-backup.crt etcd-backup.key\n", "as ckecli");
    let mut found: Vec<(String, u32)> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            (entry.file_name().into_string().unwrap(), mode)
        })
        .collect();
    found.sort();
    let named = |name: &str, mode| (name.to_owned(), mode);
    assert_eq!(
        found,
        [named("etcd-backup.crt", 0o644), named("etcd-backup.key", 0o600), named("etcd-ca.crt", 0o644)]
    );
    let read = |name: &str| std::fs::read_to_string(files.path(name)).unwrap();
    assert_eq!(Some(read("etcd-ca.crt")), place.etcd.get("ca/server").await);
    let client_ca = place.etcd.get("ca/etcd-client").await.unwrap();
    assert!(logs_in(&client_ca, &read("etcd-backup.crt"), Duration::from_secs(1)));
    assert!(read("etcd-backup.key").contains("PRIVATE KEY"));
}

#[tokio::test]
async fn a_pinned_host_key_is_forgotten() {
    let Some(etcd) = Etcd::start().await else { return };
    let pinned = r#"{"serial": "abc", "key": "ssh-ed25519 AAAA", "fingerprint": "SHA256:xyz"}"#;
    for (address, value) in [("10.0.0.1", pinned), ("10.0.0.11", pinned), ("10.0.0.12", "{")] {
        etcd.put(&format!("madako/ssh/host-keys/{address}"), value).await;
    }
    let output = etcd.run(&["ssh", "forget", "10.0.0.1"]).await.calm();
    assert_eq!(output, "10.0.0.1: forgot SHA256:xyz of the machine abc\n");
    let message = etcd.run(&["ssh", "forget", "10.0.0.1"]).await.refused(1);
    assert!(message.contains("no host key of 10.0.0.1 is pinned"), "{message}");
    let json = etcd.run(&["ssh", "forget", "10.0.0.11", "-o", "json"]).await.json();
    assert_eq!(json["forgotten"]["fingerprint"], "SHA256:xyz");
    let output = etcd.run(&["ssh", "forget", "10.0.0.12"]).await.calm();
    assert_eq!(output, "10.0.0.12: forgot an unreadable value\n");
    assert_eq!(etcd.get("madako/ssh/host-keys/10.0.0.11").await, None);
}

#[tokio::test]
async fn private_keys_of_authorities_are_refused_beside_vault() {
    let Some(etcd) = Etcd::start().await else { return };
    etcd.put("vault", "{}").await;
    for command in [&["ca", "init"][..], &["ca", "set", "server", "/dev/null", "--key", "/dev/null"]] {
        let message = etcd.run(command).await.refused(1);
        assert!(message.contains("the store has the key vault: Vault issues the certificates"), "{message}");
    }
    assert_eq!(etcd.get("ca/server").await, None);
}

#[tokio::test]
async fn a_restart_of_etcd_is_asked_for_on_control_plane_nodes_alone() {
    let Some(etcd) = Etcd::start().await else { return };
    let message = etcd.run(&["etcd", "restart", "10.0.0.11"]).await.refused(1);
    assert!(message.contains("no cluster configuration is stored"), "{message}");
    let cluster = r#"{"name": "c", "nodes": [{"address": "10.0.0.11", "control_plane": true}, {"address": "10.0.0.21"}]}"#;
    etcd.put("cluster", cluster).await;
    let message = etcd.run(&["etcd", "restart", "10.0.0.21"]).await.refused(2);
    assert!(
        message.contains("10.0.0.21 is not a control plane node: expected one of 10.0.0.11"),
        "{message}"
    );
    let output = etcd.run(&["etcd", "restart", "10.0.0.11"]).await.calm();
    assert!(output.starts_with("10.0.0.11: the leader restarts etcd in its next pass"), "{output}");
    // A second request replaces the first one.
    let json = etcd.run(&["etcd", "restart", "10.0.0.11", "-o", "json"]).await.json();
    assert_eq!(json["address"], "10.0.0.11");
    let stored = etcd.get("madako/etcd-restarts/10.0.0.11").await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&stored).unwrap()["requested_at"], json["requested_at"]);
    assert_eq!(etcd.get("madako/etcd-restarts/10.0.0.21").await, None);
}

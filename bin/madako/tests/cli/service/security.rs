//! Tests of TLS, certificates and passwords from end to end: one configuration file for the service and the operator.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use etcd_client::{Certificate, ConnectOptions, Identity, Permission, TlsOptions};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::etcd::RealEtcd;
use super::keys::Keys;
use super::site::{HOST, Site, leader_after};
use super::stage::Serve;
use crate::program::{Files, madako};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Certificate and key for these names.
fn issued(authority: &Authority, names: &[&str]) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, authority).unwrap();
    (certificate.pem(), key.serialize_pem())
}

/// `root` has all rights, `cke` those below `/cke/`.
async fn switch_authentication_on(keys: &Keys) {
    let mut client = keys.client().await;
    client.user_add("root", "toor", None).await.unwrap();
    client.role_add("root").await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.role_add("cke").await.unwrap();
    client.role_grant_permission("cke", Permission::read_write("/cke/").with_prefix()).await.unwrap();
    client.user_add("cke", "hunter2", None).await.unwrap();
    client.user_grant_role("cke", "cke").await.unwrap();
    client.auth_enable().await.unwrap();
}

/// A configuration file that only its owner can read.
fn secret_file(files: &Files, name: &str, text: String) -> String {
    let path = files.write(name, text);
    only_for_its_owner(&path);
    path
}

/// Restricts the access to a file to its owner.
pub(crate) fn only_for_its_owner(path: &str) {
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

#[tokio::test]
async fn one_file_serves_service_and_operator_on_a_guarded_etcd() {
    let files = Files::new();
    let ours = authority();
    let (server_cert, server_key) = issued(&ours, &[HOST]);
    let (cert, key) = issued(&ours, &["madako"]);
    let ca = files.write("ca.pem", ours.pem());
    let flags = [
        format!("--cert-file={}", files.write("server.pem", server_cert)),
        format!("--key-file={}", files.write("server-key.pem", server_key)),
        format!("--trusted-ca-file={ca}"),
        "--client-cert-auth".to_owned(),
    ];
    let Some(etcd) = RealEtcd::start(&flags).await else { return };
    let certificates = TlsOptions::new()
        .ca_certificate(Certificate::from_pem(ours.pem()))
        .identity(Identity::from_pem(cert.clone(), key.clone()));
    let by_hand = ConnectOptions::new().with_tls(certificates);
    switch_authentication_on(&Keys::at(&etcd.endpoint(), Some(by_hand.clone()))).await;
    let keys = Keys::at(&etcd.endpoint(), Some(by_hand.with_user("root", "toor")));

    let (cert, key) = (files.write("cert.pem", cert), files.write("key.pem", &key));
    let tls = format!("{}tls-ca-file: {ca}\ntls-cert-file: {cert}\ntls-key-file: {key}\n", etcd.settings());
    let good = secret_file(&files, "good.yml", format!("{tls}username: cke\npassword: hunter2\n"));
    let wrong = secret_file(&files, "wrong.yml", format!("{tls}username: cke\npassword: hunter3\n"));
    let elsewhere = secret_file(
        &files,
        "elsewhere.yml",
        format!("{tls}username: cke\npassword: hunter2\nprefix: /other/\n"),
    );
    let plain = secret_file(&files, "plain.yml", etcd.settings());

    let site = Site::new(files, &good, keys).await;
    site.equip().await;
    let service = site.serve("3s", "1s").await;
    let (_, epoch) = leader_after(&[&service], 0).await;
    let first = site.first_cluster().await;
    let plan = site.run(&["plan", "-o", "json"]).await;
    assert_eq!((plan.code, &plan.json()["action"]), (0, &serde_json::Value::Null), "{plan:?}");
    assert_eq!(service.health().await, 200);

    let calm = site.keys.revision().await;
    for (file, part) in
        [(&wrong, "password"), (&elsewhere, "permission denied"), (&plain, "that the store runs")]
    {
        for args in [&["leader"][..], &["constraints", "set", "minimum-workers", "9"]] {
            let message = madako(&[&["--config", file.as_str()], args].concat()).await.refused(1);
            println!("{message}");
            assert!(message.contains(part), "{args:?}: {message}");
            assert!(!message.contains("hunter") && !message.contains("PRIVATE KEY"), "{message}");
        }
    }
    // A refused service reports that, and retries: passwords can be changed on either side.
    let refused = Serve::start(&wrong, "3s", "1s").await;
    refused.until_health(500).await;
    refused.until_log("\"message\":\"the store cannot be reached\"").await;
    let log = refused.log();
    assert!(log.contains("password"), "{log}");
    for secret in ["hunter", "PRIVATE KEY"] {
        assert!(!log.contains(secret) && !service.log().contains(secret), "a secret is in the log");
    }
    assert_eq!(site.keys.revision().await, calm, "a refused service wrote nothing");
    site.keys.client().await.user_change_password("cke", "hunter3").await.unwrap();
    refused.until_health(200).await;
    assert_eq!(refused.terminate().await.code(), Some(0));
    site.keys.client().await.user_change_password("cke", "hunter2").await.unwrap();
    service.until_health(200).await;

    site.unchanged(&first, "nothing was asked for").await;
    assert_eq!(site.grow_to(7).await.version, 2);
    // Its lease may have expired meanwhile; then it leads anew.
    leader_after(&[&service], epoch - 1).await;
    assert_eq!(service.terminate().await.code(), Some(0));
    assert_eq!(site.keys.candidates().await.len(), 0, "its candidate key is gone");
}

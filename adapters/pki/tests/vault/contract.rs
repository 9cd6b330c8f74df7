//! The contract of Vault: each test runs against a real Vault and the simulated one.

use std::time::Duration;

use madako_domain::authority::Authority;
use madako_domain::vault::{KUBERNETES_SECRET, VaultAccess};
use madako_pki::vault::{Operator, SetUp};
use madako_protocol::authorities::{Authorities as _, AuthorityError, CertificateRequest, Usage};
use madako_protocol::kubernetes_secrets::{
    EncryptionKeyChange, KubernetesSecretError, KubernetesSecrets as _,
};
use madako_protocol::login_keys::LoginKeySource as _;
use madako_protocol::permit::Permit;
use madako_protocol::ports::HttpMethod;
use madako_protocol::secret::Secret;
use madako_protocol::vault::VaultError;
use serde_json::{Value, json};
use time::macros::datetime;
use tokio::time::Instant;
use x509_parser::pem::Pem;

use crate::servers::{Kind, Server, Site};

/// Runs a test against each server.
macro_rules! both {
    ($($(#[$meta:meta])* async fn $name:ident($site:ident: Site) $body:block)+) => {
        mod real {
            $(#[tokio::test] async fn $name() {
                if let Some(site) = super::Site::new(super::Kind::Real).await { super::$name(site).await }
            })+
        }
        mod simulated {
            $(#[tokio::test] async fn $name() {
                super::$name(super::Site::new(super::Kind::Simulated).await.unwrap()).await
            })+
        }
        $($(#[$meta])* async fn $name($site: Site) $body)+
    };
}

fn request(authority: Authority, common_name: &str, usage: Usage) -> CertificateRequest {
    CertificateRequest {
        authority,
        common_name: common_name.to_owned(),
        organization: String::new(),
        dns_names: Vec::new(),
        addresses: Vec::new(),
        usage,
        validity: Duration::from_secs(3600),
    }
}

fn server(common_name: &str) -> CertificateRequest {
    CertificateRequest {
        dns_names: ["localhost", "cke-etcd.kube-system.svc"].map(str::to_owned).to_vec(),
        addresses: vec!["127.0.0.1".to_owned(), "10.0.0.1".to_owned()],
        ..request(Authority::Server, common_name, Usage::Server)
    }
}

/// A certificate for the administrator of etcd.
pub(crate) fn root() -> CertificateRequest {
    request(Authority::EtcdClient, "root", Usage::Client)
}

fn user(name: &str, group: &str) -> CertificateRequest {
    CertificateRequest {
        organization: group.to_owned(),
        ..request(Authority::Kubernetes, name, Usage::Client)
    }
}

fn life(certificate: &str) -> time::Duration {
    let pem = Pem::iter_from_buffer(certificate.as_bytes()).next().unwrap().unwrap();
    let certificate = pem.parse_x509().unwrap();
    let validity = certificate.validity();
    validity.not_after.to_datetime() - validity.not_before.to_datetime()
}

fn permit() -> Permit {
    Permit::give(1, Instant::now() + Duration::from_secs(60))
}

both! {
    async fn each_kind_of_certificate_has_its_names_uses_and_life(site: Site) {
        let hour = time::Duration::hours(1);
        let ten_years = time::Duration::hours(87_600);
        let peer = CertificateRequest {
            addresses: vec!["127.0.0.1".to_owned(), "10.0.0.1".to_owned()],
            ..request(Authority::EtcdPeer, "10.0.0.1", Usage::Both)
        };
        for (request, expected) in [
            (server("10.0.0.1"), ten_years),
            (CertificateRequest { dns_names: vec!["node-1".to_owned()], ..server("node-1") }, ten_years),
            (peer, ten_years),
            (root(), hour),
            (request(Authority::EtcdClient, "backup", Usage::Client), hour),
            (user("admin", "system:masters"), hour),
            (request(Authority::KubernetesAggregation, "front-proxy-client", Usage::Client), ten_years),
        ] {
            // The adapter refuses a certificate that does not fit.
            let issued = site.authorities.issue(&request).await.unwrap();
            let life = life(&issued.certificate);
            assert!((life - expected).abs() < time::Duration::minutes(10), "{request:?}: {life}");
            assert!(issued.private_key.reveal().contains("PRIVATE KEY-----"));
        }
    }

    async fn a_role_is_written_once_and_that_of_a_user_of_kubernetes_goes_after_each_use(site: Site) {
        assert_eq!(site.role(Authority::Server, "system").await, None);
        site.authorities.issue(&server("10.0.0.1")).await.unwrap();
        let role = site.role(Authority::Server, "system").await.unwrap();
        assert!(matches!(role["client_flag"], Value::Bool(false) | Value::String(_)), "{role}");
        // An operator's own role stays.
        let path = "cke/ca-etcd-client/roles/system";
        let own = json!({"allow_any_name": "true", "server_flag": "false", "ttl": "30s", "max_ttl": "60s"});
        site.server.ask(HttpMethod::Put, path, own).await;
        let issued = site.authorities.issue(&request(Authority::EtcdClient, "backup", Usage::Client)).await;
        assert!(life(&issued.unwrap().certificate) < time::Duration::minutes(10), "the maximum of the own role");

        // A role that another process left has the group of another user.
        let path = "cke/ca-kubernetes/roles/admin";
        site.server.ask(HttpMethod::Put, path, json!({"allow_any_name": "true", "organization": "others"})).await;
        for group in ["system:masters", "viewers"] {
            site.authorities.issue(&user("admin", group)).await.unwrap();
            assert_eq!(site.role(Authority::Kubernetes, "admin").await, None);
        }
    }

    async fn a_certificate_of_another_authority_than_the_store_has_is_refused(site: Site) {
        let peer = site.authorities.certificate(Authority::EtcdPeer).await.unwrap();
        site.put("ca/server", peer).await;
        let error = site.authorities.issue(&server("10.0.0.1")).await.unwrap_err();
        assert!(matches!(error, AuthorityError::Unfit { .. }), "{error}");
        assert!(error.to_string().contains("ca/server is not the certificate of Vault's authority"), "{error}");
    }

    async fn a_sealed_server_is_told_and_serves_again_when_it_is_unsealed(site: Site) {
        site.authorities.ready().await.unwrap();
        site.server.seal().await;
        for error in [
            site.authorities.ready().await.unwrap_err(),
            site.authorities.issue(&server("10.0.0.1")).await.map(drop).unwrap_err(),
            site.authorities.tidy(&permit(), Authority::Server).await.unwrap_err(),
        ] {
            assert!(matches!(&error, AuthorityError::Vault(VaultError::Sealed { .. })), "{error}");
            let text = error.to_string();
            assert!(text.contains(&site.server.endpoint) && text.contains("vault operator unseal"), "{text}");
        }
        let error = site.login_keys.read().await.unwrap_err();
        assert!(error.to_string().starts_with("cannot read the SSH keys in Vault: GET cke/secrets/ssh"), "{error}");
        site.server.unseal().await;
        site.authorities.ready().await.unwrap();
        site.authorities.issue(&server("10.0.0.1")).await.unwrap();
    }

    async fn a_revoked_token_is_replaced_by_a_new_login(site: Site) {
        site.authorities.issue(&server("10.0.0.1")).await.unwrap();
        site.server.revoke_tokens().await;
        site.authorities.issue(&server("10.0.0.1")).await.unwrap();
        site.server.revoke_tokens().await;
        assert!(site.authorities.tidy(&permit(), Authority::Server).await.unwrap());
    }

    async fn another_secret_of_the_role_is_refused_and_named_nowhere(site: Site) {
        let access = site.vault.read_access().await.unwrap().unwrap();
        let secret_id = madako_json::krake::scalar::Secret::new("hunter2");
        site.put_access(&VaultAccess { secret_id, ..access }).await;
        let error = site.authorities.ready().await.unwrap_err();
        assert!(matches!(&error, AuthorityError::Vault(VaultError::Denied { .. })), "{error}");
        let text = format!("{error} {error:?} {:?}", site.vault.read_access().await);
        assert!(text.contains("PUT auth/approle/login") && !text.contains("hunter2"), "{text}");
    }

    async fn keys_for_logins_are_kept_by_address_with_a_default(site: Site) {
        let secrets = site.vault.open_secrets().await.unwrap().unwrap();
        assert!(secrets.login_keys().await.unwrap().0.is_empty());
        secrets.put_login_key("", &Secret::new("default")).await.unwrap();
        secrets.put_login_key("10.0.0.1", &Secret::new("one")).await.unwrap();
        secrets.put_login_key("10.0.0.1", &Secret::new("another")).await.unwrap();
        site.login_keys.put("10.0.0.2", &Secret::new("ours")).await.unwrap();
        let sources = site.login_keys.read().await.unwrap();
        let of = |source: usize, address: &str| sources[source].key_for(address).map(|key| key.unwrap().reveal());
        assert_eq!((of(0, "10.0.0.1"), of(0, "10.0.0.2")), (Some("another"), Some("default")));
        assert_eq!((of(1, "10.0.0.1"), of(1, "10.0.0.2")), (None, Some("ours")));
        site.forget_access().await;
        let sources = site.login_keys.read().await.unwrap();
        assert_eq!(sources.len(), 1, "without Vault, only keys of the store are left");
    }

    async fn a_rotation_keeps_the_newest_two_keys(site: Site) {
        let secrets = site.vault.open_secrets().await.unwrap().unwrap();
        assert!(!secrets.has_encryption_keys().await.unwrap());
        for now in [datetime!(2027-01-01 0:00:00.5 UTC), datetime!(2027-01-02 0:00 UTC), datetime!(2027-01-03 0:00 UTC)] {
            secrets.rotate_encryption_key(now).await.unwrap();
        }
        assert!(secrets.has_encryption_keys().await.unwrap());
        let answer = site.server.ask(HttpMethod::Get, KUBERNETES_SECRET, Value::Null).await;
        let stored = serde_json::from_slice::<Value>(&answer.body).unwrap()["data"]["aescbc"].clone();
        let provider: Value = serde_json::from_str(stored.as_str().unwrap()).unwrap();
        let keys = provider["keys"].as_array().unwrap();
        let names: Vec<&str> = keys.iter().map(|key| key["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["2027-01-03T00:00:00Z", "2027-01-02T00:00:00Z"]);
        assert!(keys.iter().all(|key| key["secret"].as_str().unwrap().len() == 44), "32 bytes in Base64");
    }

    async fn each_step_of_a_rotation_keeps_the_keys_that_secrets_need(site: Site) {
        use EncryptionKeyChange::{Add, CheckFirst, KeepOnly, PutFirst};
        let vault = site.vault.open_secrets().await.unwrap().unwrap();
        vault.rotate_encryption_key(datetime!(2027-01-01 0:00 UTC)).await.unwrap();
        let keys = async || {
            let stored = site.secrets.encryption_keys(&permit()).await.unwrap();
            let stored: Value = serde_json::from_str(stored.reveal()).unwrap();
            let key = |key: &Value| ["name", "secret"].map(|field| key[field].as_str().unwrap().to_owned());
            stored["keys"].as_array().unwrap().iter().map(key).collect::<Vec<_>>()
        };
        // With Vault, then encrypted in the store, where the first read makes a key.
        for is_in_vault in [true, false] {
            if !is_in_vault {
                site.forget_access().await;
            }
            let first = keys().await;
            let change = async |change: EncryptionKeyChange| site.secrets.change_encryption_keys(&permit(), &change).await;
            for name in ["absent", &first[0][0]] {
                let change = if name == "absent" { PutFirst(name.to_owned()) } else { Add(name.to_owned()) };
                let error = site.secrets.change_encryption_keys(&permit(), &change).await.unwrap_err().to_string();
                assert!(error.contains(name) && !error.contains(&first[0][1]), "{error}");
            }
            change(Add("new".to_owned())).await.unwrap();
            let added = keys().await;
            assert_eq!((added.len(), &added[0], added[1][0].as_str()), (2, &first[0], "new"));
            assert_eq!(added[1][1].len(), 44, "32 bytes in Base64");
            change(Add("new".to_owned())).await.unwrap();
            assert_eq!(keys().await, added, "the same key after a repetition");
            change(CheckFirst("new".to_owned())).await.unwrap_err();
            change(KeepOnly("new".to_owned())).await.unwrap_err();
            for _ in 0..2 {
                change(PutFirst("new".to_owned())).await.unwrap();
                assert_eq!(keys().await, [added[1].clone(), added[0].clone()]);
            }
            change(CheckFirst("new".to_owned())).await.unwrap();
            let ended = Permit::give(1, Instant::now());
            let refused = site.secrets.change_encryption_keys(&ended, &KeepOnly("new".to_owned())).await;
            assert!(matches!(refused, Err(KubernetesSecretError::Permit(_))), "{refused:?}");
            for _ in 0..2 {
                change(KeepOnly("new".to_owned())).await.unwrap();
                assert_eq!(keys().await, added[1..]);
            }
        }
    }

    async fn expired_certificates_of_each_authority_can_be_removed(site: Site) {
        for authority in Authority::ALL {
            assert!(site.authorities.tidy(&permit(), authority).await.unwrap());
        }
        let ended = Permit::give(1, Instant::now());
        let error = site.authorities.tidy(&ended, Authority::Server).await.unwrap_err();
        assert!(matches!(error, AuthorityError::Permit(_)), "{error}");
        site.forget_access().await;
        assert!(!site.authorities.tidy(&permit(), Authority::Server).await.unwrap());
    }

    async fn a_second_setup_mounts_nothing(site: Site) {
        let mut reported = Vec::new();
        site.server.operator().mount(|step| reported.push(step)).await.unwrap();
        assert_eq!(reported, []);
    }

    async fn a_server_that_is_gone_is_told_with_its_address(site: Site) {
        let mut site = site;
        site.server.end().await;
        for error in [
            site.authorities.ready().await.unwrap_err(),
            site.authorities.issue(&server("10.0.0.1")).await.map(drop).unwrap_err(),
        ] {
            assert!(matches!(&error, AuthorityError::Vault(VaultError::Unreachable { .. })), "{error}");
            assert!(error.to_string().contains(&site.server.endpoint), "{error}");
        }
    }
}

/// The steps of a setup on an empty server, by a user.
async fn set_up(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    server.add_user("admin", "hunter2").await;
    let log_in = async |password: &str| {
        let password = Secret::new(password);
        Operator::log_in(server.transport.clone(), &server.endpoint, "admin", &password).await
    };
    let error = log_in("hunter3").await.map(drop).unwrap_err();
    assert!(error.to_string().contains("auth/userpass/login/admin"), "{error}");
    assert!(!error.to_string().contains("hunter3"), "{error}");
    log_in("hunter2").await.unwrap();
    let mut reported = Vec::new();
    server.operator().mount(|step| reported.push(step)).await.unwrap();
    let pki = Authority::ALL.map(|authority| SetUp::MountedPki(format!("cke/ca-{authority}")));
    let expected: Vec<SetUp> =
        pki.into_iter().chain([SetUp::MountedSecrets("cke/secrets".to_owned())]).collect();
    assert_eq!(reported, expected);
}

#[tokio::test]
async fn the_real_server_is_set_up_step_by_step() {
    set_up(Kind::Real).await;
}

#[tokio::test]
async fn the_simulated_server_is_set_up_step_by_step() {
    set_up(Kind::Simulated).await;
}

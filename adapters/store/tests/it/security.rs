//! Tests of TLS and passwords for access to etcd.

use std::path::Path;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Permission};
use madako_domain::store::StoreErrorKind;
use madako_protocol::placement::objects::Objects as _;
use madako_protocol::secret::Secret;
use madako_protocol::store::{CampaignEvent, CampaignOptions, Store as _, WatchEvent};
use madako_store::{CachedObjects, EtcdStore, StoreConfig};
use metrics_exporter_prometheus::PrometheusBuilder;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::time::timeout;

use crate::etcd::{Etcd, config_at, eventually, put, within, write};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Certificate and key for the names.
fn issued(authority: &Authority, names: &[&str]) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, authority).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn kept(directory: &Path, name: &str, pem: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, pem).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn store_with_tls_accepts_only_client_certificates() {
    let files = tempfile::tempdir().unwrap();
    let (ours, another) = (authority(), authority());
    let (server_cert, server_key) = issued(&ours, &["127.0.0.1", "localhost"]);
    let flags = [
        format!("--cert-file={}", kept(files.path(), "server.pem", &server_cert)),
        format!("--key-file={}", kept(files.path(), "server-key.pem", &server_key)),
        format!("--trusted-ca-file={}", kept(files.path(), "ca.pem", &ours.pem())),
        "--client-cert-auth".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let Some(etcd) = Etcd::start(&flags).await else { return };

    let (cert, key) = issued(&ours, &["madako"]);
    let good = StoreConfig {
        tls_ca: Some(ours.pem()),
        tls_cert: Some(cert),
        tls_key: Some(Secret::new(key)),
        ..etcd.config("/cke/")
    };
    let named = StoreConfig {
        endpoints: vec![etcd.endpoint().replace("127.0.0.1", "https://localhost")],
        ..good.clone()
    };
    for config in [&good, &named] {
        let store = EtcdStore::open(config, 1).unwrap();
        write(&store, vec![put("a", "1")]).await;
        let mut events = store.watch("");
        assert!(matches!(within("a list", events.recv()).await, Some(WatchEvent::Listed(_))));
    }

    let (cert, key) = issued(&another, &["madako"]);
    let plain = format!("http://{}", etcd.endpoint());
    for (wrong, config) in [
        ("no client certificate", StoreConfig { tls_cert: None, tls_key: None, ..good.clone() }),
        (
            "another authority's client",
            StoreConfig { tls_cert: Some(cert), tls_key: Some(Secret::new(key)), ..good.clone() },
        ),
        ("another authority's server", StoreConfig { tls_ca: Some(another.pem()), ..good.clone() }),
        ("the system's authorities", StoreConfig { tls_ca: None, ..good.clone() }),
        ("no TLS", config_at(&plain, "/cke/")),
    ] {
        let error = EtcdStore::open(&config, 1).unwrap().list("").await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unavailable, "{wrong}: {error}");
        println!("{wrong}: {error}");
    }
}

/// Enables authentication: `root` may do everything, `cke` may use the keys below `/cke/`.
async fn switch_authentication_on(etcd: &Etcd) {
    let mut client = etcd.by_hand().await;
    client.user_add("root", "toor", None).await.unwrap();
    client.role_add("root").await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.role_add("cke").await.unwrap();
    client.role_grant_permission("cke", Permission::read_write("/cke/").with_prefix()).await.unwrap();
    client.user_add("cke", "hunter2", None).await.unwrap();
    client.user_grant_role("cke", "cke").await.unwrap();
    client.auth_enable().await.unwrap();
}

fn with_password(config: StoreConfig, password: &str) -> StoreConfig {
    StoreConfig { username: "cke".into(), password: Secret::new(password), ..config }
}

#[tokio::test]
async fn a_token_that_the_store_forgot_is_renewed_without_a_failed_request() {
    let Some(mut etcd) = Etcd::start(&[]).await else { return };
    switch_authentication_on(&etcd).await;
    let store = EtcdStore::open(&with_password(etcd.config("/cke/"), "hunter2"), 1).unwrap();
    write(&store, vec![put("a", "1")]).await;
    // A separate client: only its watch can renew its token.
    let watching = EtcdStore::open(&with_password(etcd.config("/cke/"), "hunter2"), 1).unwrap();
    let mut watched = watching.watch("");
    assert!(matches!(within("a list", watched.recv()).await, Some(WatchEvent::Listed(_))));
    let options = CampaignOptions { host: "boot-0".into(), ttl: Duration::from_secs(5) };
    let mut campaign = store.campaign(options);
    let Some(CampaignEvent::Elected(epoch)) = within("an election", campaign.events.recv()).await else {
        panic!("not elected")
    };

    for round in 0..2 {
        // Tokens are in memory, so a restart discards them.
        etcd.kill().await;
        etcd.start_again().await;
        let last = write(&store, vec![put("a", round.to_string())]).await;
        loop {
            match within("the watch goes on", watched.recv()).await.unwrap() {
                WatchEvent::Changed { revision, .. } if revision >= last => break,
                WatchEvent::Listed(_) => panic!("listed again"),
                _ => {}
            }
        }
    }
    // Longer than the lease lasts without renewals.
    let event = timeout(Duration::from_secs(6), campaign.events.recv()).await;
    assert!(event.is_err(), "{event:?}");
    assert!(store.holds_until(&epoch).is_some());
}

#[tokio::test]
async fn placement_cache_reports_a_user_without_access_to_the_whole_key_space() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    switch_authentication_on(&etcd).await;
    let store = EtcdStore::open(&with_password(etcd.config("/cke/"), "hunter2"), 1).unwrap();
    let objects = CachedObjects::start(&store);
    assert_eq!(objects.refresh().await.unwrap_err().kind, StoreErrorKind::Denied);
    // Now it may read the store's revision, but still not watch the store.
    let options = ConnectOptions::new().with_user("root", "toor");
    let mut root = Client::connect([etcd.endpoint()], Some(options)).await.unwrap();
    let ours = Permission::read("/madako/").with_prefix();
    root.role_grant_permission("cke", ours).await.unwrap();
    let error = objects.refresh().await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Denied);
    assert!(error.why.contains("cannot complete the watch of every key"), "{error}");
    root.role_grant_permission("cke", Permission::read_write("").with_all_keys()).await.unwrap();
    eventually("it may do everything now", async || objects.refresh().await.ok()).await;
}

#[tokio::test]
async fn refused_authentication_is_reported_without_the_password() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    // A password is harmless while authentication is disabled.
    let store = EtcdStore::open(&with_password(etcd.config("/cke/"), "hunter2"), 1).unwrap();
    write(&store, vec![put("a", "1")]).await;
    switch_authentication_on(&etcd).await;
    // Now the password is required and accepted.
    let recorder = PrometheusBuilder::new().build_recorder();
    let _counted = metrics::set_default_local_recorder(&recorder);
    let authentications = |outcome: &str, least: u64| {
        let name = format!("madako_store_authentications_total{{outcome=\"{outcome}\"}} ");
        let shown = recorder.handle().render();
        let count = shown.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok());
        assert!(count.is_some_and(|count| count >= least), "{outcome}: {shown}");
    };
    write(&store, vec![put("a", "2")]).await;
    authentications("ok", 1);

    for (wrong, config) in [
        ("a wrong password", with_password(etcd.config("/cke/"), "hunter3")),
        ("no password", etcd.config("/cke/")),
        ("keys of others", with_password(etcd.config("/other/"), "hunter2")),
    ] {
        let store = EtcdStore::open(&config, 1).unwrap();
        let error = store.list("").await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Denied, "{wrong}: {error}");
        let shown = format!("{error} {error:?} {store:?} {config:?}");
        assert!(!shown.contains("hunter"), "{wrong}: {shown}");
        println!("{wrong}: {error}");
        let mut campaign =
            store.campaign(CampaignOptions { host: "boot-0".into(), ttl: Duration::from_secs(5) });
        match within("the campaign says so", campaign.events.recv()).await {
            Some(CampaignEvent::Unavailable(error)) => {
                assert_eq!(error.kind, StoreErrorKind::Denied, "{wrong}: {error}");
            }
            other => panic!("{wrong}: {other:?}"),
        }
    }

    authentications("denied", 1);
    // A password that is changed, and changed back.
    let options = ConnectOptions::new().with_user("root", "toor");
    let mut root = Client::connect([etcd.endpoint()], Some(options)).await.unwrap();
    root.user_change_password("cke", "hunter4").await.unwrap();
    let fresh = EtcdStore::open(&with_password(etcd.config("/cke/"), "hunter2"), 1).unwrap();
    assert_eq!(fresh.list("").await.unwrap_err().kind, StoreErrorKind::Denied);
    root.user_change_password("cke", "hunter2").await.unwrap();
    fresh.list("").await.unwrap();
}

//! Tests of secrets that are encrypted in the store: everything works as without encryption, etcd contains no secret,
//! and an instance without the key destroys nothing.

use serde_json::{Value, json};

use super::super::stage::Serve;
use super::api::{Api, all, one};
use super::{PlacementFixture, api, until_decides};
use crate::program::madako;

const OLD: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";
const NEW: &str = "# since today\nAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n";
/// Prefix of every secret of this test.
const SECRET: &str = "hunter2";

const PROVIDER: &str = "\
api: core
kind: GlobalMetricsProvider
metadata: {name: influx}
spec: {type: influx, influx: {url: 'http://127.0.0.1:1', token: hunter2-token, org: o, bucket: b}}
";

impl PlacementFixture {
    /// A configuration file with these keys.
    fn with_keys(&self, name: &str, keys: &str, placement: &str) -> String {
        let keys = self.files.write(&format!("{name}.keys"), keys);
        super::super::security::only_for_its_owner(&keys);
        let placement = format!("{placement}, encryption: {{key_file: '{keys}'}}");
        self.config(name, &self.etcd.settings(), &placement)
    }

    /// Keys of values that contain a secret in clear text.
    async fn in_clear_text(&self) -> Vec<String> {
        let everything = self.keys.everything().await;
        let readable = |value: &[u8]| value.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        let clear = everything.into_iter().filter(|stored| readable(stored.value()));
        clear.map(|stored| stored.key_str().unwrap().to_owned()).collect()
    }

    /// The id of the key that a cluster's kubeconfig is encrypted with.
    async fn encrypted_with(&self, cluster: &str) -> String {
        let stored = self.keys.at_root(&format!("/kubernetes/clusters/testing/{cluster}")).await.unwrap();
        let value: Value = serde_json::from_slice(stored.value()).unwrap();
        let encrypted = &value["spec"]["kubeconfig"];
        assert_eq!((&encrypted[0], &encrypted[1]), (&json!("madako-sealed"), &json!(1)), "{value}");
        encrypted[2].as_str().unwrap().to_owned()
    }
}

async fn password(api: Api, cluster: &str) -> Value {
    let reply = api.ask("GET", &one("clusters", cluster), &Value::Null).await;
    reply.done()["spec"]["kubeconfig"]["users"][0]["user"]["password"].take()
}

#[tokio::test]
async fn secrets_are_encrypted_in_etcd_and_safe_from_instances_without_the_key() {
    let Some(place) = PlacementFixture::new().await else { return };
    let keyed = place.with_keys("old.yml", OLD, "");
    let service = Serve::start(&keyed, "10m", "1s").await;
    until_decides(&service).await;
    let provider = place.files.write("provider.yaml", PROVIDER);
    madako(&["--config", &keyed, "bootstrap", &provider]).await.calm();
    let client = api(&service);
    client.cluster("one", "ONLINE").await;
    client.create("app").await.done();
    assert_eq!(place.until_bound("app").await, (2, "one".to_owned()), "the scheduler works");
    let read = client.ask("GET", "/core/globalmetricsproviders/influx", &Value::Null).await.done();
    assert_eq!(read["spec"]["influx"]["token"], "hunter2-token");
    assert_eq!(password(client, "one").await, "hunter2-one");
    assert_eq!(place.in_clear_text().await, [""; 0]);
    let old = place.encrypted_with("one").await;

    // An instance without the key reports that, omits the resource, and can neither change nor replace it.
    let plain = place.config("plain.yml", &place.etcd.settings(), ", controllers: false");
    let keyless = Serve::start(&plain, "10m", "1s").await;
    let stranger = api(&keyless);
    let path = one("clusters", "one");
    let written = async || {
        let (one, influx) = ("/kubernetes/clusters/testing/one", "/core/globalmetricsproviders/influx");
        [place.keys.at_root(one).await, place.keys.at_root(influx).await]
            .map(|kept| kept.unwrap().mod_revision())
    };
    let before = written().await;
    let refused = stranger.ask("GET", &path, &Value::Null).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    let why = format!("/spec/kubeconfig is encrypted with the key {old}, which is not configured here");
    assert!(refused.body["detail"].as_str().unwrap().contains(&why), "{refused:?}");
    keyless.until_log(&why).await;
    let list = stranger.ask("GET", &all("clusters"), &Value::Null).await.done();
    assert_eq!(list["items"], json!([]), "one that cannot be read fails no list");
    let cluster = client.ask("GET", &path, &Value::Null).await.done();
    let forced = format!("{path}?force=True");
    for (method, path) in [("PUT", &path), ("DELETE", &path), ("DELETE", &forced)] {
        let refused = stranger.ask(method, path, &cluster).await;
        assert_eq!(refused.status, 409, "{method} {path}: {refused:?}");
    }
    assert_eq!(stranger.ask("POST", &all("clusters"), &cluster).await.status, 409);
    let message = madako(&["--config", &plain, "bootstrap", "--force", &provider]).await.refused(1);
    assert!(message.contains("GlobalMetricsProvider influx exists and cannot be read"), "{message}");
    assert_eq!(written().await, before, "nothing of it was written");
    assert_eq!(stranger.names().await, ["app"], "resources without secrets stay readable");

    // A new key encrypts, the former one only decrypts; clear text is read, and encrypted at its next write.
    stranger.cluster("clear", "ONLINE").await;
    assert_eq!(place.in_clear_text().await, ["/kubernetes/clusters/testing/clear"]);
    let rotated = place.with_keys("new.yml", &format!("{NEW}{OLD}"), ", controllers: false");
    let rotated = Serve::start(&rotated, "10m", "1s").await;
    let client = api(&rotated);
    for name in ["one", "clear"] {
        assert_eq!(password(client, name).await, format!("hunter2-{name}"));
        client.becomes(name, "OFFLINE").await;
        assert_ne!(place.encrypted_with(name).await, old);
    }
    assert_eq!(place.in_clear_text().await, [""; 0]);
    for service in [&service, &keyless, &rotated] {
        let log = service.log();
        assert!(!log.contains(SECRET) && !log.contains(OLD.trim()), "{log}");
    }
}

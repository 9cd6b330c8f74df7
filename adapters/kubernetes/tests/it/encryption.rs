//! The rewrite of Secrets on a real API server whose encryption keys change.

use std::fs::File;
use std::process::Stdio;
use std::sync::Arc;

use madako_domain::objects::{FoundObject, Manifest};
use madako_protocol::objects::Objects as _;
use serde_json::json;
use tokio::process::Command;

use crate::components::{HERE, components};
use crate::contract::permit;
use crate::server::{ADMIN, Server, get, until};

const OPTION: &str = "--encryption-provider-config=";
/// Names and texts of keys.
const OLD: [&str; 2] = ["old", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="];
const NEW: [&str; 2] = ["new", "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="];

/// Ends the API server, and starts it with these keys. It reads Secrets that were never encrypted, too.
async fn restart(server: &mut Server, keys: &[[&str; 2]]) {
    let keys: Vec<_> = keys.iter().map(|[name, secret]| json!({"name": name, "secret": secret})).collect();
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "EncryptionConfiguration",
        "resources": [
            {"resources": ["secrets"], "providers": [{"aescbc": {"keys": keys}}, {"identity": {}}]},
        ],
    });
    let file = server.directory.path().join("encryption.yml");
    std::fs::write(&file, configuration.to_string()).unwrap();
    let line = std::fs::read(format!("/proc/{}/cmdline", server.api.id().unwrap())).unwrap();
    let line = String::from_utf8(line).unwrap();
    let words: Vec<&str> = line.split_terminator('\0').filter(|word| !word.starts_with(OPTION)).collect();
    server.api.kill().await.unwrap();
    let log = server.directory.path().join("kube-apiserver.log");
    let log = File::options().append(true).open(log).unwrap();
    server.api = Command::new(words[0])
        .args(&words[1..])
        .arg(format!("{OPTION}{}", file.display()))
        .env_clear()
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let admin = server.client(ADMIN);
    until("the API server is ready", async || admin.request_text(get("/readyz")).await.ok()).await;
}

#[tokio::test]
async fn a_rewritten_secret_is_readable_without_the_earlier_key() {
    let Some(mut server) = Server::start().await else { return };
    let components = components(Arc::clone(&server.authority), &server.url);
    let servers = [HERE.to_owned()];
    let metadata = json!({"name": "s", "namespace": "default"});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"x": "MQ=="}});
    let secret = Manifest::new(secret).unwrap();
    components.apply_object(&permit(), &servers, &secret).await.unwrap();
    let versions = async || {
        let listed = components.list_secrets(&servers).await.unwrap();
        listed.into_iter().find(|found| found.name == "s").unwrap()
    };
    // The last first key is that of the step before.
    for (keys, is_written) in [(&[OLD][..], true), (&[NEW, OLD], true), (&[NEW], false)] {
        restart(&mut server, keys).await;
        let before = until("connections to the former process have ended", async || {
            components.list_secrets(&servers).await.ok()?.into_iter().find(|found| found.name == "s")
        })
        .await;
        let found = components.read_object(&servers, secret.name()).await;
        assert!(
            matches!(&found, FoundObject::Exists(found) if found["data"]["x"] == "MQ=="),
            "{keys:?}: {found:?}"
        );
        components.rewrite_secret(&permit(), &servers, &before).await.unwrap();
        let rewritten = versions().await;
        assert_eq!(rewritten != before, is_written, "{keys:?}");
        components.rewrite_secret(&permit(), &servers, &rewritten).await.unwrap();
        assert_eq!(versions().await, rewritten, "nothing is to be written: {keys:?}");
    }
}

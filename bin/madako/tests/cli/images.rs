//! Tests of `madako images`: the order of the sources, the key, and nodes that do not answer.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::program::{Answer, Etcd, Files, madako};

const SSH_KEY: &str = include_str!("../../../../adapters/ssh/src/keyring/one.key");
/// A control plane node on loopback, where no SSH server listens at this address.
const SILENT: &str = "127.0.91.8";

#[tokio::test]
async fn images_come_from_the_key_then_from_the_configuration_then_from_cke() {
    let Some(etcd) = Etcd::start().await else { return };
    let text = fs::read_to_string(etcd.config()).unwrap();
    let config =
        etcd.file("images.yml", format!("{text}images: {{etcd: 'file/etcd:1', pause: 'file/pause:1'}}\n"));
    let run = async |args: &[&str]| madako(&[args, &["--config", &config]].concat()).await;
    assert_eq!(
        run(&["images"]).await.calm(),
        "file/etcd:1\nghcr.io/cybozu-go/cke-tools:1.30.0\nghcr.io/cybozu/kubernetes:1.30.5.1\nfile/pause:1\n\
         ghcr.io/cybozu/coredns:1.11.3.1\nghcr.io/cybozu/unbound:1.21.1.1\nghcr.io/cybozu/unbound_exporter:0.4.6.2\n"
    );
    assert_eq!(
        run(&["images", "set", "etcd=key/etcd:2", "unbound_exporter=key/x@sha256:00"]).await.calm(),
        "etcd: none -> key/etcd:2\nunbound_exporter: none -> key/x@sha256:00\n"
    );
    let stored: Value = serde_json::from_str(&etcd.get("madako/images").await.unwrap()).unwrap();
    assert_eq!(stored, json!({"etcd": "key/etcd:2", "unbound_exporter": "key/x@sha256:00"}));
    let images = run(&["images", "-o", "json"]).await.json();
    assert_eq!(
        (&images[0], &images[3], &images[6]),
        (&json!("key/etcd:2"), &json!("file/pause:1"), &json!("key/x@sha256:00"))
    );
    assert_eq!(
        run(&["images", "set", "etcd=", "pause=key/pause:1"]).await.calm(),
        "etcd: key/etcd:2 -> none\npause: none -> key/pause:1\n"
    );
    let images = run(&["images"]).await.calm();
    assert!(images.starts_with("file/etcd:1\n") && images.contains("\nkey/pause:1\n"), "{images}");
}

#[tokio::test]
async fn without_a_cluster_an_image_of_kubernetes_needs_no_node_and_nothing_can_be_planned() {
    let Some(etcd) = Etcd::start().await else { return };
    assert_eq!(etcd.run(&["images", "set", "kubernetes=a:1"]).await.calm(), "kubernetes: none -> a:1\n");
    let forced = etcd.run(&["images", "set", "kubernetes=a:2", "--force"]).await.calm();
    assert_eq!(forced, "kubernetes: a:1 -> a:2\n");
    assert_eq!(etcd.get("madako/images").await.unwrap(), r#"{"kubernetes":"a:2"}"#);
    etcd.run(&["kube", "plan"]).await.refused(1);
    let message = etcd.run(&["kube", "plan", "--image", "etcd=a:1"]).await;
    assert!(message.code == 2 && message.err.contains("expected kubernetes=IMAGE"), "{message:?}");
}

#[tokio::test]
async fn a_pause_of_the_roll_stays_in_the_store_until_it_is_resumed() {
    let Some(etcd) = Etcd::start().await else { return };
    let stored = async || -> Value {
        serde_json::from_str(&etcd.get("madako/kubernetes/rollout").await.unwrap()).unwrap()
    };
    assert_eq!(etcd.run(&["kube", "pause"]).await.calm(), "");
    assert_eq!(stored().await["paused"], true);
    let halted = json!({
        "image": "a:1", "waves": {"kubelet": 0}, "watched": {}, "failed": {"10.0.0.1": "x"}, "halted": true, "paused": true,
    });
    etcd.put("madako/kubernetes/rollout", halted.to_string()).await;
    assert_eq!(etcd.run(&["kubernetes", "resume"]).await.calm(), "");
    let resumed =
        json!({"image": "a:1", "waves": {}, "watched": {}, "failed": {}, "halted": false, "paused": false});
    assert_eq!(stored().await, resumed);
}

#[tokio::test]
async fn a_rotation_of_the_encryption_key_is_asked_for_once() {
    const KEY: &str = "madako/kubernetes/encryption-rotation";
    let Some(etcd) = Etcd::start().await else { return };
    etcd.run(&["kube", "rotate-encryption-key"]).await.refused(1);
    let node = json!({"address": "10.0.0.1", "user": "cke", "control_plane": true});
    let cluster = json!({"name": "c", "nodes": [node], "service_subnet": "10.1.0.0/16"});
    etcd.put("cluster", cluster.to_string()).await;
    // No leader acts: the request would stay in the store.
    let settings = |modes: Value| {
        let times =
            json!({"interval_seconds": 60.0, "session_ttl_seconds": 60.0, "retire_wait_seconds": 300.0});
        let mut settings = times;
        settings["modes"] = modes;
        settings.to_string()
    };
    for (modes, why) in [
        (None, "no leader has stored its modes in madako/settings"),
        (Some(Value::Null), "the leader has an earlier version"),
        (Some(json!({"operations": "off", "kubernetes": "off"})), "the leader has operations.mode: off"),
        (
            Some(json!({"operations": "act", "kubernetes": "observe"})),
            "the leader has kubernetes.mode: observe",
        ),
    ] {
        if let Some(modes) = modes {
            etcd.put("madako/settings", settings(modes)).await;
        }
        for words in [&["kube", "rotate-encryption-key"][..], &["kube", "rotate-encryption-key", "--dry-run"]]
        {
            let message = etcd.run(words).await.refused(1);
            assert!(message.contains(why) && message.contains("kubernetes.mode to act"), "{message}");
        }
    }
    assert_eq!(etcd.get(KEY).await, None);
    etcd.put("madako/settings", settings(json!({"operations": "act", "kubernetes": "act"}))).await;
    let steps = etcd.run(&["kube", "rotate-encryption-key", "--dry-run"]).await.calm();
    assert!(steps.contains("nothing was written") && steps.contains("10.0.0.1"), "{steps}");
    assert_eq!(etcd.get(KEY).await, None);
    let steps = etcd.run(&["kubernetes", "rotate-encryption-key"]).await.calm();
    let stored: Value = serde_json::from_str(&etcd.get(KEY).await.unwrap()).unwrap();
    assert_eq!((&stored["stage"], &stored["started"]), (&json!("requested"), &json!([])));
    assert!(steps.contains(stored["key"].as_str().unwrap()), "{steps}");
    for words in [
        &["kube", "rotate-encryption-key"][..],
        &["kube", "rotate-encryption-key", "--dry-run"],
        &["vault", "enckey"],
    ] {
        let message = etcd.run(words).await;
        assert!(message.code == 1 && message.err.contains("is under way"), "{message:?}");
    }
    assert_eq!(serde_json::from_str::<Value>(&etcd.get(KEY).await.unwrap()).unwrap(), stored);
}

#[tokio::test]
async fn wrong_images_are_refused_and_change_nothing() {
    let Some(etcd) = Etcd::start().await else { return };
    let revision = etcd.revision().await;
    for (word, part) in [
        ("etcd", "expected NAME=IMAGE"),
        ("etc=a", "expected one of etcd, tools, kubernetes, pause, coredns, unbound, unbound_exporter"),
        ("etcd=--privileged", "expected the name of an image"),
        ("tools=a b", "expected the name of an image"),
    ] {
        let message = etcd.run(&["images", "set", "pause=a:1", word]).await;
        assert!(message.code == 2 && message.err.contains(part), "{message:?}");
    }
    assert_eq!(etcd.revision().await, revision);
    etcd.put("madako/images", r#"{"etcd": "a b"}"#).await;
    for args in [&["images"][..], &["images", "set", "etcd=a:1"]] {
        let message = etcd.run(args).await.refused(1);
        assert!(message.contains("the stored value of madako/images cannot be read"), "{message}");
    }
}

#[tokio::test]
async fn nothing_is_adopted_while_a_control_plane_node_does_not_answer() {
    let Some(etcd) = Etcd::start().await else { return };
    let key = etcd.file("ssh-key", SSH_KEY);
    let pki = etcd.file("pki-keys", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n");
    for file in [&key, &pki] {
        fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
    }
    let text = fs::read_to_string(etcd.config()).unwrap();
    let config = etcd.file(
        "ssh.yml",
        format!("{text}ssh: {{key_file: {key}}}\npki: {{key_file: {pki}}}\nimages: {{tools: 'a:1'}}\n"),
    );
    let run = async |args: &[&str]| madako(&[args, &["--config", &config]].concat()).await;
    let node = json!({"address": SILENT, "user": "cke", "control_plane": true});
    let cluster = json!({"name": "tokyo0", "nodes": [node], "service_subnet": "10.1.0.0/16"});
    etcd.put("cluster", cluster.to_string()).await;
    etcd.put("config-version", "2").await;
    let refused = run(&["images", "adopt"]).await.refused_after_notes(1);
    assert!(refused.contains(&format!("these control plane nodes do not answer: {SILENT}")), "{refused}");
    assert_eq!(etcd.get("madako/images").await, None);
    let listed = run(&["images", "list", "-o", "json"]).await;
    assert!(listed.code == 0 && listed.err.contains(SILENT), "{listed:?}");
    let rows = listed.json();
    assert_eq!(rows[1], json!({"name": "tools", "image": "a:1", "source": "configuration", "nodes": {}}));
    assert_eq!(rows[0]["source"], "default");
    let sorted = run(&["images", "list", "--sort-by", "source"]).await;
    assert!(sorted.code == 0 && sorted.out.starts_with("NAME "), "{sorted:?}");
    assert!(sorted.out.lines().nth(1).unwrap().contains("configuration"), "{sorted:?}");
    let message = run(&["images", "list", "--sort-by", "size"]).await.refused(2);
    assert!(message.contains("expected one of name, image, source, nodes"), "{message}");
}

/// A plan of a cluster whose members of etcd have these images.
async fn plan(images: [&str; 3]) -> Answer {
    let files = Files::new();
    let addresses = ["10.0.0.11", "10.0.0.12", "10.0.0.13"];
    let nodes: Vec<Value> =
        addresses.iter().map(|address| json!({"address": address, "control_plane": true})).collect();
    let cluster = files.write("cluster.yml", json!({"name": "test", "nodes": nodes}).to_string());
    let rivers = |upstream: u16, listen: u16| {
        let upstreams = addresses.map(|address| format!("{address}:{upstream}")).join(",");
        let args =
            json!(["rivers", format!("--upstreams={upstreams}"), format!("--listen=127.0.0.1:{listen}")]);
        json!({"running": true, "image": "own/tools:1", "builtin": {"extra_args": args}})
    };
    let on = |image: &str| {
        json!({
            "reachable": true, "etcd_data": true, "etcd_mark": true,
            "containers": {
                "rivers": rivers(6443, 16443), "etcd-rivers": rivers(2379, 12379),
                "etcd": {"running": false, "image": image},
            },
        })
    };
    let nodes: serde_json::Map<String, Value> =
        addresses.iter().zip(images).map(|(address, image)| ((*address).to_owned(), on(image))).collect();
    let status = json!({"config_version": "2", "nodes": nodes, "etcd": null,
                        "bootstrap": {"status": "completed", "targets": addresses}});
    let status = files.write("status.json", status.to_string());
    madako(&["ops", "plan", "--cluster", &cluster, "--status", &status, "-o", "json"]).await
}

#[tokio::test]
async fn containers_start_with_the_image_that_all_control_plane_nodes_have() {
    let plan = plan(["own/etcd:1"; 3]).await.json();
    assert_eq!(plan["phase"], "etcd-start", "rivers of another image than CKE's stay: {plan}");
    assert_eq!((&plan["operations"][0]["name"], &plan["held"]), (&json!("etcd-start"), &json!([])), "{plan}");
}

#[tokio::test]
async fn nothing_starts_while_the_nodes_have_different_images() {
    let plan = plan(["own/etcd:1", "own/etcd:2", "own/etcd:1"]).await.json();
    assert_eq!(
        plan["operations"].as_array().unwrap().iter().filter(|it| it["name"] == "etcd-start").count(),
        0,
        "{plan}"
    );
    assert_eq!(
        (&plan["held"][0]["what"], &plan["held"][0]["reason"]),
        (&json!("etcd-start"), &json!("unclear-image")),
        "{plan}"
    );
}

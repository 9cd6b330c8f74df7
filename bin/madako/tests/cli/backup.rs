//! Tests of `madako etcd local-backup`, `etcd user-add`, `kubernetes issue` and `images`, with a member of the
//! cluster's etcd on a loopback address of its own.

use std::fs::{self, Permissions};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::program::{Answer, Etcd, free_port, installed, madako};

/// Address of the member: clients find etcd at its fixed port, and no other test uses this address.
const ADDRESS: &str = "127.0.91.7";
const PATIENCE: Duration = Duration::from_secs(60);

/// The service's store, and a cluster whose etcd has one member with TLS.
struct Site {
    store: Etcd,
    config: String,
    _member: Child,
}

impl Site {
    async fn start() -> Option<Self> {
        let store = Etcd::start().await?;
        let keys = store.file("pki-keys", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n");
        fs::set_permissions(&keys, Permissions::from_mode(0o600)).unwrap();
        let text = fs::read_to_string(store.config()).unwrap();
        let config = store.file("pki.yml", format!("{text}pki: {{key_file: {keys}}}\n"));
        let (authority, server, key) = server();
        let authority_file = store.file("ca.crt", &authority.0);
        let authority_key = store.file("ca.key", &authority.1);
        let set = ["ca", "set", "server", &authority_file, "--key", &authority_key, "--config", &config];
        madako(&set).await.calm();
        madako(&["ca", "init", "--config", &config]).await.calm();
        let node = json!({"address": ADDRESS, "user": "cke", "control_plane": true});
        let cluster = json!({"name": "tokyo0", "nodes": [node], "service_subnet": "10.1.0.0/16"});
        store.put("cluster", cluster.to_string()).await;
        let clients = store.file("ca-client.crt", store.get("ca/etcd-client").await.unwrap());
        let files = [store.file("server.crt", server), store.file("server.key", key)];
        let data = Path::new(&files[0]).with_file_name("member");
        let (client, peer) = (format!("https://{ADDRESS}:2379"), format!("http://{ADDRESS}:{}", free_port()));
        let flags = [
            ("data-dir", data.display().to_string()),
            ("listen-client-urls", client.clone()),
            ("advertise-client-urls", client),
            ("listen-peer-urls", peer.clone()),
            ("initial-advertise-peer-urls", peer.clone()),
            ("initial-cluster", format!("default={peer}")),
            ("client-cert-auth", "true".to_owned()),
            ("trusted-ca-file", clients),
            ("cert-file", files[0].clone()),
            ("key-file", files[1].clone()),
        ];
        let member = Command::new(installed()?)
            .args(flags.map(|(flag, value)| format!("--{flag}={value}")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Some(Self { store, config, _member: member })
    }

    async fn run(&self, args: &[&str]) -> Answer {
        madako(&[args, &["--config", &self.config]].concat()).await
    }

    /// Adds a user as soon as etcd answers.
    async fn add_first_user(&self) -> String {
        let adding = async {
            loop {
                let answer = self.run(&["etcd", "user-add", "coil", "/coil/"]).await;
                if answer.code == 0 {
                    return answer.calm();
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(PATIENCE, adding).await.expect("etcd answers")
    }
}

/// An authority (certificate and key), and the certificate and key of a server that it issued.
fn server() -> ((String, String), String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = (params.self_signed(&key).unwrap().pem(), key.serialize_pem());
    let issuer = Issuer::new(params, key);
    let (server_key, mut server) = (KeyPair::generate().unwrap(), CertificateParams::default());
    server.subject_alt_names = vec![SanType::IpAddress(ADDRESS.parse::<IpAddr>().unwrap())];
    let certificate = server.signed_by(&server_key, &issuer).unwrap().pem();
    (authority, certificate, server_key.serialize_pem())
}

/// Waits until no process has this text in its command line.
async fn until_ended(text: &str) {
    let runs = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
        lines.any(|line| String::from_utf8_lossy(&line).contains(text))
    };
    let ended = async {
        while runs() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, ended).await.unwrap_or_else(|_| panic!("a process with {text} runs still"));
}

#[tokio::test]
async fn the_clusters_etcd_is_backed_up_and_proved_with_its_users_and_kubeconfigs_are_ckeclis() {
    let Some(site) = Site::start().await else { return };
    assert_eq!(site.add_first_user().await, "");
    let refused = site.run(&["etcd", "user-add", "coil", "/"]).await.refused(1);
    assert!(refused.contains("the user coil exists already"), "{refused}");
    for name in ["", "root", "backup"] {
        site.run(&["etcd", "user-add", name, "/"]).await.refused(2);
    }
    site.run(&["etcd", "user-add", "calico", ""]).await.refused(2);

    let directory = Path::new(&site.config).with_file_name("backups");
    let shown = directory.display().to_string();
    let local_backup = ["etcd", "local-backup", "--dir", &shown, "--max-backups", "1"];
    let output = site.run(&[&local_backup[..], &["--prove"]].concat()).await.calm();
    let lines: Vec<&str> = output.lines().collect();
    let name = lines[0].strip_prefix("created backup ").unwrap();
    assert!(name.starts_with("etcd-") && name.ends_with(".backup") && name.len() == 27, "{output}");
    assert_eq!(lines[1..], [format!("proved backup {name}: 0 keys at revision 1")], "{output}");
    let mut names: Vec<_> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".madako.lock", name]);
    until_ended(&shown).await;

    // Another second, another name.
    sleep(Duration::from_millis(1100)).await;
    let second = site.run(&[&local_backup[..], &["-o", "json"]].concat()).await.json();
    assert_eq!((&second["proved"], &second["removed"]), (&json!(false), &json!([name])), "{second}");

    for words in [["kubernetes", "issue"], ["kube", "issue"]] {
        let kubeconfig = site.run(&words).await.calm();
        for part in
            ["  name: tokyo0\n", "    user: admin\n", &format!("    server: https://{ADDRESS}:6443\n")]
        {
            assert!(kubeconfig.contains(part), "{part:?} is not in {kubeconfig}");
        }
    }
    site.run(&["kubernetes", "issue", "--ttl", "49h"]).await.refused(2);
    let images = site.run(&["images"]).await.calm();
    assert_eq!(images.lines().next(), Some("ghcr.io/cybozu/etcd:3.5.15.1"));
    assert_eq!(images.lines().count(), 7, "{images}");
    drop(site.store);
}

//! Tests of `madako vault`, `ssh` and `scp` with a real Vault, which scripts/set-up builds (tests/vault). Without it,
//! the tests are skipped; in CI they fail.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::program::{Answer, Etcd, Files, command, ended};

const AUTHORITIES: [&str; 6] =
    ["server", "etcd-peer", "etcd-client", "kubernetes", "kubernetes-aggregation", "kubernetes-webhook"];
const SSH_KEY: &str = include_str!("../../../../adapters/ssh/src/keyring/one.key");
const OTHER_SSH_KEY: &str = include_str!("../../../../adapters/ssh/src/keyring/two.key");

/// A Vault, an etcd, and a program `ssh` that shows its arguments and the key.
struct Place {
    etcd: Etcd,
    /// The configuration with keys for encryption.
    config: String,
    endpoint: String,
    token: String,
    programs: Files,
    _vault: Child,
}

impl Place {
    async fn start() -> Option<Self> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let program = target.join("tools/vault/vault");
        if !program.exists() {
            assert!(std::env::var_os("CI").is_none(), "no {}", program.display());
            println!("skipped: no {} (scripts/set-up test)", program.display());
            return None;
        }
        let etcd = Etcd::start().await?;
        let mut vault = Command::new(program)
            .arg("127.0.0.1:0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(vault.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
        let document: Value = serde_json::from_str(&line).unwrap();
        let text = |name: &str| document[name].as_str().unwrap().to_owned();
        let keys = etcd.file("pki-keys", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n");
        std::fs::set_permissions(&keys, Permissions::from_mode(0o600)).unwrap();
        let plain = std::fs::read_to_string(etcd.config()).unwrap();
        let config = etcd.file("pki.yml", format!("{plain}pki: {{key_file: {keys}}}\n"));
        let programs = Files::new();
        let shows = "#!/bin/sh\necho \"$(basename \"$0\") $@\"\nwhile [ \"$1\" != -i ]; do shift; done\n\
                     cat \"$2\"\nstat -L -c %a \"$2\"\nexit 7\n";
        for name in ["ssh", "scp"] {
            let path = programs.write(name, shows);
            std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        let (endpoint, token) = (text("address"), text("root_token"));
        Some(Self { etcd, config, endpoint, token, programs, _vault: vault })
    }

    async fn run(&self, args: &[&str]) -> Answer {
        let directory = Path::new(self.programs.path("ssh").as_str()).parent().unwrap().to_owned();
        let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
        let args = [&["--config", &self.config], args].concat();
        let mut command = command(&args);
        command.env("PATH", path).env("VAULT_TOKEN", &self.token).env("VAULT_ADDR", &self.endpoint);
        ended(&args, command.spawn().unwrap()).await
    }

    fn key(&self, name: &str, text: &str) -> String {
        self.etcd.file(name, text)
    }
}

#[tokio::test]
async fn vault_is_set_up_as_ckecli_does_and_issues_from_then_on() {
    let Some(place) = Place::start().await else { return };
    let message = place.run(&["vault", "enckey"]).await.refused(1);
    assert!(
        message.contains("the store at http://127.0.0.1:")
            && message.contains("no access to Vault in the key /cke/vault"),
        "{message}"
    );

    let authority = place.key("authority.crt", "no certificate");
    let mut untrusted = command(&["--config", &place.config, "vault", "init"]);
    untrusted.env("VAULT_TOKEN", &place.token).env("VAULT_CACERT", &authority);
    let message = ended(&["vault", "init"], untrusted.spawn().unwrap()).await.refused(2);
    assert!(
        message.contains("authority.crt of Vault cannot be used: expected a certificate in PEM"),
        "{message}"
    );

    let output = place.run(&["vault", "init"]).await.calm();
    let mounts = AUTHORITIES.map(|name| format!("mounted pki on cke/ca-{name}\n")).concat();
    let roots = AUTHORITIES.map(|name| format!("issued root certificate for cke/ca-{name}\n")).concat();
    assert_eq!(output, format!("{mounts}mounted kv version 1 on cke/secrets\n{roots}"));
    let stored = place.etcd.get("vault").await.unwrap();
    let stored: Value = serde_json::from_str(&stored).unwrap();
    assert_eq!(stored["endpoint"], json!(place.endpoint));
    assert_eq!(place.run(&["vault", "init"]).await.calm(), "", "nothing is missing");
    assert_eq!(place.run(&["vault", "enckey"]).await.calm(), "succeeded\n");

    // A configuration without the section `pki`.
    let issued = place.etcd.run(&["etcd", "root-issue"]).await;
    let (issued, server) = (issued.json(), place.etcd.get("ca/server").await.unwrap());
    assert!(issued["private_key"].as_str().unwrap().contains("RSA PRIVATE KEY"), "Vault made it");
    assert_eq!(issued["ca_certificate"], json!(server));

    let bad = json!({"endpoint": "vault", "role_id": "r", "secret-id": "hunter2"}).to_string();
    let file = place.key("bad.json", &bad);
    let message = place.run(&["vault", "config", &file]).await.refused(2);
    assert!(message.contains("role_id") && message.contains("endpoint"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
    let other = json!({"endpoint": place.endpoint, "ca-cert": "", "role-id": "r", "secret-id": "hunter2"});
    let file = place.key("other.json", &other.to_string());
    assert_eq!(place.run(&["vault", "config", &file]).await.calm(), "");
    let stored = place.etcd.get("vault").await.unwrap();
    assert!(stored.starts_with("{\"endpoint\":\""), "CKE's order: {stored}");
    assert_eq!(serde_json::from_str::<Value>(&stored).unwrap(), other);
    let message = place.etcd.run(&["etcd", "root-issue"]).await.refused(1);
    assert!(message.contains("denied permission") && message.contains(&place.endpoint), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
}

#[tokio::test]
async fn ssh_uses_the_first_key_of_vault_the_store_and_the_configuration() {
    let Some(place) = Place::start().await else { return };
    let message = place.run(&["ssh", "10.0.0.1"]).await.refused(1);
    assert!(message.contains("no ssh private key for 10.0.0.1"), "{message}");
    let (one, two) = (place.key("one", SSH_KEY), place.key("two", OTHER_SSH_KEY));
    let message = place.etcd.run(&["ssh", "key", "set", &one]).await.refused(2);
    assert!(message.contains("set pki.key_file or pki.key_env"), "{message}");
    assert_eq!(place.run(&["ssh", "key", "set", &one]).await.calm(), "default: stored, encrypted\n");
    let stored = place.etcd.get("madako/ssh/keys/").await.unwrap();
    assert!(stored.starts_with("[\"madako-sealed\", 1, ") && !stored.contains("PRIVATE"), "{stored}");

    let options = "-o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no -o ConnectTimeout=60 \
                   -o IdentitiesOnly=yes -i /proc/";
    let shown = async |args: &[&str], key: &str| {
        let Answer { code, out, err } = place.run(args).await;
        assert_eq!((code, err.as_str()), (7, ""), "the code of the program");
        let (first, rest) = out.split_once('\n').unwrap();
        assert_eq!(rest, format!("{key}600\n"));
        assert!(first.contains(options), "{first}");
        first.to_owned()
    };
    let line = shown(&["ssh", "cybozu@10.0.0.1", "docker", "ps", "--all"], SSH_KEY).await;
    assert!(line.starts_with("ssh -o") && line.ends_with(" cybozu@10.0.0.1 docker ps --all"), "{line}");

    place.run(&["vault", "init"]).await.calm();
    assert_eq!(place.run(&["vault", "ssh-privkey", "--host", "10.0.0.2", &two]).await.calm(), "");
    shown(&["ssh", "10.0.0.1"], SSH_KEY).await;
    let line = shown(&["scp", "-r", "logs", "cybozu@10.0.0.2:/tmp"], OTHER_SSH_KEY).await;
    assert!(line.starts_with("scp -o") && line.ends_with(" -r logs cybozu@10.0.0.2:/tmp"), "{line}");
    assert_eq!(place.run(&["vault", "ssh-privkey", &two]).await.calm(), "");
    shown(&["ssh", "10.0.0.1"], OTHER_SSH_KEY).await;

    let public = place.key("public", "ssh-ed25519 AAAA");
    let message = place.run(&["vault", "ssh-privkey", &public]).await.refused(2);
    assert!(message.contains("the key is a public key"), "{message}");
    let message = place.run(&["scp", "a", "b"]).await.refused(2);
    assert!(message.contains("node name is not specified"), "{message}");
}

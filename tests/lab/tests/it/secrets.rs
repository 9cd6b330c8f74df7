//! Searches messages, pages, metrics and the store of the service for private keys and other secrets.

use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::fleet::Fleet;

/// Bytes that appear nowhere, with a name for messages.
#[derive(Clone)]
pub(crate) struct Needle {
    name: String,
    bytes: Vec<u8>,
}

impl Needle {
    fn new(name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { name: name.to_owned(), bytes: bytes.into() }
    }

    /// A private key in PEM: each line of its text, and its bytes.
    pub(crate) async fn of_pem(name: &str, pem: &str) -> Vec<Self> {
        let lines: Vec<&str> = pem.lines().filter(|line| !line.starts_with("-----")).collect();
        assert!(pem.contains("PRIVATE KEY-----") && !lines.is_empty(), "{name} is a private key");
        // The last line of a key of ECDSA in PKCS#8 has only the public key, which its certificate has, too.
        let private = if pem.contains("OPENSSH") { lines.len() } else { lines.len() - 1 };
        let mut found: Vec<Self> = lines[..private].iter().map(|line| Self::new(name, *line)).collect();
        found.push(Self::new(&format!("{name} in DER"), decoded(&lines.concat()).await));
        // OpenSSH's form begins with bytes that each key has.
        found.retain(|needle| needle.bytes.len() >= 16 && !needle.bytes.starts_with(b"b3BlbnNzaC1rZXktdjE"));
        found
    }

    fn is_in(&self, text: &[u8]) -> bool {
        text.windows(self.bytes.len()).any(|window| window == self.bytes)
    }
}

/// Bytes of a text in Base64.
pub(crate) async fn decoded(text: &str) -> Vec<u8> {
    let mut command = Command::new("base64");
    command.arg("--decode").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).await.unwrap();
    drop(stdin);
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

impl Fleet {
    /// Searches the service's messages, pages, store and commands, and the containers of all running machines, for keys:
    /// those of the lab, of the members of etcd, of issued certificates, and `more`.
    pub(crate) async fn shows_no_key(&self, members: &[usize], more: Vec<Needle>) {
        let mut needles = more;
        needles.push(Needle::new("a private key in PEM", "PRIVATE KEY-----"));
        needles.push(Needle::new("the key of the authorities' keys", madako_lab::PKI_KEY));
        needles.push(Needle::new("the same in bytes", decoded(madako_lab::PKI_KEY).await));
        let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap();
        needles.extend(Needle::of_pem("the SSH key", &read(self.lab().key_file())).await);
        needles.extend(Needle::of_pem("root's key", &read(self.service.path("etcd-root.key"))).await);
        for member in members {
            for file in ["server.key", "peer.key"] {
                let pem = self.machine(*member).sh(&format!("cat /etc/etcd/pki/{file}")).await.unwrap();
                needles.extend(Needle::of_pem(file, &pem).await);
            }
        }
        for (place, text) in self.everything().await {
            assert!(!text.is_empty(), "{place} is read");
            let found = needles.iter().filter(|needle| needle.is_in(&text));
            let found: Vec<&str> = found.map(|needle| needle.name.as_str()).collect();
            assert!(found.is_empty(), "{place} has {found:?}");
        }
    }

    /// All that is shown and stored, with the name of its place.
    async fn everything(&self) -> Vec<(String, Vec<u8>)> {
        let mut places = vec![("the messages".to_owned(), self.log().into_bytes())];
        for page in ["metrics", "ops", "nodes", "health", "version"] {
            let text = self.page(page).await.unwrap();
            places.push((format!("the page {page}"), text.into_bytes()));
        }
        let nodes = ["node", "list", "-o", "json"];
        for words in [&["ops"][..], &nodes, &["history", "-o", "json"], &["cluster", "get"], &["status"]] {
            let answer = self.madako(words).await.unwrap_or_else(|error| error);
            places.push((words.join(" "), answer.into_bytes()));
        }
        for (number, machine) in self.lab().machines().iter().enumerate() {
            let all = "ids=$(docker ps --all --quiet) && docker inspect $ids && \
                       for id in $ids; do docker logs $id 2>&1; done";
            if let Ok(text) = machine.sh(all).await {
                places.push((format!("the containers of machine {number}"), text.into_bytes()));
            }
        }
        // Its values may not be text.
        let mut dump = self.lab().command("/usr/bin/etcdctl");
        dump.env("ETCDCTL_API", "3").arg(format!("--endpoints=http://{}", madako_lab::STORE));
        let dump = dump.args(["get", "", "--prefix"]).output().await.unwrap();
        assert!(dump.status.success(), "{dump:?}");
        places.push(("the store".to_owned(), dump.stdout));
        places.push(("the commands".to_owned(), self.transcript().into_bytes()));
        places
    }
}

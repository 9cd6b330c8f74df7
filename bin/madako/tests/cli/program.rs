//! Test support: the built program, a real etcd, and input files.

use std::fs::{File, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use madako_domain::store::{Outcome, Transaction, Write};
use madako_protocol::store::Store;
use madako_store::{EtcdStore, StoreConfig};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// Keys for operations on nodes, which open nothing.
const SSH_KEY: &str = include_str!("../../../../adapters/ssh/src/keyring/one.key");
const PKI_KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";

/// etcd's messages, which explain a failed start.
const ETCD_LOG: &str = "etcd.log";

/// Long enough for a process on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Answer {
    /// The output, after success without a warning.
    pub(crate) fn calm(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{}", self.out);
        self.out
    }

    /// The message, after this exit code without output.
    pub(crate) fn refused(self, code: i32) -> String {
        assert_eq!((self.code, self.out.as_str()), (code, ""), "{}", self.err);
        assert!(self.err.starts_with("madako: ") && !self.err.contains("panicked"), "{}", self.err);
        self.err
    }

    /// The messages, after this exit code without output.
    pub(crate) fn refused_after_notes(self, code: i32) -> String {
        assert_eq!((self.code, self.out.as_str()), (code, ""), "{}", self.err);
        self.err
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_madako"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

pub(crate) async fn madako(args: &[&str]) -> Answer {
    ended(args, command(args).spawn().unwrap()).await
}

/// Runs the program with this standard input.
pub(crate) async fn madako_fed(args: &[&str], input: &[u8]) -> Answer {
    let mut child = command(args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feeding = async {
        // A program that refuses its arguments does not read.
        let _ = stdin.write_all(input).await;
        drop(stdin);
    };
    tokio::join!(ended(args, child), feeding).0
}

pub(crate) async fn ended(args: &[&str], child: Child) -> Answer {
    let ended = timeout(PATIENCE, child.wait_with_output()).await;
    let output = ended.unwrap_or_else(|_| panic!("{args:?} did not end")).unwrap();
    Answer {
        code: output.status.code().unwrap_or_else(|| panic!("{args:?} was killed: {}", output.status)),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A directory for the files of a test.
pub(crate) struct Files(tempfile::TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Writes a file and returns its path.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// The path of a file that may not exist.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }
}

/// An etcd with a configuration file for it; ended when dropped.
pub(crate) struct Etcd {
    _process: Child,
    files: Files,
    store: EtcdStore,
    config: String,
}

/// The etcd for tests. `None`: not installed.
pub(crate) fn installed() -> Option<PathBuf> {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&places).map(|place| place.join("etcd")).find(|path| path.is_file());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "etcd is not installed, and CI must not skip this test");
        println!("skipped: etcd is not installed");
    }
    found
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Etcd {
    /// Starts an etcd and waits until it answers. `None`: not installed.
    pub(crate) async fn start() -> Option<Self> {
        let program = installed()?;
        let files = Files::new();
        let (client, peer) = (free_port(), free_port());
        let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let mut process = spawn(&program, &files, &client, &peer);
        let settings = StoreConfig {
            endpoints: vec![client.clone()],
            prefix: "/cke/".to_owned(),
            ..StoreConfig::default()
        };
        let store = EtcdStore::open(&settings, 1).unwrap();
        let ready = async {
            while store.list("ready").await.is_err() {
                if let Some(status) = process.try_wait().unwrap() {
                    return Err(format!("etcd ended: {status}"));
                }
                sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        };
        let answered =
            timeout(PATIENCE, ready).await.unwrap_or_else(|_| Err("etcd does not answer".to_owned()));
        if let Err(why) = answered {
            panic!("{why}\n{}", std::fs::read_to_string(files.path(ETCD_LOG)).unwrap());
        }
        let config = files.write("config.yml", format!("endpoints: [{client}]\n"));
        Some(Self { _process: process, files, store, config })
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Answer {
        madako(&[&["--config", self.config.as_str()], args].concat()).await
    }

    pub(crate) async fn run_fed(&self, args: &[&str], input: &[u8]) -> Answer {
        madako_fed(&[&["--config", self.config.as_str()], args].concat(), input).await
    }

    /// The program on it, not started yet.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        command(&[&["--config", self.config.as_str()], args].concat())
    }

    pub(crate) fn config(&self) -> &str {
        &self.config
    }

    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        self.files.write(name, content)
    }

    /// A configuration file with keys for operations on nodes.
    pub(crate) fn with_operations(&self) -> String {
        let secrets = [("ssh-key", SSH_KEY), ("pki-keys", PKI_KEY)].map(|(name, text)| {
            let path = self.file(name, text);
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            path
        });
        let [ssh, pki] = secrets;
        let text = std::fs::read_to_string(&self.config).unwrap();
        self.file("operations.yml", format!("{text}ssh: {{key_file: {ssh}}}\npki: {{key_file: {pki}}}\n"))
    }

    /// Puts a key, as another client would.
    pub(crate) async fn put(&self, key: &str, value: impl Into<Bytes>) {
        let write = Write::Put { key: key.to_owned(), value: value.into(), lease: 0 };
        let outcome =
            self.store.commit(Transaction { conditions: vec![], writes: vec![write] }).await.unwrap();
        assert!(matches!(outcome, Outcome::Committed { .. }));
    }

    pub(crate) async fn get(&self, key: &str) -> Option<String> {
        let entry = self.store.list(key).await.unwrap().entries.remove(key)?;
        Some(String::from_utf8(entry.value.to_vec()).unwrap())
    }

    /// The value of a key at the root of etcd, where placement's resources are.
    pub(crate) async fn get_at_root(&self, key: &str) -> Option<String> {
        let entry = self.store.with_absolute_keys().list(key).await.unwrap().entries.remove(key)?;
        Some(String::from_utf8(entry.value.to_vec()).unwrap())
    }

    /// The revision of a key's last change.
    pub(crate) async fn revision_of(&self, key: &str) -> i64 {
        self.store.list(key).await.unwrap().entries[key].mod_revision
    }

    /// The revision of the whole store: it grows with every write.
    pub(crate) async fn revision(&self) -> i64 {
        self.store.list("").await.unwrap().revision
    }
}

fn spawn(program: &Path, files: &Files, client: &str, peer: &str) -> Child {
    Command::new(program)
        .args(["--data-dir", &files.path("data")])
        .args(["--listen-client-urls", client, "--advertise-client-urls", client])
        .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .args(["--log-level", "warn", "--logger", "zap"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(files.path(ETCD_LOG)).unwrap())
        .kill_on_drop(true)
        .spawn()
        .expect("etcd starts")
}

/// A valid template of three roles.
pub(crate) const TEMPLATE: &str = "\
name: cluster
nodes:
- user: cybozu
  control_plane: true
  labels:
    cke.cybozu.com/role: compute
- user: cybozu
  labels:
    cke.cybozu.com/role: compute
    cke.cybozu.com/weight: '6.0'
- user: cybozu
  labels:
    cke.cybozu.com/role: storage
    cke.cybozu.com/weight: '3.0'
  taints:
  - key: cke.cybozu.com/role
    value: storage
    effect: NoExecute
service_subnet: 10.68.0.0/16
";

/// A valid cluster of two nodes.
pub(crate) const CLUSTER: &str = "\
name: test
service_subnet: 10.68.0.0/16
nodes:
- {address: 10.0.0.1, user: u, control_plane: true}
- {address: 10.0.0.2, user: u, labels: {cke.cybozu.com/role: storage}, taints: [{key: a, effect: NoSchedule}]}
";

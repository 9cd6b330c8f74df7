//! Test support: a node, which is OpenSSH's server on loopback, which logs in the user of the test, and a program
//! `docker` of the test.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::host_key::HostKey;
use madako_protocol::node::{NodeConnection, NodeDriver as _, NodeError, NodeTarget};
use madako_ssh::{SshDriver, SshOptions, read_key};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time;

/// sshd starts itself again for each connection, so it needs its absolute path.
const SSHD: &str = "/usr/sbin/sshd";
/// Its directory without content, for the part of it that has no rights.
const EMPTY: &str = "/run/sshd";
/// Time for a state that comes within milliseconds, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) type Connected = Result<Arc<dyn NodeConnection>, NodeError>;

/// A server; it and its connections end when it is dropped.
pub(crate) struct Node {
    directory: TempDir,
    sshd: Child,
    pub(crate) port: u16,
}

/// Kinds of keys, and more settings of sshd.
pub(crate) struct Settings<'a> {
    pub(crate) host_key: &'a str,
    pub(crate) login_key: &'a str,
    pub(crate) more: &'a str,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Self { host_key: "ed25519", login_key: "ed25519", more: "" }
    }
}

impl Node {
    /// `None` if sshd is not installed: the test is skipped.
    pub(crate) async fn start(settings: Settings<'_>) -> Option<Self> {
        if !Path::new(SSHD).is_file() {
            assert!(
                std::env::var_os("CI").is_none(),
                "sshd is not installed, and CI must not skip this test"
            );
            println!("skipped: {SSHD} is not installed");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        generate(&path("host_key"), settings.host_key);
        generate(&path("login_key"), settings.login_key);
        std::fs::copy(path("login_key.pub"), path("logins")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let here = directory.path().display();
        // The home directory is empty, so that the user's own settings change nothing.
        let config = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {here}/host_key\nAuthorizedKeysFile {here}/logins\n\
             StrictModes no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nUsePAM no\nUseDNS no\nMaxStartups 200\nPidFile none\n\
             LogLevel VERBOSE\nSetEnv PATH={here}:/usr/bin:/bin HOME={here} HERE={here}\n{}\n",
            settings.more
        );
        std::fs::write(path("config"), config).unwrap();
        if user() == "root" {
            std::fs::create_dir_all(EMPTY).unwrap();
        }
        let mut sshd = Command::new(SSHD);
        sshd.arg("-D").arg("-f").arg(path("config")).arg("-E").arg(path("log"));
        sshd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let sshd = sshd.spawn().unwrap();
        let node = Self { directory, sshd, port };
        let listens = async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                time::sleep(Duration::from_millis(10)).await;
            }
        };
        time::timeout(PATIENCE, listens).await.unwrap_or_else(|_| panic!("sshd runs: {}", node.log()));
        Some(node)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Replaces the program `docker` by these lines of shell.
    pub(crate) fn docker(&self, text: &str) {
        std::fs::write(self.path("docker"), format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(self.path("docker"), std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn options(&self) -> SshOptions {
        SshOptions { port: self.port, step: PATIENCE, begin: PATIENCE, ..SshOptions::default() }
    }

    /// A driver with the private key that the node accepts.
    pub(crate) fn driver(&self, options: SshOptions) -> SshDriver {
        let key = std::fs::read_to_string(self.path("login_key")).unwrap();
        SshDriver::new(read_key(&key).unwrap(), options, 7)
    }

    pub(crate) async fn connect_with(&self, options: SshOptions, pinned: Option<HostKey>) -> Connected {
        self.driver(options).connect(&target(pinned)).await
    }

    pub(crate) async fn connect(&self) -> Arc<dyn NodeConnection> {
        let connected = self.connect_with(self.options(), None).await;
        connected.unwrap_or_else(|error| panic!("{error}: {}", self.log()))
    }

    /// The fingerprint of the host key, as OpenSSH shows it.
    pub(crate) fn fingerprint(&self) -> String {
        let shown = Command::new("ssh-keygen").arg("-lf").arg(self.path("host_key.pub")).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        shown.split(' ').with_number(1).unwrap().to_owned()
    }

    /// The number of commands that the node has run.
    pub(crate) fn commands(&self) -> usize {
        self.log().matches("Starting session: command").count()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Sends a signal to the processes of all connections. False if there is none.
    pub(crate) fn signal_connections(&self, signal: &str) -> bool {
        let sent = Command::new("pkill").args(["--signal", signal, "--parent"]).arg(self.id()).status();
        sent.unwrap().success()
    }

    fn id(&self) -> String {
        self.sshd.id().to_string()
    }

    /// The processes that wrote their ids to the file `processes`.
    pub(crate) async fn processes(&self) -> Vec<u32> {
        let path = self.path("processes");
        wait_for(|| std::fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n'))).await;
        let text = std::fs::read_to_string(&path).unwrap();
        text.split_whitespace().map(|id| id.parse().unwrap()).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.signal_connections("KILL");
        // The server may have ended.
        drop(self.sshd.kill());
        drop(self.sshd.wait());
    }
}

/// Makes a pair of keys.
fn generate(path: &Path, kind: &str) {
    let bits: &[&str] = if kind == "rsa" { &["-b", "2048"] } else { &[] };
    let mut make = Command::new("ssh-keygen");
    make.args(["-q", "-t", kind, "-N", "", "-C", "a comment", "-f"]).arg(path).args(bits);
    assert!(make.status().expect("ssh-keygen of OpenSSH's client is installed").success());
}

/// Name of the user that runs the test: sshd without root's rights logs in no other.
fn user() -> String {
    let output = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

pub(crate) fn target(pinned: Option<HostKey>) -> NodeTarget {
    NodeTarget { address: "127.0.0.1".to_owned(), user: user(), pinned }
}

pub(crate) async fn wait_for(state: impl Fn() -> bool) {
    let reached = async {
        while !state() {
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    time::timeout(PATIENCE, reached).await.expect("the state is reached");
}

/// Waits until these processes have ended.
pub(crate) async fn wait_for_end(processes: &[u32]) {
    wait_for(|| processes.iter().all(|process| !Path::new(&format!("/proc/{process}")).exists())).await;
}

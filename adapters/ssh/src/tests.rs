//! Tests of connections to an SSH server on loopback.

mod server;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::containers::{Container, ContainerName};
use madako_domain::host_key::HostKey;
use madako_protocol::node::{NodeAction, NodeConnection, NodeDriver as _, NodeError, NodeTarget};
use madako_protocol::permit::Permit;
use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PrivateKey};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{self, Instant};

use self::server::{Server, key};
use crate::limits::{MAX_HANDSHAKES, MAX_STDERR};
use crate::{SshDriver, SshKey, SshOptions, read_key};

const P256: Algorithm = Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 };
const KILL: NodeAction = NodeAction::KillContainer(ContainerName::for_container(Container::Etcd));
/// Time for a state that comes within milliseconds, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A node: a server, and the directory with its program `docker`.
struct Node {
    server: Server,
    directory: TempDir,
    key: SshKey,
}

impl Node {
    async fn with_keys(host_keys: Vec<PrivateKey>) -> Self {
        Self::start(host_keys, SshKey(Arc::new(key(100, Algorithm::Ed25519)))).await
    }

    async fn new() -> Self {
        Self::with_keys(vec![key(1, Algorithm::Ed25519)]).await
    }

    async fn start(host_keys: Vec<PrivateKey>, key: SshKey) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::start(host_keys, key.0.public_key().clone(), directory.path()).await;
        Self { server, directory, key }
    }

    fn docker(&self, text: &str) {
        let path = self.directory.path().join("docker");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn options(&self) -> SshOptions {
        SshOptions { port: self.server.port, step: PATIENCE, begin: PATIENCE, ..SshOptions::default() }
    }

    async fn connect_with(&self, options: SshOptions, pinned: Option<HostKey>) -> Connected {
        SshDriver::new(self.key.clone(), options, 7).connect(&target(pinned)).await
    }

    async fn connect(&self) -> Arc<dyn NodeConnection> {
        self.connect_with(self.options(), None).await.unwrap()
    }

    /// The id of a process that wrote it to the file `process`.
    async fn process(&self) -> u32 {
        let path = self.directory.path().join("process");
        wait_for(|| std::fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n'))).await;
        std::fs::read_to_string(&path).unwrap().trim().parse().unwrap()
    }
}

type Connected = Result<Arc<dyn NodeConnection>, NodeError>;

/// Writes its id and hangs, with a child, without a reaction to SIGTERM.
const HANG: &str = "trap '' TERM; echo $$ >\"$HERE/process\"; sleep 1000";

fn target(pinned: Option<HostKey>) -> NodeTarget {
    NodeTarget { address: "127.0.0.1".to_owned(), user: "cybozu".to_owned(), pinned }
}

fn host_key(key: &PrivateKey) -> HostKey {
    HostKey {
        key: key.public_key().to_openssh().unwrap().trim_end().to_owned(),
        fingerprint: key.fingerprint(HashAlg::Sha256).to_string(),
    }
}

fn permit(seconds: u64) -> Permit {
    Permit::give(3, Instant::now() + Duration::from_secs(seconds))
}

async fn wait_for(state: impl Fn() -> bool) {
    let reached = async {
        while !state() {
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    time::timeout(PATIENCE, reached).await.expect("the state is reached");
}

fn runs(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

fn error(connected: Connected) -> NodeError {
    connected.err().expect("no connection")
}

#[tokio::test]
async fn the_pinned_key_is_proved_whichever_key_is_preferred() {
    let keys = [key(1, Algorithm::Ed25519), key(2, P256)];
    let node = Node::with_keys(keys.to_vec()).await;
    let connection = node.connect().await;
    assert_eq!(connection.host_key(), &host_key(&keys[0]), "Ed25519 is preferred");
    for key in &keys {
        let connection = node.connect_with(node.options(), Some(host_key(key))).await.unwrap();
        assert_eq!(connection.host_key(), &host_key(key));
    }
}

#[tokio::test]
async fn a_changed_host_key_is_refused_with_both_fingerprints() {
    let node = Node::new().await;
    let offered = host_key(&key(1, Algorithm::Ed25519)).fingerprint;
    for pinned in [host_key(&key(3, Algorithm::Ed25519)), host_key(&key(2, P256))] {
        let fingerprint = pinned.fingerprint.clone();
        let refused = error(node.connect_with(node.options(), Some(pinned)).await);
        let expected = NodeError::HostKey {
            address: "127.0.0.1".to_owned(),
            pinned: fingerprint,
            offered: offered.clone(),
        };
        assert_eq!(refused, expected);
    }
    assert_eq!(node.server.logins(), Vec::<String>::new(), "no login was tried");
}

#[tokio::test]
async fn a_refused_login_names_the_user_and_the_key() {
    let node = Node::new().await;
    let other = SshKey(Arc::new(key(101, Algorithm::Ed25519)));
    let fingerprint = other.0.fingerprint(HashAlg::Sha256).to_string();
    let refused = error(SshDriver::new(other, node.options(), 7).connect(&target(None)).await);
    assert!(
        matches!(&refused, NodeError::Login { user, why, .. } if user == "cybozu" && why.contains(&fingerprint))
    );
}

#[tokio::test]
async fn an_rsa_key_signs_with_sha_2() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    let made = std::process::Command::new("ssh-keygen")
        .args(["-q", "-t", "rsa", "-b", "2048", "-N", "", "-f"])
        .arg(&path)
        .status();
    assert!(made.unwrap().success());
    let rsa = read_key(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let node = Node::start(vec![key(1, Algorithm::Ed25519)], rsa).await;
    node.connect().await;
    assert_eq!(node.server.logins(), ["rsa-sha2-512"]);
}

#[tokio::test]
async fn silent_peer_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = SshOptions {
        port: listener.local_addr().unwrap().port(),
        step: Duration::from_millis(100),
        ..SshOptions::default()
    };
    let driver = SshDriver::new(SshKey(Arc::new(key(100, Algorithm::Ed25519))), options.clone(), 7);
    let silent = error(driver.connect(&target(None)).await);
    assert_eq!(silent.to_string(), "127.0.0.1 is not reachable: no handshake in 100ms");
    drop(listener);
    let refused = error(driver.connect(&target(None)).await);
    assert!(refused.to_string().starts_with("127.0.0.1 is not reachable: no TCP connection: "), "{refused}");
}

#[tokio::test]
async fn a_status_is_read_after_the_noise_of_a_login_shell() {
    let node = Node::new().await;
    node.docker("[ \"$1 $2\" = 'volume ls' ] && echo 'V etcd-cke'; exit 0");
    let connection = node.connect().await;
    let status = connection.status("etcd-cke").await.unwrap();
    assert!(status.reachable && status.etcd_data && status.containers.is_empty());

    node.docker("echo 'Cannot connect' >&2; exit 1");
    let error = connection.status("etcd-cke").await.unwrap_err();
    let expected = NodeError::Engine { address: "127.0.0.1".to_owned(), why: "Cannot connect".to_owned() };
    assert_eq!(error, expected);
}

#[tokio::test]
async fn a_command_with_too_much_output_is_refused_and_killed() {
    let node = Node::new().await;
    node.docker("[ \"$1 $2\" = 'volume ls' ] && echo $$ >\"$HERE/process\" && exec yes; exit 0");
    let connection = node.connect().await;
    let error = connection.status("v").await.unwrap_err();
    assert!(matches!(&error, NodeError::Malformed { why, .. } if why.contains("more than")), "{error}");
    let process = node.process().await;
    wait_for(|| !runs(process)).await;
}

#[tokio::test]
async fn a_hanging_engine_is_killed_at_the_deadline() {
    let node = Node::new().await;
    node.docker(HANG);
    let options = SshOptions { status: Duration::from_secs(5), ..node.options() };
    let connection = node.connect_with(options, None).await.unwrap();
    let error = connection.status("v").await.unwrap_err();
    assert!(matches!(error, NodeError::Deadline { .. }), "{error}");
    let process = node.process().await;
    wait_for(|| !runs(process)).await;
}

#[tokio::test]
async fn an_action_ends_on_the_node_before_its_permit() {
    let node = Node::new().await;
    node.docker(HANG);
    let connection = node.connect().await;
    let permit = permit(6);
    let error = connection.act(&permit, &KILL).await.unwrap_err();
    assert!(matches!(error, NodeError::Deadline { .. }), "{error}");
    assert!(Instant::now() < permit.expires_at());
    let process = node.process().await;
    wait_for(|| !runs(process)).await;
}

#[tokio::test]
async fn no_command_begins_without_a_permit_that_lasts() {
    let node = Node::new().await;
    let connection = node.connect().await;
    for seconds in [0, 3] {
        let error = connection.act(&permit(seconds), &KILL).await.unwrap_err();
        assert!(matches!(error, NodeError::Permit(_)), "{error}");
    }
    let pull = NodeAction::PullImage { image: "i".to_owned() };
    assert!(matches!(connection.act(&permit(0), &pull).await, Err(NodeError::Permit(_))));
    assert_eq!(node.server.commands(), 0);
}

#[tokio::test]
async fn a_failure_shows_the_beginning_of_the_standard_error() {
    let node = Node::new().await;
    node.docker("echo first >&2; yes | head -c 100000 >&2; exit 1");
    let error = node.connect().await.act(&permit(60), &KILL).await.unwrap_err();
    let NodeError::Failed { what, code, why, .. } = error else { panic!("{error}") };
    assert_eq!((what.as_str(), code), ("kill of the container etcd", 1));
    assert!(why.starts_with("first") && why.len() <= MAX_STDERR);
}

#[tokio::test]
async fn a_dropped_action_is_killed_with_its_processes() {
    let node = Node::new().await;
    node.docker(HANG);
    let connection = node.connect().await;
    let permit = permit(600);
    let process = {
        let mut action = connection.act(&permit, &KILL);
        tokio::select! {
            ended = &mut action => panic!("{ended:?}"),
            process = node.process() => process,
        }
    };
    wait_for(|| !runs(process)).await;
}

#[tokio::test]
async fn a_connection_that_breaks_in_mid_command_is_noticed() {
    let node = Node::new().await;
    node.docker(HANG);
    let connection = node.connect().await;
    let cut = async {
        let process = node.process().await;
        node.server.cut();
        process
    };
    let (answer, process) = tokio::join!(connection.status("v"), cut);
    let error = answer.unwrap_err();
    assert!(matches!(error, NodeError::Unreachable { .. }), "{error}");
    time::timeout(PATIENCE, connection.closed()).await.unwrap();
    // Nothing can kill it over this connection: it ends at its deadline.
    wait_for(|| !runs(process)).await;
}

#[tokio::test]
async fn a_node_that_stops_answering_is_noticed() {
    let node = Node::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = SshOptions {
        port: listener.local_addr().unwrap().port(),
        keep_alive: Duration::from_millis(20),
        ..node.options()
    };
    let server = node.server.port;
    let proxy = tokio::spawn(async move {
        let mut client = listener.accept().await.unwrap().0;
        let mut server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let copied = tokio::spawn(async move {
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                _ = stopped => {}
            }
            // Open, but silent.
            (client, server)
        });
        (stop, copied)
    });
    let connection = node.connect_with(options, None).await.unwrap();
    let (stop, copied) = proxy.await.unwrap();
    node.docker("exit 0");
    connection.status("v").await.unwrap();
    stop.send(()).unwrap();
    let _sockets = copied.await.unwrap();
    time::timeout(PATIENCE, connection.closed()).await.unwrap();
    assert!(matches!(connection.status("v").await, Err(NodeError::Unreachable { .. })));
}

#[tokio::test]
async fn dropped_connection_ends_immediately() {
    let node = Node::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = SshOptions { port: listener.local_addr().unwrap().port(), ..node.options() };
    let server = node.server.port;
    let proxied = tokio::spawn(async move {
        let mut client = listener.accept().await.unwrap().0;
        let mut server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
        // An aborted connection is an end, too.
        drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
    });
    drop(node.connect_with(options, None).await.unwrap());
    time::timeout(PATIENCE, proxied).await.expect("the client closes").unwrap();
}

#[tokio::test]
async fn handshakes_wait_for_their_turn() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = SshOptions {
        port: listener.local_addr().unwrap().port(),
        step: PATIENCE * 2,
        ..SshOptions::default()
    };
    let driver = Arc::new(SshDriver::new(SshKey(Arc::new(key(100, Algorithm::Ed25519))), options, 7));
    let connecting: Vec<_> = (0..=MAX_HANDSHAKES)
        .map(|_| {
            let driver = Arc::clone(&driver);
            tokio::spawn(async move { driver.connect(&target(None)).await.err() })
        })
        .collect();
    // A client speaks first when its handshake begins.
    let mut speaking = JoinSet::new();
    for _ in 0..=MAX_HANDSHAKES {
        let stream = time::timeout(PATIENCE, listener.accept()).await.unwrap().unwrap().0;
        speaking.spawn(async move {
            assert_eq!(stream.peek(&mut [0]).await.unwrap(), 1);
            stream
        });
    }
    let mut spoke = Vec::new();
    for _ in 0..MAX_HANDSHAKES {
        spoke.push(time::timeout(PATIENCE, speaking.join_next()).await.unwrap());
    }
    assert!(driver.free_handshakes() == 0 && connecting.iter().all(|connecting| !connecting.is_finished()));
    assert!(speaking.try_join_next().is_none(), "the last one waits");
    spoke.pop();
    time::timeout(PATIENCE, speaking.join_next()).await.expect("the last one has its turn");
    connecting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn dead_nodes_take_no_place_from_a_living_one() {
    let node = Node::new().await;
    // A listener with a full queue ignores further connections, as a dead node does.
    let dead = TcpSocket::new_v4().unwrap();
    dead.bind(([127, 0, 0, 2], node.server.port).into()).unwrap();
    let listener = dead.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let _queue = [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
    let options = SshOptions { step: PATIENCE * 2, ..node.options() };
    let driver = Arc::new(SshDriver::new(node.key.clone(), options, 7));
    let mut connecting = JoinSet::new();
    for _ in 0..MAX_HANDSHAKES {
        let driver = Arc::clone(&driver);
        let target = NodeTarget { address: "127.0.0.2".to_owned(), ..target(None) };
        connecting.spawn(async move { driver.connect(&target).await.err() });
    }
    // All of them begin before this test goes on.
    tokio::task::yield_now().await;
    time::timeout(PATIENCE, driver.connect(&target(None))).await.expect("a place is free").unwrap();
    assert!(connecting.try_join_next().is_none(), "the dead nodes do not answer");
}

#[test]
fn command_confirmed_too_late_does_nothing() {
    use std::io::Write as _;
    let run = |input: &str| {
        let mut shell = std::process::Command::new("/bin/sh")
            .args(["-c", crate::remote::PRELUDE, "nonce", "echo done"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        shell.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = shell.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap().ends_with("\ndone\n"))
    };
    assert_eq!(run("1\n"), (Some(124), false), "the uptime of its end is over");
    assert_eq!(run(""), (Some(1), false), "the connection broke");
    assert_eq!(run("99999999999\n"), (Some(0), true));
}

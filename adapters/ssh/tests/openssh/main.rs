//! Tests of nodes behind a real OpenSSH server.
//!
//! Where sshd is not installed, a test fails if `CI` is set; otherwise it prints that it is skipped.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests: clippy.toml's exceptions do not reach their helpers"
)]

mod node;

use std::collections::BTreeMap;
use std::time::Duration;

use madako_domain::containers::{Container, ContainerName, Mount, ServiceParams};
use madako_domain::host_key::HostKey;
use madako_protocol::node::{ContainerSpec, NodeAction, NodeError};
use madako_protocol::permit::Permit;
use madako_ssh::SshOptions;
use tokio::time::{self, Instant};

use crate::node::{Node, PATIENCE, Settings, wait_for_end};

static KILL: NodeAction = NodeAction::KillContainer(ContainerName::for_container(Container::Etcd));
/// Writes its id and its child's, and hangs without a reaction to SIGTERM.
const HANG: &str = "trap '' TERM; sleep 1000 & echo \"$$ $!\" >\"$HERE/processes\"; wait; sleep 1000";

fn permit(seconds: u64) -> Permit {
    Permit::give(3, Instant::now() + Duration::from_secs(seconds))
}

#[tokio::test]
async fn a_status_takes_one_command() {
    let Some(node) = Node::start(Settings::default()).await else { return };
    node.docker(
        "case \"$1 $2\" in\n'container ls') echo id;;\n\
         'container inspect') echo 'C [\"/etcd\",true,\"etcd:1\",\"{\\\"builtin\\\":{},\\\"extra\\\":{}}\",null]';;\n\
         'volume ls') echo 'V etcd-cke';;\n'volume inspect') exit 1;;\nesac",
    );
    let connection = node.connect().await;
    let status = connection.status("etcd-cke").await.unwrap();
    let etcd = &status.containers["etcd"];
    assert!(status.reachable && status.etcd_data && !status.etcd_mark);
    assert!(etcd.running && etcd.image == "etcd:1" && !etcd.foreign);
    assert_eq!(node.commands(), 1);

    node.docker("echo 'Cannot connect' >&2; exit 1");
    let error = connection.status("etcd-cke").await.unwrap_err();
    assert!(matches!(&error, NodeError::Engine { why, .. } if why == "Cannot connect"), "{error}");
}

#[tokio::test]
async fn too_much_output_is_an_error_of_its_node_alone() {
    let Some(node) = Node::start(Settings::default()).await else { return };
    let Some(other) = Node::start(Settings::default()).await else { return };
    node.docker("[ \"$1 $2\" = 'volume ls' ] && echo $$ >\"$HERE/processes\" && exec yes; exit 0");
    other.docker("exit 0");
    let (connection, calm) = (node.connect().await, other.connect().await);
    let (flood, status) = tokio::join!(connection.status("v"), calm.status("v"));
    let error = flood.unwrap_err();
    assert!(
        matches!(&error, NodeError::Malformed { why, .. } if why == "it has more than 1048576 bytes"),
        "{error}"
    );
    assert!(status.unwrap().reachable);
    wait_for_end(&node.processes().await).await;
    node.docker("exit 0");
    assert!(connection.status("v").await.unwrap().reachable, "the connection is still of use");
}

#[tokio::test]
async fn a_late_status_is_killed_with_its_process_group() {
    assert_eq!(SshOptions::default().status, Duration::from_secs(10));
    let Some(node) = Node::start(Settings::default()).await else { return };
    node.docker(HANG);
    let options = SshOptions { status: Duration::from_secs(6), ..node.options() };
    let connection = node.connect_with(options, None).await.unwrap();
    let error = connection.status("v").await.unwrap_err();
    assert!(matches!(error, NodeError::Deadline { .. }), "{error}");
    wait_for_end(&node.processes().await).await;
}

#[tokio::test]
async fn a_late_action_is_killed_with_its_process_group_before_its_permit_ends() {
    let Some(node) = Node::start(Settings::default()).await else { return };
    node.docker(HANG);
    let (connection, permit) = (node.connect().await, permit(8));
    let error = connection.act(&permit, &KILL).await.unwrap_err();
    assert!(matches!(error, NodeError::Deadline { .. }), "{error}");
    assert!(Instant::now() < permit.expires_at());
    wait_for_end(&node.processes().await).await;
}

#[tokio::test]
async fn a_cancelled_action_is_killed_with_its_process_group() {
    let Some(node) = Node::start(Settings::default()).await else { return };
    node.docker(HANG);
    let (connection, permit) = (node.connect().await, permit(600));
    let processes = {
        let mut action = connection.act(&permit, &KILL);
        tokio::select! {
            ended = &mut action => panic!("{ended:?}"),
            processes = node.processes() => processes,
        }
    };
    assert_eq!(processes.len(), 2);
    wait_for_end(&processes).await;
}

#[tokio::test]
async fn an_action_without_its_connection_ends_at_its_deadline() {
    let Some(node) = Node::start(Settings::default()).await else { return };
    node.docker(HANG);
    let (connection, permit) = (node.connect().await, permit(10));
    let cut = async {
        let processes = node.processes().await;
        assert!(node.signal_connections("KILL"));
        processes
    };
    let (ended, processes) = tokio::join!(connection.act(&permit, &KILL), cut);
    let error = ended.unwrap_err();
    assert!(matches!(error, NodeError::Unreachable { .. }), "{error}");
    time::timeout(PATIENCE, connection.closed()).await.unwrap();
    wait_for_end(&processes).await;
}

#[tokio::test]
async fn every_argument_arrives_as_given() {
    let Some(node) = Node::start(Settings::default()).await else { return };
    node.docker(
        "[ \"$1\" = run ] || exit 0\nfor word; do printf '%s\\001' \"$word\"; done >\"$HERE/words\"\n\
         cat >\"$HERE/label\"",
    );
    let hostile =
        ["two words", "it's $HOME `id` $(id)", "a\nb\\", "", "*", "; touch \"$HERE/fault\"", "&", "é"];
    let spec = ContainerSpec {
        container: ContainerName::for_container(Container::Etcd),
        image: "etcd:1".to_owned(),
        engine_options: &[],
        volumes: vec![("my volume".to_owned(), "/data".to_owned())],
        builtin: ServiceParams { args: vec!["--name=n".to_owned()], ..ServiceParams::default() },
        extra: ServiceParams {
            args: hostile.map(str::to_owned).into(),
            binds: vec![Mount {
                source: "/a 'b'".to_owned(),
                destination: "/in".to_owned(),
                read_only: true,
                propagation: String::new(),
                selinux_label: String::new(),
            }],
            env: BTreeMap::from([("A".to_owned(), "'\" $(id)".to_owned())]),
        },
    };
    let action = NodeAction::RunContainer { spec, restart: false };
    node.connect().await.act(&permit(60), &action).await.unwrap();
    let words = std::fs::read_to_string(node.path("words")).unwrap();
    let words: Vec<&str> = words.split_terminator('\u{1}').collect();
    for expected in ["type=volume,src=my volume,dst=/data", "--volume=/a 'b':/in:ro", "A='\" $(id)"] {
        assert!(words.contains(&expected), "{expected:?} is not in {words:?}");
    }
    let (_, args) = words.split_at(words.len() - hostile.len());
    assert_eq!(args, hostile);
    let label = std::fs::read_to_string(node.path("label")).unwrap();
    assert!(label.contains("it's $HOME `id` $(id)") && !node.path("fault").exists(), "{label}");
}

#[tokio::test]
async fn every_kind_of_key_logs_in_and_proves_the_node() {
    for (kind, name) in [("rsa", "ssh-rsa "), ("ecdsa", "ecdsa-sha2-nistp256 "), ("ed25519", "ssh-ed25519 ")]
    {
        let settings = Settings { host_key: kind, login_key: kind, ..Settings::default() };
        let Some(node) = Node::start(settings).await else { return };
        let pinned = node.connect().await.host_key().clone();
        assert!(pinned.key.starts_with(name), "{}", pinned.key);
        assert_eq!(pinned.fingerprint, node.fingerprint());
        let again = node.connect_with(node.options(), Some(pinned.clone())).await.unwrap();
        assert_eq!(again.host_key(), &pinned);
    }
}

#[tokio::test]
async fn a_changed_host_key_is_refused_with_both_fingerprints() {
    let Some(before) = Node::start(Settings::default()).await else { return };
    let pinned = before.connect().await.host_key().clone();
    for host_key in ["ed25519", "ecdsa"] {
        let Some(node) = Node::start(Settings { host_key, ..Settings::default() }).await else { return };
        let refused = node.connect_with(node.options(), Some(pinned.clone())).await.err().unwrap();
        let expected = NodeError::HostKey {
            address: "127.0.0.1".to_owned(),
            pinned: before.fingerprint(),
            offered: node.fingerprint(),
        };
        assert_eq!(refused, expected);
    }
}

#[tokio::test]
async fn a_refused_login_names_the_key() {
    let Some(node) = Node::start(Settings::default()).await else { return };
    std::fs::write(node.path("logins"), "").unwrap();
    let refused = node.connect_with(node.options(), None).await.err().unwrap();
    assert!(
        matches!(&refused, NodeError::Login { why, .. } if why.contains("does not accept the key SHA256:")),
        "{refused}"
    );
}

#[tokio::test]
async fn a_frozen_server_is_noticed() {
    let Some(node) = Node::start(Settings::default()).await else { return };
    node.docker("exit 0");
    let options = SshOptions { keep_alive: Duration::from_millis(50), ..node.options() };
    let connection = node.connect_with(options, None).await.unwrap();
    connection.status("v").await.unwrap();
    assert!(node.signal_connections("STOP"));
    time::timeout(PATIENCE, connection.closed()).await.expect("keep-alive notices it");
    assert!(matches!(connection.status("v").await, Err(NodeError::Unreachable { .. })));
}

#[tokio::test]
async fn a_login_shell_that_starts_slowly_costs_only_this_command() {
    // The shell waits until the file `go` exists.
    let more =
        "ForceCommand until [ -e \"$HERE/go\" ]; do sleep 0.1; done; exec sh -c \"$SSH_ORIGINAL_COMMAND\"";
    let Some(node) = Node::start(Settings { more, ..Settings::default() }).await else { return };
    node.docker("exit 0");
    let options = SshOptions { begin: Duration::from_millis(300), ..node.options() };
    let impatient = node.connect_with(options, None).await.unwrap();
    let error = impatient.status("v").await.unwrap_err();
    assert!(
        matches!(&error, NodeError::Unreachable { why, .. } if why == "no command began in 300ms"),
        "{error}"
    );
    std::fs::write(node.path("go"), "").unwrap();
    let patient = node.connect().await;
    assert!(patient.status("v").await.unwrap().reachable);
}

#[tokio::test]
async fn a_pinned_key_with_a_comment_is_the_same_key() {
    let Some(node) = Node::start(Settings::default()).await else { return };
    let key = std::fs::read_to_string(node.path("host_key.pub")).unwrap();
    assert!(key.contains("a comment"));
    let pinned = HostKey { key: key.trim().to_owned(), fingerprint: node.fingerprint() };
    node.connect_with(node.options(), Some(pinned)).await.unwrap();
}

//! Tests of the text of `madako etcd restore --dry-run`, and of the loss that it names.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::cluster::Node;
use madako_domain::containers::{Container, ContainerOptions};
use madako_domain::node_status::{ConfigVersion, ContainerStatus, NodeStatus};
use madako_json::go::RawJson;
use madako_operation_runner::{Input, RequestedRestore, Settings};
use time::Duration;
use time::macros::datetime;

use super::*;

const NOW: OffsetDateTime = datetime!(2026-01-02 0:00 UTC);

fn snapshot() -> SnapshotContent {
    SnapshotContent { revision: 100, keys: 5, bytes: 9, modified: NOW - Duration::HOUR }
}

fn newest(revision: i64, at: Option<OffsetDateTime>) -> NewestSnapshot {
    NewestSnapshot { revision, at, source: "the member on 10.0.0.1 has it".to_owned() }
}

/// Three control plane nodes, of which the first answers and the third has come back, and a worker.
fn fleet() -> (Cluster, FleetStatus) {
    let node =
        |address: &str, control_plane| Node { address: address.to_owned(), control_plane, ..Node::default() };
    let nodes =
        vec![node("10.0.0.1", true), node("10.0.0.2", true), node("10.0.0.3", true), node("10.0.0.9", false)];
    let running = ContainerStatus { running: true, ..ContainerStatus::default() };
    let containers = BTreeMap::from([(Container::Etcd.name().to_owned(), running)]);
    let here = NodeStatus { reachable: true, containers, etcd_data: true, ..NodeStatus::default() };
    let states = [("10.0.0.1", here.clone()), ("10.0.0.2", NodeStatus::default()), ("10.0.0.3", here)];
    let status = FleetStatus {
        config_version: ConfigVersion::Two,
        nodes: states.map(|(address, state)| (address.to_owned(), state)).into(),
        etcd: None,
        bootstrap: None,
        interrupted_removals: BTreeSet::new(),
        etcd_image_version: None,
        kubernetes: None,
    };
    (Cluster { name: "test".to_owned(), nodes, ..Cluster::default() }, status)
}

/// The decision on a restore on this node.
fn decision((cluster, status): (&Cluster, &FleetStatus), address: &str) -> Decision {
    let (address, path) = (address.to_owned(), "/b".to_owned());
    let request = RestoreRequest { address, path, requested_at: NOW, refused: None };
    let options = ContainerOptions::read(&RawJson::default()).unwrap();
    let (settings, nothing) = (Settings::default(), BTreeSet::new());
    plan_restore(&Input {
        cluster,
        options: &options,
        status,
        now: NOW,
        backing_off: &nothing,
        restarts: &nothing,
        restore: Some(RequestedRestore { request: &request, is_under_way: false }),
        stale: &nothing,
        authorities: None,
        kubernetes: None,
        settings: &settings,
    })
}

#[test]
fn the_loss_counts_from_the_snapshot_to_the_newest_known_revision() {
    let lost = |snapshot: Option<&SnapshotContent>, newest: Option<&NewestSnapshot>| {
        lost_data(snapshot, newest, NOW)
    };
    assert_eq!(
        lost(Some(&snapshot()), Some(&newest(130, None))),
        "all writes of the last 1h0m: at least 30 revisions, up to 130 (the member on 10.0.0.1 has it)"
    );
    let backup = newest(130, Some(NOW - Duration::minutes(10)));
    assert!(lost(Some(&snapshot()), Some(&backup)).contains("up to 130 of 10m0s ago ("));
    assert!(lost(Some(&snapshot()), Some(&newest(90, None))).contains("at least 0 revisions"));
    assert!(lost(Some(&snapshot()), None).contains("how many is unknown"));
    assert_eq!(lost(None, Some(&newest(1, None))), "unknown");
}

#[test]
fn each_step_and_each_other_node_is_shown() {
    let (cluster, status) = fleet();
    let decision = decision((&cluster, &status), "10.0.0.1");
    let newest = newest(130, None);
    let text = dry_run_text((&cluster, &status), &decision, Ok(snapshot()), Some(&newest), NOW);
    assert_eq!(
        text,
        "\
Snapshot  revision 100, 5 keys, 9 bytes, written 1h0m ago; its checksum is right
Lost      all writes of the last 1h0m: at least 30 revisions, up to 130 (the member on 10.0.0.1 has it)

Steps on 10.0.0.1:
  1. image-pull ghcr.io/cybozu/etcd:3.5.15.1
  2. stage-snapshot /b
  3. confirm-etcd-loss https://10.0.0.1:2379,https://10.0.0.2:2379,https://10.0.0.3:2379
  4. stop-etcd-members 10.0.0.1,10.0.0.3
  5. use-snapshot /b
  6. prepare-etcd-certificates
  7. make-files /etc/etcd/pki/server.crt,/etc/etcd/pki/server.key,/etc/etcd/pki/peer.crt,/etc/etcd/pki/peer.key,\
/etc/etcd/pki/ca-peer.crt,/etc/etcd/pki/ca-client.crt
  8. run-container etcd
  9. wait-etcd-sync https://10.0.0.1:2379
 10. volume-create etcd-added-member

Then, one after another:
  10.0.0.2: it does not answer: make sure that etcd does not run there. When it is back, its data are removed, and it is \
added anew
  10.0.0.3: its data are removed, and it is added anew
"
    );
}

#[test]
fn a_refusal_is_shown_with_its_reason_and_without_steps() {
    let (cluster, status) = fleet();
    let decision = decision((&cluster, &status), "10.0.0.2");
    let text = dry_run_text((&cluster, &status), &decision, Err("no\u{1b}[1m file".to_owned()), None, NOW);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["Snapshot  unusable: no\u{fffd}[1m file", "Lost      unknown"], "{text}");
    assert!(lines.len() == 3 && lines[2].starts_with("Refused   these nodes do not answer"), "{text}");
}

//! Tests of `madako ops diff`: the objects that the service would change on a cluster.

use madako_domain::containers::Container;
use madako_domain::node_status::ConfigVersion;
use madako_domain::restore::RestoreRequest;

use super::fleet::{A, B, C, D, Fleet, NOW, X};
use crate::difference::{Difference, DueFiles, find_differences};

/// The differences of a changed fleet in short: node, kind, name and reason. `.11` stands for 10.0.0.11.
fn found(mut fleet: Fleet, change: impl FnOnce(&mut Fleet)) -> Vec<String> {
    change(&mut fleet);
    let found = find_differences(&fleet.input(), &DueFiles::new());
    found.iter().map(shown).collect()
}

/// A change of a fleet.
type Change = fn(&mut Fleet);

fn shown(Difference { node, kind, name, why }: &Difference) -> String {
    format!("{node} {kind} {name}: {why}").replace("10.0.0", "")
}

#[test]
fn a_fleet_as_wanted_has_no_difference() {
    assert_eq!(found(Fleet::running(), |_| {}), [""; 0]);
}

#[test]
fn each_object_that_an_operation_would_change_is_a_difference() {
    let cases: [(Change, &[&str]); 15] = [
        (|fleet| fleet.status.config_version = ConfigVersion::One, &[" key config-version: it becomes 2"]),
        (|fleet| fleet.lose(X), &[".21 node .21: it does not answer, and its state is unknown"]),
        (|fleet| fleet.stop(X, Container::Rivers), &[".21 container rivers: it is started"]),
        (
            |fleet| fleet.container(X, Container::Rivers).image = "old".to_owned(),
            &[
                ".21 container rivers: it restarts: the image is old, and ghcr.io/cybozu-go/cke-tools:1.30.0 is wanted",
            ],
        ),
        (
            |fleet| {
                *fleet.container(X, Container::EtcdRivers) =
                    Fleet::running().container(A, Container::EtcdRivers).clone()
            },
            &[".21 container etcd-rivers: it is stopped: the node is not a control plane node"],
        ),
        (
            |fleet| fleet.container(A, Container::Etcd).foreign = true,
            &[".11 container etcd: another program made it: it is held"],
        ),
        (
            |fleet| fleet.restarts.extend([A.to_owned()]),
            &[".11 container etcd: it restarts: an operator asked for it"],
        ),
        (
            |fleet| fleet.certificates(B, &[("server.crt", 300), ("peer.crt", 1)]),
            &[".12 certificate peer.crt: it is renewed: it ends soon"],
        ),
        (
            |fleet| fleet.node(C).etcd_mark = false,
            &[".13 volume etcd-added-member: it is created: the member is added"],
        ),
        (
            |fleet| fleet.members(&[(A, '+'), (B, '-'), (C, 'l'), (X, '+')]),
            &[
                ".12 member .12: it is not in sync",
                ".13 member .13: it gets its vote",
                ".21 member .21: it is removed: its node is not a control plane node",
            ],
        ),
        (
            |fleet| fleet.members(&[(A, '+'), (B, 'n')]),
            &[".12 member .12: it is added anew: it never started", ".13 member .13: it is added"],
        ),
        (
            |fleet| fleet.status.etcd = None,
            &[" member etcd: it does not answer, and its members are unknown"],
        ),
        (
            |fleet| fleet.bootstrapped("cancelled", &[A, B, C]),
            &[" member etcd: its bootstrap goes on: it was interrupted"],
        ),
        (
            |fleet| {
                fleet.status.interrupted_removals.insert(X.to_owned());
                (fleet.node(X).etcd_data, fleet.node(X).etcd_mark) = (true, true);
            },
            &[
                ".21 volume etcd-cke: it is removed: its member was removed",
                ".21 volume etcd-added-member: it is removed: its member was removed",
            ],
        ),
        (
            |fleet| {
                let (address, path) = (A.to_owned(), "/b".to_owned());
                let request = RestoreRequest { address, path, requested_at: NOW, refused: None };
                fleet.restore = Some((request, true));
                fleet.stale = [B.to_owned()].into();
            },
            &[
                ".12 container etcd: it is stopped: its data are older than the last restore",
                ".11 member .11: it is restored from /b: an operator asked for it",
            ],
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(found(Fleet::running(), change), expected);
    }
}

#[test]
fn a_new_control_plane_node_needs_its_containers_and_a_member() {
    let found = found(Fleet::running(), |fleet| fleet.join(D, true));
    let of_new: Vec<&String> = found.iter().filter(|line| line.starts_with(".14")).collect();
    assert_eq!(
        of_new,
        [
            ".14 container rivers: it is started",
            ".14 container etcd-rivers: it is started",
            ".14 container etcd: it is started",
            ".14 member .14: it is added",
        ]
    );
    // The rivers of all other nodes get another upstream.
    let restarts =
        found.iter().filter(|line| line.contains("rivers: it restarts: the argument --upstreams="));
    assert_eq!(restarts.count(), 2 * (3 + 6), "{found:#?}");
}

#[test]
fn differing_files_have_the_given_reason() {
    let mut fleet = Fleet::running();
    fleet.certificates(A, &[("server.crt", 1), ("peer.crt", 300)]);
    let file = |name: &str, why: &str| (name.to_owned(), why.to_owned());
    let files = [file("server.crt", "it is foreign"), file("ca-peer.crt", "it is another one")];
    let due = DueFiles::from([(A.to_owned(), files.into()), (X.to_owned(), [file("a", "b")].into())]);
    let lines: Vec<String> = find_differences(&fleet.input(), &due).iter().map(shown).collect();
    assert_eq!(
        lines,
        [
            ".11 file ca-peer.crt: it is another one",
            ".11 certificate server.crt: it is foreign",
            ".21 certificate a: b",
        ]
    );
    fleet.lose(A);
    let lines: Vec<String> = find_differences(&fleet.input(), &due).iter().map(shown).collect();
    assert!(!lines.iter().any(|line| line.contains("server.crt")), "nothing is known of the node: {lines:?}");
}

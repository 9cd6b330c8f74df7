//! Tests of restores of etcd that an operator requested, and of members with data from before a restore.

use madako_domain::containers::Container;
use madako_domain::restore::RestoreRequest;

use super::fleet::{A, B, C, Fleet, NOW, X, check};
use crate::command::Command;

fn request(address: &str) -> RestoreRequest {
    let (address, path) = (address.to_owned(), "/backup".to_owned());
    RestoreRequest { address, path, requested_at: NOW, refused: None }
}

/// Two of three members are lost, and an operator asked for a restore on the third node.
fn lost() -> Fleet {
    let mut fleet = Fleet::running();
    fleet.status.etcd = None;
    for address in [B, C] {
        // Nothing is known of an unreachable node; its rivers are of no interest here.
        let node = fleet.node(address);
        node.containers.remove(Container::Etcd.name());
        (node.reachable, node.etcd_data, node.etcd_mark) = (false, false, false);
    }
    fleet.restore = Some((request(A), false));
    fleet
}

/// The restore of [`lost`] has begun: its member was stopped.
fn begun() -> Fleet {
    let mut fleet = lost();
    fleet.restore = Some((request(A), true));
    fleet.stale = [A, B, C].map(str::to_owned).into();
    fleet.stop(A, Container::Etcd);
    fleet
}

/// The restored data are in their place, and the restored member runs.
fn replaced() -> Fleet {
    let mut fleet = begun();
    fleet.stale.remove(A);
    fleet.run_etcd(A);
    fleet
}

fn commands(fleet: &Fleet) -> Vec<String> {
    fleet.decide().operations[0].commands.iter().map(|command| command.name().to_owned()).collect()
}

#[test]
fn a_restore_proves_the_loss_and_the_snapshot_before_it_stops_a_member() {
    check(lost(), |_| {}, "etcd-maintain; etcd-restore(.11)");
    let mut fleet = lost();
    *fleet.node(B) = Fleet::running().node(B).clone();
    let operation = &fleet.decide().operations[0];
    let commands: Vec<String> = operation.commands.iter().map(ToString::to_string).collect();
    assert_eq!(
        commands,
        [
            "image-pull ghcr.io/cybozu/etcd:3.5.15.1",
            "stage-snapshot /backup",
            "confirm-etcd-loss https://10.0.0.11:2379,https://10.0.0.12:2379,https://10.0.0.13:2379",
            "stop-etcd-members 10.0.0.11,10.0.0.12",
            "use-snapshot /backup",
            "prepare-etcd-certificates",
            "make-files /etc/etcd/pki/server.crt,/etc/etcd/pki/server.key,/etc/etcd/pki/peer.crt,/etc/etcd/pki/peer.key,\
             /etc/etcd/pki/ca-peer.crt,/etc/etcd/pki/ca-client.crt",
            "run-container etcd",
            "wait-etcd-sync https://10.0.0.11:2379",
            "volume-create etcd-added-member",
        ]
    );
}

#[test]
fn a_restore_is_refused_while_a_majority_answers() {
    let refused = "completed; held etcd-restore restore-refused(.11)";
    check(Fleet::running(), |fleet| fleet.restore = Some((request(A), false)), refused);
    let mut fleet = lost();
    fleet.restore.as_mut().unwrap().0.refused = Some("why".to_owned());
    let message = fleet.short();
    assert!(message.starts_with("etcd-wait; etcd-wait-cluster"), "the next rows count: {message}");
    assert!(fleet.decide().held[0].reason.to_string().starts_with("why: "));
}

#[test]
fn only_a_reachable_control_plane_node_takes_a_restore() {
    let held = |address: &str| {
        let mut fleet = lost();
        fleet.restore = Some((request(address), false));
        fleet.short()
    };
    assert!(held(B).contains("held etcd-restore unreachable(.12)"), "{}", held(B));
    assert!(held(X).contains("held etcd-restore restore-refused(.21)"), "{}", held(X));
    assert!(held("10.0.0.99").contains("held etcd-restore restore-refused(.99)"));
}

#[test]
fn a_restore_that_began_goes_on_and_keeps_all_other_operations_back() {
    check(begun(), |_| {}, "etcd-wait; etcd-restore(.11)");
    let has_proof = |command: &Command| matches!(command, Command::ConfirmEtcdLoss { .. });
    assert!(!begun().decide().operations[0].commands.iter().any(has_proof));
    // Without data anywhere, no bootstrap begins.
    let mut empty = begun();
    for address in [A, B, C] {
        empty.wipe(address);
    }
    empty.run_rivers();
    empty.status.bootstrap = None;
    check(
        empty,
        |fleet| {
            fleet.backing_off.insert(A.to_owned());
        },
        "etcd-wait; held etcd-restore backing-off(.11)",
    );
    check(
        begun(),
        |fleet| {
            fleet.backing_off.insert("etcd-restore".to_owned());
        },
        "etcd-wait; held etcd-restore backing-off(.11)",
    );
}

#[test]
fn a_member_that_runs_is_stopped_before_its_data_are_replaced_and_never_afterwards() {
    let mut running = begun();
    running.run_etcd(A);
    check(running, |_| {}, "stop-control-plane; stop-etcd(.11)");
    let started =
        ["image-pull", "prepare-etcd-certificates", "make-files", "run-container", "wait-etcd-sync"];
    let started = [&started[..], &["volume-create"]].concat();
    assert_eq!(commands(&replaced()), started, "etcd does not answer yet");
    check(replaced(), |_| {}, "etcd-wait; etcd-restore(.11)");
}

#[test]
fn a_restore_ends_with_an_answer_of_the_restored_member_alone() {
    check(
        replaced(),
        |fleet| fleet.members(&[(A, '+')]),
        "completed; held etcd-add-member unreachable(.12 .13)",
    );
    // The former majority is back before its members were stopped.
    check(replaced(), |fleet| fleet.members(&[(A, '+'), (B, '+'), (C, '-')]), "etcd-wait; etcd-restore(.11)");
    // The single member of before is alone, too.
    check(begun(), |fleet| fleet.members(&[(A, '+')]), "etcd-wait; etcd-restore(.11)");
}

/// The restore is complete, and etcd is down.
fn restored() -> Fleet {
    let mut fleet = Fleet::running();
    fleet.status.etcd = None;
    fleet.stale = [B, C].map(str::to_owned).into();
    for address in [B, C] {
        fleet.stop(address, Container::Etcd);
    }
    fleet
}

#[test]
fn members_of_before_a_restore_are_stopped_and_never_started() {
    let mut fleet = restored();
    fleet.stop(A, Container::Etcd);
    check(fleet, |_| {}, "etcd-start; etcd-start(.11)");
    let mut fleet = restored();
    fleet.run_etcd(B);
    fleet.status.etcd = None;
    check(fleet, |_| {}, "stop-control-plane; stop-etcd(.12)");
}

#[test]
fn members_of_before_a_restore_are_added_anew_one_by_one() {
    let mut fleet = restored();
    fleet.members(&[(A, '+')]);
    check(fleet, |_| {}, "etcd-maintain; etcd-add-member(.12)");
}

//! Tests of restarts of etcd's members that an operator requested.

use madako_domain::containers::Container;

use super::fleet::{A, B, C, Fleet, X, check};

/// A cluster of one member that an operator asked to restart.
fn single() -> Fleet {
    let mut fleet = Fleet::running();
    fleet.join(B, false);
    fleet.join(C, false);
    for address in [B, C] {
        fleet.wipe(address);
    }
    fleet.run_rivers();
    fleet.members(&[(A, '+')]);
    fleet.restarts.insert(A.to_owned());
    fleet
}

#[test]
fn an_asked_restart_needs_no_other_member() {
    check(single(), |_| {}, "etcd-maintain; etcd-restart(.11)");
    let operation = &single().decide().operations[0];
    assert!(operation.is_requested);
    let commands: Vec<&str> = operation.commands.iter().map(|command| command.name()).collect();
    assert_eq!(commands, ["image-pull", "stop-container", "run-container", "wait-etcd-sync"]);
    let mut outdated = single();
    outdated.container(A, Container::Etcd).image = "old".to_owned();
    check(outdated, |_| {}, "etcd-maintain; etcd-restart(.11)");
}

#[test]
fn without_a_request_a_single_member_is_held_with_the_command_that_asks() {
    let mut fleet = single();
    fleet.container(A, Container::Etcd).image = "old".to_owned();
    fleet.restarts.clear();
    check(fleet, |_| {}, "completed; held etcd-restart few-members(.11)");
    let mut fleet = single();
    fleet.container(A, Container::Etcd).image = "old".to_owned();
    fleet.restarts.clear();
    let why = fleet.decide().held[0].reason.to_string();
    assert!(why.ends_with("run madako etcd restart 10.0.0.11"), "{why}");
    // A request for another node asks for nothing.
    fleet.restarts.insert(X.to_owned());
    assert_eq!(fleet.short(), "completed; held etcd-restart few-members(.11)");
}

#[test]
fn an_asked_restart_waits_neither_for_the_quorum_nor_for_an_answer() {
    let ask = || {
        let mut fleet = Fleet::running();
        fleet.restarts.insert(B.to_owned());
        fleet
    };
    let restart = "etcd-maintain; etcd-restart(.12)";
    check(ask(), |_| {}, restart);
    check(ask(), |fleet| fleet.members(&[(A, '+'), (B, '+'), (C, '-')]), restart);
    check(ask(), |fleet| fleet.status.etcd = None, restart);
    check(
        ask(),
        |fleet| {
            fleet.backing_off.insert(B.to_owned());
        },
        "completed; held etcd-restart backing-off(.12)",
    );
    // A member that is down is started anyway.
    check(ask(), |fleet| fleet.stop(B, Container::Etcd), "etcd-start; etcd-start(.12)");
}

#[test]
fn an_asked_restart_refuses_an_older_image() {
    let mut fleet = single();
    fleet.status.etcd.as_mut().unwrap().members[0].version = Some("3.5.15".parse().unwrap());
    fleet.status.etcd_image_version = Some("3.4.0".parse().unwrap());
    check(fleet, |_| {}, "completed; held etcd-restart older-image(.11)");
}

//! Tests of the rows of CKE's table of operations that are not about etcd.

use madako_domain::containers::{Container, ETCD_MARK, Mount};
use madako_domain::node_status::ConfigVersion;

use super::fleet::{A, B, C, Fleet, X, Y, Z, check};
use crate::command::Command;

#[test]
fn nothing_is_due_on_a_running_fleet() {
    check(Fleet::running(), |_| {}, "completed");
    // The record of the bootstrap may be gone.
    check(Fleet::running(), |fleet| fleet.status.bootstrap = None, "completed");
}

#[test]
fn the_upgrade_needs_all_control_plane_nodes() {
    let old = |fleet: &mut Fleet| fleet.status.config_version = ConfigVersion::One;
    check(Fleet::empty(), old, "upgrade; upgrade(.11 .12 .13)");
    check(Fleet::running(), old, "upgrade; upgrade(.11 .12 .13)");
    check(
        Fleet::running(),
        |fleet| {
            old(fleet);
            fleet.lose(B);
            fleet.lose(X);
            fleet.backing_off.insert(C.to_owned());
        },
        "upgrade-aborted; held upgrade unreachable(.12); held upgrade backing-off(.13)",
    );
}

#[test]
fn a_fleet_without_data_gets_no_marks_by_the_upgrade() {
    for (mut fleet, marks) in [(Fleet::empty(), false), (Fleet::running(), true)] {
        fleet.status.config_version = ConfigVersion::One;
        let operation = &fleet.decide().operations[0];
        assert_eq!(operation.commands, [Command::UpgradeVersion { marks }]);
        assert_eq!(operation.commands[0].to_string(), format!("upgrade-version-from-1-to-2 {ETCD_MARK}"));
    }
}

#[test]
fn rivers_run_on_all_nodes_and_those_of_etcd_on_control_plane_nodes() {
    check(
        Fleet::empty(),
        |_| {},
        "rivers; rivers-bootstrap(.11 .12 .13 .21 .22 .23); etcd-rivers-bootstrap(.11 .12 .13)",
    );
    check(
        Fleet::running(),
        |fleet| {
            fleet.stop(Y, Container::Rivers);
            fleet.node(B).containers.remove("etcd-rivers");
            fleet.container(X, Container::Rivers).image = "old".to_owned();
            fleet.container(C, Container::EtcdRivers).builtin.args.pop();
        },
        "rivers; rivers-bootstrap(.22); rivers-restart(.21); etcd-rivers-bootstrap(.12); etcd-rivers-restart(.13)",
    );
}

#[test]
fn rivers_are_outdated_when_image_or_parameters_differ() {
    type Change = fn(&mut Fleet);
    let changes: [(Change, bool); 8] = [
        (|_| {}, false),
        (|fleet| fleet.container(X, Container::Rivers).image.push('2'), true),
        (|fleet| fleet.container(X, Container::Rivers).builtin.args.swap(0, 1), true),
        (|fleet| fleet.container(X, Container::Rivers).extra.args.push("--loglevel=debug".to_owned()), true),
        (|fleet| fleet.container(X, Container::Rivers).extra.binds.push(Mount::default()), true),
        (
            |fleet| {
                drop(fleet.container(X, Container::Rivers).extra.env.insert("A".to_owned(), String::new()))
            },
            true,
        ),
        (|fleet| fleet.options.etcd.args.clear(), false),
        (
            |fleet| {
                fleet.options.rivers.args.push("--loglevel=debug".to_owned());
                for address in [A, B, C, X, Y, Z] {
                    fleet
                        .container(address, Container::Rivers)
                        .extra
                        .args
                        .push("--loglevel=debug".to_owned());
                }
            },
            false,
        ),
    ];
    for (index, (change, outdated)) in changes.into_iter().enumerate() {
        let mut fleet = Fleet::running();
        change(&mut fleet);
        let expected = if outdated { "rivers; rivers-restart(.21)" } else { "completed" };
        assert_eq!(fleet.short(), expected, "change {index}");
    }
}

#[test]
fn each_operation_of_rivers_has_at_most_as_many_targets_as_the_setting_allows() {
    check(
        Fleet::empty(),
        |fleet| fleet.settings.max_concurrent_updates = 2,
        "rivers; rivers-bootstrap(.11 .12); etcd-rivers-bootstrap(.11 .12)",
    );
}

#[test]
fn absent_nodes_and_foreign_containers_are_left_out() {
    check(
        Fleet::empty(),
        |fleet| {
            fleet.lose(A);
            fleet.status.nodes.remove(Z);
            fleet.backing_off.insert(X.to_owned());
            fleet.container(Y, Container::Rivers).foreign = true;
            fleet.container(Y, Container::Rivers).running = true;
        },
        "rivers; rivers-bootstrap(.12 .13); etcd-rivers-bootstrap(.12 .13); \
         held rivers-bootstrap unreachable(.11 .23); held rivers-bootstrap backing-off(.21); \
         held rivers-bootstrap foreign-container(.22); held etcd-rivers-bootstrap unreachable(.11)",
    );
    // A row whose operations are all held is empty.
    check(
        Fleet::running(),
        |fleet| {
            fleet.lose(X);
            fleet.container(Y, Container::Rivers).image.clear();
            fleet.backing_off.insert(Y.to_owned());
        },
        "completed; held rivers-bootstrap unreachable(.21); held rivers-restart backing-off(.22)",
    );
}

#[test]
fn commands_of_rivers_are_those_of_cke() {
    let mut fleet = Fleet::running();
    fleet.container(X, Container::Rivers).image.clear();
    let shown: Vec<String> = fleet.decide().operations[0].commands.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["image-pull ghcr.io/cybozu-go/cke-tools:1.30.0", "run-container rivers"]);
    let builtin = crate::wanted::rivers_parameters(&fleet.cluster);
    assert_eq!(
        builtin.args,
        ["rivers", "--upstreams=10.0.0.11:6443,10.0.0.12:6443,10.0.0.13:6443", "--listen=127.0.0.1:16443"]
    );
    let builtin = crate::wanted::etcd_rivers(&fleet.cluster);
    assert_eq!(builtin.args[2], "--listen=127.0.0.1:12379");
    assert!(builtin.args[1].ends_with("10.0.0.13:2379"), "{builtin:?}");
}

#[test]
fn parts_of_the_control_plane_stop_on_other_nodes() {
    check(
        Fleet::running(),
        |fleet| {
            fleet.run_etcd(X);
            fleet.container(Y, Container::EtcdRivers).running = true;
            fleet.container(X, Container::EtcdRivers).running = true;
            // Not the service's own.
            fleet.container(Z, Container::Etcd).running = true;
            fleet.container(Z, Container::Etcd).foreign = true;
        },
        "stop-control-plane; stop-etcd(.21); stop-etcd-rivers(.21 .22)",
    );
    check(
        Fleet::running(),
        |fleet| {
            fleet.run_etcd(X);
            fleet.run_etcd(Y);
            fleet.backing_off.insert(Y.to_owned());
            fleet.members(&[(A, '+'), (B, '+'), (C, '?')]);
        },
        "completed; held stop-etcd backing-off(.22); held stop-etcd not-in-sync(.21)",
    );
}

#[test]
fn a_voting_member_outside_of_the_control_plane_stops_only_beside_a_majority() {
    let change = |fleet: &mut Fleet| {
        fleet.run_etcd(X);
        fleet.run_etcd(Y);
        fleet.run_etcd(Z);
        // Members are not removed while a control plane node is absent.
        fleet.backing_off.insert(C.to_owned());
        fleet.members(&[(A, '+'), (B, '+'), (C, '+'), (X, '+'), (Y, '+'), (Z, '+')]);
    };
    check(
        Fleet::running(),
        change,
        "completed; held etcd-destroy-member backing-off(.13); held stop-etcd quorum(.21 .22 .23)",
    );
}

#[test]
fn no_member_stops_before_each_control_plane_node_is_a_member() {
    let change = |fleet: &mut Fleet| {
        fleet.run_etcd(X);
        fleet.backing_off.insert(C.to_owned());
        fleet.members(&[(A, '+'), (B, '+'), (X, '+')]);
    };
    check(Fleet::running(), change, "completed; held etcd-add-member backing-off(.13)");
}

//! Tests of the row `etcd-maintain` of CKE's table of operations, rule by rule.

use madako_domain::containers::Container;

use super::fleet::{A, B, C, D, Fleet, X, Y, check};
use crate::held::BlockedBy;

/// A node that is not in the configuration.
const GONE: &str = "10.0.0.99";

fn commands(fleet: &Fleet) -> Vec<String> {
    let operation = &fleet.decide().operations[0];
    operation.commands.iter().map(|command| command.to_string().replace("10.0.0", "")).collect()
}

#[test]
fn members_outside_the_cluster_and_not_in_sync_are_removed() {
    let change = |fleet: &mut Fleet| {
        fleet.members(&[(A, '+'), (B, '+'), (C, '+'), ("10.0.0.98", '-'), (GONE, '-')]);
    };
    check(Fleet::running(), change, "etcd-maintain; etcd-remove-member(.98 .99)");
    let mut fleet = Fleet::running();
    change(&mut fleet);
    assert_eq!(commands(&fleet), ["remove-etcd-member 104,105"]);
    // A member without name and URL has only its id.
    check(
        Fleet::running(),
        |fleet| {
            fleet.members(&[(A, '+'), (B, '+'), (C, '+'), (GONE, 'n')]);
            fleet.status.etcd.as_mut().unwrap().members[3].peer_urls.clear();
        },
        "etcd-maintain; etcd-remove-member(104)",
    );
    // An unknown state is not a reason to remove a member.
    check(
        Fleet::running(),
        |fleet| fleet.members(&[(A, '+'), (B, '+'), (C, '+'), (GONE, '?')]),
        "completed; held etcd-remove-member not-in-sync(.99)",
    );
}

#[test]
fn members_outside_of_the_control_plane_and_not_in_sync_are_destroyed() {
    let change = |fleet: &mut Fleet| {
        fleet.members(&[(Y, '-'), (A, '+'), (B, '+'), (C, '+'), (X, '-')]);
        fleet.run_etcd(Y);
        fleet.lose(X);
        fleet.options.etcd_volume = "data".to_owned();
    };
    let unreachable = "held rivers-bootstrap unreachable(.21)";
    check(Fleet::running(), change, &format!("etcd-maintain; etcd-destroy-member(.22); {unreachable}"));
    let mut fleet = Fleet::running();
    change(&mut fleet);
    assert_eq!(
        commands(&fleet),
        [
            "volume-remove etcd-added-member",
            "remove-etcd-member 105,101",
            "kill-containers etcd",
            "volume-remove data",
            "wait-etcd-sync https://.11:2379,https://.12:2379,https://.13:2379",
        ]
    );
    // A foreign container on one node holds only that node.
    check(
        Fleet::running(),
        |fleet| {
            fleet.members(&[(A, '+'), (B, '+'), (C, '+'), (X, '-'), (Y, '-')]);
            fleet.container(X, Container::Etcd).foreign = true;
        },
        "etcd-maintain; etcd-destroy-member(.22); held etcd-destroy-member foreign-container(.21)",
    );
}

#[test]
fn an_interrupted_removal_is_finished() {
    let change = |fleet: &mut Fleet| {
        for address in [X, Y] {
            fleet.node(address).etcd_data = true;
            fleet.status.interrupted_removals.insert(address.to_owned());
        }
    };
    check(Fleet::running(), change, "etcd-maintain; etcd-destroy-member(.21 .22)");
    let mut fleet = Fleet::running();
    change(&mut fleet);
    let wait = "wait-etcd-sync https://.11:2379,https://.12:2379,https://.13:2379";
    let expected =
        ["volume-remove etcd-added-member", "kill-containers etcd", "volume-remove etcd-cke", wait];
    assert_eq!(commands(&fleet), expected);
    // A node without a record of a removal keeps its volume, as with CKE, and so does a node that backs off.
    let backs_off = |fleet: &mut Fleet| {
        change(fleet);
        fleet.status.interrupted_removals.remove(Y);
        fleet.backing_off.insert(X.to_owned());
    };
    check(Fleet::running(), backs_off, "completed; held etcd-destroy-member backing-off(.21)");
    let joins = |fleet: &mut Fleet| {
        change(fleet);
        fleet.join(X, true);
        fleet.join(Y, true);
        fleet.run_rivers();
    };
    check(Fleet::running(), joins, "etcd-maintain; etcd-add-member(.21)");
}

#[test]
fn a_member_whose_data_are_gone_is_removed_and_added_anew() {
    for wiped in [true, false] {
        check(
            Fleet::running(),
            |fleet| {
                fleet.members(&[(A, '+'), (B, '+'), (C, '-')]);
                if wiped {
                    fleet.wipe(C);
                } else {
                    fleet.stop(C, Container::Etcd);
                    fleet.node(C).etcd_empty = Some(true);
                }
            },
            "etcd-maintain; etcd-remove-member(.13)",
        );
    }
    check(
        Fleet::running(),
        |fleet| {
            fleet.members(&[(A, '+'), (B, '+')]);
            fleet.wipe(C);
        },
        "etcd-maintain; etcd-add-member(.13)",
    );
    // Data in another volume are not gone.
    check(
        Fleet::running(),
        |fleet| {
            fleet.members(&[(A, '+'), (B, '+'), (C, '-')]);
            fleet.wipe(C);
            fleet.node(C).etcd_other_volume = true;
            fleet.node(C).etcd_mark = true;
        },
        "completed; held etcd-start volume-changed(.13)",
    );
}

#[test]
fn a_member_that_never_started_is_added_again() {
    let change = |fleet: &mut Fleet| {
        fleet.join(D, true);
        fleet.run_rivers();
        fleet.members(&[(A, '+'), (B, '+'), (C, '+'), (D, 'n')]);
        fleet.status.etcd.as_mut().unwrap().members[3].learner = true;
    };
    check(Fleet::running(), change, "etcd-maintain; etcd-add-member(.14)");
    let mut fleet = Fleet::running();
    change(&mut fleet);
    assert_eq!(
        commands(&fleet)[1..],
        [
            "stop-container etcd",
            "volume-remove etcd-added-member",
            "volume-remove etcd-cke",
            "volume-create etcd-cke",
            "prepare-etcd-certificates",
            "make-files /etc/etcd/pki/server.crt,/etc/etcd/pki/server.key,/etc/etcd/pki/peer.crt,\
             /etc/etcd/pki/peer.key,/etc/etcd/pki/ca-peer.crt,/etc/etcd/pki/ca-client.crt",
            "add-etcd-member",
            "promote-etcd-member",
            "wait-etcd-sync https://.14:2379",
            "volume-create etcd-added-member",
        ]
    );
    // One a pass, in the order of the names.
    check(
        Fleet::running(),
        |fleet| fleet.members(&[(A, '+'), (C, 'n'), (B, 'n')]),
        "completed; held etcd-add-member quorum(.12)",
    );
    check(
        Fleet::running(),
        |fleet| {
            fleet.members(&[(A, '+'), (C, 'n'), (B, 'n')]);
            for member in [1, 2] {
                fleet.status.etcd.as_mut().unwrap().members[member].learner = true;
            }
        },
        "etcd-maintain; etcd-add-member(.12)",
    );
}

#[test]
fn a_learner_on_the_control_plane_is_promoted_and_one_elsewhere_goes() {
    let change = |fleet: &mut Fleet| {
        fleet.members(&[(A, '+'), (B, '+'), (C, 'l')]);
        fleet.node(C).etcd_mark = false;
    };
    check(Fleet::running(), change, "etcd-maintain; etcd-promote-member(.13)");
    let mut fleet = Fleet::running();
    change(&mut fleet);
    assert_eq!(commands(&fleet), ["promote-etcd-member 103"]);
    check(
        Fleet::running(),
        |fleet| fleet.members(&[(A, '+'), (B, '+'), (C, '+'), (X, 'l'), (GONE, 'l')]),
        "etcd-maintain; etcd-remove-member(.99)",
    );
    check(
        Fleet::running(),
        |fleet| fleet.members(&[(A, '+'), (B, '+'), (C, '+'), (X, 'l')]),
        "etcd-maintain; etcd-destroy-member(.21)",
    );
}

#[test]
fn members_in_sync_without_a_mark_are_marked() {
    let change = |fleet: &mut Fleet| {
        fleet.node(C).etcd_mark = false;
        fleet.node(A).etcd_mark = false;
    };
    check(Fleet::running(), change, "etcd-maintain; etcd-mark-member(.11 .13)");
    let mut fleet = Fleet::running();
    change(&mut fleet);
    assert_eq!(commands(&fleet), ["volume-create etcd-added-member"]);
    check(
        Fleet::running(),
        |fleet| {
            change(fleet);
            fleet.members(&[(A, '+'), (B, '+'), (C, '-')]);
        },
        "etcd-maintain; etcd-mark-member(.11)",
    );
}

#[test]
fn control_plane_nodes_become_members_one_by_one() {
    let change = |fleet: &mut Fleet| {
        fleet.join(D, true);
        fleet.run_rivers();
        fleet.members(&[(B, '+'), (C, '+')]);
    };
    check(Fleet::running(), change, "etcd-maintain; etcd-add-member(.11)");
    let mut fleet = Fleet::running();
    change(&mut fleet);
    assert_eq!(commands(&fleet)[8], "promote-etcd-member", "its id is not known yet");
    // The next node is taken instead of one that cannot be used.
    check(
        Fleet::running(),
        |fleet| {
            change(fleet);
            fleet.container(A, Container::Etcd).foreign = true;
        },
        "etcd-maintain; etcd-add-member(.14); held etcd-add-member foreign-container(.11)",
    );
    check(
        Fleet::running(),
        |fleet| {
            change(fleet);
            fleet.node(A).etcd_other_volume = true;
            fleet.container(D, Container::Etcd).foreign = true;
        },
        "completed; held etcd-add-member volume-changed(.11); held etcd-add-member foreign-container(.14)",
    );
}

#[test]
fn members_in_sync_leave_after_all_control_plane_nodes_are_members() {
    check(
        Fleet::running(),
        |fleet| fleet.members(&[(A, '+'), (B, '+'), (C, '+'), (X, '+'), (GONE, '+')]),
        "etcd-maintain; etcd-remove-member(.99)",
    );
    check(
        Fleet::running(),
        |fleet| fleet.members(&[(A, '+'), (B, '+'), (C, '+'), (X, '+')]),
        "etcd-maintain; etcd-destroy-member(.21)",
    );
    check(
        Fleet::running(),
        |fleet| fleet.members(&[(A, '+'), (B, '+'), (X, '+'), (GONE, '+')]),
        "etcd-maintain; etcd-add-member(.13)",
    );
}

#[test]
fn outdated_members_restart_one_by_one() {
    let change = |fleet: &mut Fleet| {
        fleet.container(C, Container::Etcd).image.push('2');
        fleet.container(B, Container::Etcd).builtin.args.remove(3);
    };
    check(Fleet::running(), change, "etcd-maintain; etcd-restart(.12)");
    let mut fleet = Fleet::running();
    change(&mut fleet);
    assert_eq!(
        commands(&fleet),
        [
            "wait-etcd-sync https://.11:2379,https://.12:2379,https://.13:2379",
            "image-pull ghcr.io/cybozu/etcd:3.5.15.1",
            "stop-container etcd",
            "run-container etcd",
        ]
    );
    check(
        Fleet::running(),
        |fleet| fleet.container(A, Container::Etcd).extra.args.push("--initial-x=1".to_owned()),
        "completed",
    );
    check(
        Fleet::running(),
        |fleet| fleet.options.etcd.env.insert("A".to_owned(), "1".to_owned()).map_or((), drop),
        "etcd-maintain; etcd-restart(.11)",
    );
}

#[test]
fn a_restart_is_held_while_it_could_stop_etcd() {
    let outdated = |fleet: &mut Fleet| fleet.container(A, Container::Etcd).image.clear();
    // Two members.
    check(
        Fleet::running(),
        |fleet| {
            outdated(fleet);
            fleet.members(&[(A, '+'), (B, '+')]);
            fleet.join(C, false);
            *fleet.node(C) = fleet.status.nodes[X].clone();
            fleet.run_rivers();
        },
        "completed; held etcd-restart few-members(.11)",
    );
    // A member out of sync.
    check(
        Fleet::running(),
        |fleet| {
            outdated(fleet);
            fleet.members(&[(A, '+'), (B, '+'), (C, '-')]);
        },
        "completed; held etcd-restart not-in-sync(.11)",
    );
    // An older image, and a changed volume.
    check(
        Fleet::running(),
        |fleet| {
            outdated(fleet);
            fleet.status.etcd.as_mut().unwrap().members[1].version = Some("3.5.16".parse().unwrap());
            fleet.status.etcd_image_version = Some("3.5.15".parse().unwrap());
        },
        "completed; held etcd-restart older-image(.11)",
    );
    check(
        Fleet::running(),
        |fleet| {
            outdated(fleet);
            fleet.node(A).etcd_other_volume = true;
        },
        "completed; held etcd-restart volume-changed(.11)",
    );
}

#[test]
fn maintenance_needs_all_control_plane_nodes() {
    check(
        Fleet::running(),
        |fleet| {
            fleet.container(A, Container::Etcd).image.clear();
            fleet.backing_off.insert(C.to_owned());
        },
        "completed; held etcd-restart backing-off(.13)",
    );
    check(
        Fleet::running(),
        |fleet| {
            fleet.members(&[(A, '+'), (B, '+'), (C, '-'), (GONE, '-')]);
            fleet.lose(C);
            fleet.status.nodes.get_mut(C).unwrap().containers =
                Fleet::running().status.nodes[C].containers.clone();
        },
        "completed; held etcd-remove-member unreachable(.13)",
    );
}

#[test]
fn an_operation_that_failed_without_a_node_waits_and_no_other_waits_for_it() {
    let without_node = |fleet: &mut Fleet| {
        fleet.members(&[(A, '+'), (B, '+'), (C, '+'), (GONE, '-')]);
        fleet.backing_off.insert("etcd-remove-member".to_owned());
    };
    check(Fleet::running(), without_node, "completed; held etcd-remove-member backing-off(.99)");
    check(
        Fleet::running(),
        |fleet| {
            without_node(fleet);
            fleet.stop(X, Container::Rivers);
        },
        "rivers; rivers-bootstrap(.21)",
    );
}

#[test]
fn nothing_is_removed_without_a_majority() {
    let mut fleet = Fleet::running();
    fleet.members(&[(A, '+'), (B, '?'), (C, '?'), (GONE, '-')]);
    assert_eq!(fleet.short(), "completed; held etcd-remove-member quorum(.99)");
    let BlockedBy::Quorum { violation, needed } = &fleet.decide().held[0].reason else {
        panic!("{fleet:?}", fleet = fleet.short())
    };
    assert_eq!(violation, "1 of 4 voting members of etcd are known to run in sync");
    assert_eq!(needed, &[B, C, GONE]);
}

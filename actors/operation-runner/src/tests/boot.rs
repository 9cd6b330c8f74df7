//! Tests of the rows `etcd-boot`, `etcd-start` and `etcd-wait` of CKE's table of operations.

use madako_domain::containers::Container;

use super::fleet::{A, B, C, D, Fleet, X, check};
use crate::command::{Command, RunMode};

fn commands(fleet: &Fleet) -> Vec<String> {
    fleet.decide().operations[0]
        .commands
        .iter()
        .map(|command| command.to_string().replace("10.0.0", ""))
        .collect()
}

#[test]
fn a_fleet_without_data_is_bootstrapped() {
    check(Fleet::with_rivers(), |_| {}, "etcd-boot; etcd-bootstrap(.11 .12 .13)");
    assert_eq!(
        commands(&Fleet::with_rivers()),
        [
            "image-pull ghcr.io/cybozu/etcd:3.5.15.1",
            "prepare-etcd-certificates",
            "make-files /etc/etcd/pki/server.crt,/etc/etcd/pki/server.key,/etc/etcd/pki/peer.crt,\
             /etc/etcd/pki/peer.key,/etc/etcd/pki/ca-peer.crt,/etc/etcd/pki/ca-client.crt",
            "volume-create etcd-cke",
            "run-container etcd",
            "wait-etcd-sync https://.11:2379,https://.12:2379,https://.13:2379",
            "setup-etcd-auth https://.11:2379,https://.12:2379,https://.13:2379",
            "volume-create etcd-added-member",
        ]
    );
    // CKE's upgrade makes marks before there are data.
    check(
        Fleet::with_rivers(),
        |fleet| fleet.node(B).etcd_mark = true,
        "etcd-boot; etcd-bootstrap(.11 .12 .13)",
    );
    // The volume of a worker that was never added does not count.
    check(
        Fleet::with_rivers(),
        |fleet| fleet.node(X).etcd_data = true,
        "etcd-boot; etcd-bootstrap(.11 .12 .13)",
    );
    check(
        Fleet::with_rivers(),
        |fleet| fleet.lose(X),
        "etcd-boot; etcd-bootstrap(.11 .12 .13); held rivers-bootstrap unreachable(.21)",
    );
}

#[test]
fn a_bootstrap_needs_all_control_plane_nodes() {
    check(
        Fleet::with_rivers(),
        |fleet| {
            fleet.backing_off.insert(A.to_owned());
            fleet.node(B).reachable = false;
        },
        "etcd-boot-aborted; held etcd-bootstrap backing-off(.11); held etcd-bootstrap unreachable(.12)",
    );
    check(
        Fleet::with_rivers(),
        |fleet| fleet.container(C, Container::Etcd).foreign = true,
        "etcd-boot-aborted; held etcd-bootstrap foreign-container(.13)",
    );
    check(
        Fleet::with_rivers(),
        |fleet| {
            for address in [A, B, C] {
                fleet.node(address).etcd_other_volume = true;
            }
        },
        "etcd-boot-aborted; held etcd-bootstrap volume-changed(.11 .12 .13)",
    );
}

#[test]
fn an_interrupted_bootstrap_is_resumed_with_the_targets_of_its_record() {
    for status in ["new", "running", "cancelled"] {
        let resumed = "etcd-boot; etcd-bootstrap(.13 .11 .12)";
        let interrupted = |fleet: &mut Fleet| {
            fleet.bootstrapped(status, &[C, A, B]);
            fleet.join(D, true);
            fleet.run_rivers();
        };
        // Before volumes were created.
        check(Fleet::with_rivers(), interrupted, resumed);
        // Between two volumes.
        check(
            Fleet::with_rivers(),
            |fleet| {
                interrupted(fleet);
                (fleet.node(A).etcd_data, fleet.node(A).etcd_empty) = (true, Some(true));
            },
            resumed,
        );
        check(
            Fleet::with_rivers(),
            |fleet| {
                interrupted(fleet);
                fleet.node(A).etcd_data = true;
            },
            resumed,
        );
        // Between two members, and before authentication.
        for running in [&[A][..], &[A, B, C]] {
            check(
                Fleet::with_rivers(),
                |fleet| {
                    interrupted(fleet);
                    for address in [A, B, C] {
                        fleet.node(address).etcd_data = true;
                        fleet.node(address).etcd_empty = Some(true);
                    }
                    for address in running {
                        fleet.run_etcd(address);
                        (fleet.node(address).etcd_empty, fleet.node(address).etcd_mark) =
                            (Some(false), false);
                    }
                    if running.len() == 3 {
                        fleet.members(&[(A, '+'), (B, '+'), (C, '+')]);
                    }
                },
                resumed,
            );
        }
    }
}

#[test]
fn marks_that_were_made_before_a_bootstrap_do_not_end_it() {
    check(
        Fleet::with_rivers(),
        |fleet| {
            fleet.bootstrapped("cancelled", &[A, B, C]);
            for address in [A, B, C] {
                (fleet.node(address).etcd_data, fleet.node(address).etcd_mark) = (true, true);
            }
        },
        "etcd-boot; etcd-bootstrap(.11 .12 .13)",
    );
}

#[test]
fn an_interrupted_bootstrap_without_data_begins_anew_when_a_target_left() {
    check(
        Fleet::with_rivers(),
        |fleet| {
            fleet.bootstrapped("cancelled", &[A, B, D]);
        },
        "etcd-boot; etcd-bootstrap(.11 .12 .13)",
    );
}

#[test]
fn an_unclear_bootstrap_is_left_to_an_operator() {
    let aborted = "etcd-boot-aborted; held etcd-bootstrap unclear-bootstrap(.11 .12 .13)";
    // A completed bootstrap, and no data.
    check(Fleet::with_rivers(), |fleet| fleet.bootstrapped("completed", &[A, B, C]), aborted);
    // Data without a mark and without a record.
    check(Fleet::with_rivers(), |fleet| fleet.node(A).etcd_data = true, aborted);
    // A target left after data were made.
    check(
        Fleet::with_rivers(),
        |fleet| {
            fleet.bootstrapped("running", &[A, B, D]);
            fleet.node(A).etcd_data = true;
        },
        aborted,
    );
    // Another node has data.
    check(
        Fleet::with_rivers(),
        |fleet| {
            fleet.bootstrapped("running", &[A, B]);
            fleet.node(C).etcd_data = true;
        },
        aborted,
    );
    // The data of one target are gone, after etcd ran on another.
    check(
        Fleet::with_rivers(),
        |fleet| {
            fleet.bootstrapped("running", &[A, B, C]);
            fleet.run_etcd(A);
            fleet.node(B).etcd_data = true;
        },
        aborted,
    );
    // Only a worker has the data of a member.
    check(
        Fleet::with_rivers(),
        |fleet| (fleet.node(X).etcd_data, fleet.node(X).etcd_mark) = (true, true),
        aborted,
    );
}

#[test]
fn unclear_bootstrap_names_the_data_of_each_node_and_a_remedy() {
    let mut fleet = Fleet::with_rivers();
    fleet.node(A).etcd_data = true;
    fleet.node(B).etcd_mark = true;
    fleet.container(B, Container::Etcd).running = false;
    let held = &fleet.decide().held[0];
    let text = held.reason.to_string();
    for part in [
        "data without a mark",
        "remove the volumes if they are old",
        "10.0.0.11 data, no mark, no etcd; 10.0.0.12 no data, a mark, etcd is stopped; 10.0.0.13 no data, no mark",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn a_living_cluster_does_not_wait_for_the_end_of_its_bootstrap() {
    // The bootstrap was cancelled at its last mark, and a target has left since.
    check(Fleet::running(), |fleet| fleet.bootstrapped("cancelled", &[A, B, D]), "completed");
    // All targets are there, and one is away for a moment.
    check(
        Fleet::running(),
        |fleet| {
            fleet.bootstrapped("cancelled", &[A, B, C]);
            fleet.backing_off.insert(C.to_owned());
        },
        "completed; held etcd-bootstrap backing-off(.13)",
    );
}

#[test]
fn members_that_are_down_start_with_their_data() {
    check(Fleet::stopped(), |_| {}, "etcd-start; etcd-start(.11 .12 .13)");
    assert_eq!(
        commands(&Fleet::stopped())[2..],
        ["run-container etcd", "wait-etcd-sync https://.11:2379,https://.12:2379,https://.13:2379"]
    );
    let start = &fleet_start(&Fleet::stopped());
    assert_eq!(start, &Command::RunContainer { container: Container::Etcd, run: RunMode::Start });
    check(
        Fleet::stopped(),
        |fleet| {
            fleet.lose(A);
            fleet.backing_off.insert(B.to_owned());
        },
        "etcd-start; etcd-start(.13); held rivers-bootstrap unreachable(.11); \
         held etcd-rivers-bootstrap unreachable(.11); held etcd-start backing-off(.12)",
    );
    // In a healthy cluster only members start.
    check(
        Fleet::running(),
        |fleet| {
            fleet.stop(C, Container::Etcd);
            fleet.members(&[(A, '+'), (B, '+'), (C, '-')]);
        },
        "etcd-start; etcd-start(.13)",
    );
    check(
        Fleet::running(),
        |fleet| {
            fleet.stop(C, Container::Etcd);
            fleet.members(&[(A, '+'), (B, '+')]);
        },
        "etcd-maintain; etcd-add-member(.13)",
    );
}

fn fleet_start(fleet: &Fleet) -> Command {
    fleet.decide().operations[0].commands[2].clone()
}

#[test]
fn a_member_with_data_and_without_a_mark_is_started() {
    check(
        Fleet::running(),
        |fleet| {
            fleet.stop(C, Container::Etcd);
            fleet.node(C).etcd_mark = false;
            fleet.members(&[(A, '+'), (B, '+'), (C, '-')]);
        },
        "etcd-start; etcd-start(.13)",
    );
    // Without an answer of etcd, the stopped container shows that the member was added.
    check(Fleet::stopped(), |fleet| fleet.node(B).etcd_mark = false, "etcd-start; etcd-start(.11 .12 .13)");
    check(
        Fleet::stopped(),
        |fleet| {
            fleet.node(B).etcd_mark = false;
            fleet.node(B).containers.remove("etcd");
        },
        "etcd-start; etcd-start(.11 .13)",
    );
}

#[test]
fn etcd_never_starts_on_an_empty_volume() {
    check(Fleet::stopped(), |fleet| fleet.node(B).etcd_empty = Some(true), "etcd-start; etcd-start(.11 .13)");
    check(Fleet::stopped(), |fleet| fleet.node(B).etcd_data = false, "etcd-start; etcd-start(.11 .13)");
}

#[test]
fn a_member_without_a_name_starts_only_if_its_volume_is_known_to_have_content() {
    let expected = [
        (None, "etcd-maintain; etcd-add-member(.13)"),
        (Some(true), "etcd-maintain; etcd-add-member(.13)"),
        (Some(false), "etcd-start; etcd-start(.13)"),
    ];
    for (empty, expected) in expected {
        check(
            Fleet::running(),
            |fleet| {
                fleet.wipe(C);
                fleet.node(C).etcd_data = true;
                fleet.node(C).etcd_empty = empty;
                fleet.members(&[(A, '+'), (B, '+'), (C, 'n')]);
            },
            expected,
        );
    }
}

#[test]
fn a_start_is_held_for_a_foreign_container_a_changed_volume_and_an_older_image() {
    check(
        Fleet::stopped(),
        |fleet| {
            fleet.container(A, Container::Etcd).foreign = true;
            fleet.node(B).etcd_other_volume = true;
        },
        "etcd-start; etcd-start(.13); held etcd-start foreign-container(.11); held etcd-start volume-changed(.12)",
    );
    check(
        Fleet::running(),
        |fleet| {
            fleet.stop(C, Container::Etcd);
            fleet.members(&[(A, '+'), (B, '+'), (C, '-')]);
            fleet.status.etcd.as_mut().unwrap().members[0].version = Some("3.5.16".parse().unwrap());
            fleet.status.etcd_image_version = Some("3.5.15".parse().unwrap());
        },
        "completed; held etcd-start older-image(.13)",
    );
}

#[test]
fn an_etcd_without_majority_is_waited_for_and_nothing_is_removed() {
    let wait = "etcd-wait; etcd-wait-cluster(https://.11:2379 https://.12:2379 https://.13:2379)";
    // All of them run.
    let held = format!("{wait}; held etcd-remove-member quorum(.11 .12 .13)");
    check(Fleet::running(), |fleet| fleet.status.etcd = None, &held);
    // Between two waits nothing is due, so that repairs of workers find a gap.
    check(
        Fleet::running(),
        |fleet| {
            fleet.status.etcd = None;
            fleet.backing_off.insert("etcd-wait-cluster".to_owned());
        },
        "etcd-wait; held etcd-remove-member quorum(.11 .12 .13); \
         held etcd-wait-cluster backing-off(https://.11:2379 https://.12:2379 https://.13:2379)",
    );
    // The state of a container on an unreachable node is unknown.
    check(
        Fleet::running(),
        |fleet| {
            fleet.status.etcd = None;
            fleet.node(C).reachable = false;
        },
        &format!("{wait}; held etcd-remove-member quorum(.13)"),
    );
    assert_eq!(
        {
            let mut fleet = Fleet::running();
            fleet.status.etcd = None;
            commands(&fleet)
        },
        ["wait-etcd-sync https://.11:2379,https://.12:2379,https://.13:2379"]
    );
    check(
        Fleet::running(),
        |fleet| {
            fleet.status.etcd = None;
            fleet.wipe(B);
            fleet.wipe(C);
        },
        &format!("{wait}; held etcd-remove-member quorum(.12 .13)"),
    );
    // The list of members may be known.
    check(
        Fleet::running(),
        |fleet| {
            fleet.members(&[(A, '+'), (B, '-'), (D, '-')]);
            fleet.status.etcd.as_mut().unwrap().healthy = false;
        },
        &format!("{wait}; held etcd-remove-member quorum(.14)"),
    );
}

//! Tests of the renewal of etcd's certificates.

use madako_domain::containers::Container;

use super::fleet::{A, B, C, Fleet, X, check};

/// All members run, and the certificates of two of them end soon.
fn aging() -> Fleet {
    let mut fleet = Fleet::running();
    fleet.certificates(A, &[("server.crt", 300), ("peer.crt", 300)]);
    fleet.certificates(B, &[("server.crt", 300), ("peer.crt", 29)]);
    fleet.certificates(C, &[("server.crt", 29), ("peer.crt", 300)]);
    fleet
}

#[test]
fn one_member_at_a_time_gets_new_certificates() {
    check(aging(), |_| {}, "etcd-maintain; etcd-renew-certificates(.12)");
    let decision = aging().decide();
    let commands: Vec<String> =
        decision.operations[0].commands.iter().map(|command| command.name().to_owned()).collect();
    assert_eq!(commands, ["prepare-etcd-certificates", "make-files"]);
    let mut fleet = aging();
    fleet.certificates(B, &[("server.crt", 300), ("peer.crt", 30)]);
    check(fleet, |_| {}, "etcd-maintain; etcd-renew-certificates(.13)");
}

#[test]
fn a_renewal_waits_for_no_other_node_and_for_no_member() {
    let lost = "held rivers-bootstrap unreachable(.11); held etcd-rivers-bootstrap unreachable(.11)";
    check(aging(), |fleet| fleet.lose(A), &format!("etcd-maintain; etcd-renew-certificates(.12); {lost}"));
    check(
        aging(),
        |fleet| {
            fleet.backing_off.insert(B.to_owned());
        },
        "etcd-maintain; etcd-renew-certificates(.13); held etcd-renew-certificates backing-off(.12)",
    );
    let renewal = "etcd-maintain; etcd-renew-certificates(.12)";
    check(aging(), |fleet| fleet.members(&[(A, '-'), (B, '-'), (C, '+')]), renewal);
    // Expired certificates may be the cause.
    check(aging(), |fleet| fleet.status.etcd = None, renewal);
}

#[test]
fn operations_on_members_come_before_a_renewal_and_held_ones_do_not() {
    check(
        aging(),
        |fleet| fleet.container(A, Container::Etcd).image = "old".to_owned(),
        "etcd-maintain; etcd-restart(.11)",
    );
    check(
        aging(),
        |fleet| {
            fleet.container(A, Container::Etcd).image = "old".to_owned();
            fleet.members(&[(A, '+'), (B, '+'), (C, '?')]);
        },
        "etcd-maintain; etcd-renew-certificates(.12); held etcd-restart not-in-sync(.11)",
    );
}

#[test]
fn only_members_that_run_are_renewed_and_only_certificates_of_their_own() {
    let mut fleet = Fleet::running();
    fleet.certificates(X, &[("server.crt", 1)]);
    fleet.certificates(A, &[("server.crt", 300), ("ca-peer.crt", 1), ("ca-client.crt", 1)]);
    // A text that is not a certificate, perhaps because the login may not read it.
    fleet.certificates(B, &[("server.crt", 1)]);
    fleet.node(B).etcd_certificates.get_mut("server.crt").unwrap().validity = None;
    check(fleet, |_| {}, "completed");
    // A start issues what is due.
    check(
        aging(),
        |fleet| {
            fleet.stop(B, Container::Etcd);
            fleet.certificates(C, &[]);
        },
        "etcd-start; etcd-start(.12)",
    );
}

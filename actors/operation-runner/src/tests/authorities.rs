//! Tests of operations while no certificate can be issued.

use madako_domain::containers::{Container, ETCD_PEER, ETCD_SERVER};

use super::fleet::{A, B, C, D, Fleet, X, check};

/// A fleet whose Vault is sealed.
fn sealed(fleet: Fleet) -> Fleet {
    Fleet { authorities: Some("Vault is sealed".to_owned()), ..fleet }
}

#[test]
fn operations_without_certificates_go_on() {
    check(sealed(Fleet::running()), |_| {}, "completed");
    check(
        sealed(Fleet::running()),
        |fleet| fleet.stop(X, Container::Rivers),
        "rivers; rivers-bootstrap(.21)",
    );
    check(
        sealed(Fleet::running()),
        |fleet| fleet.container(A, Container::Etcd).image = "old".to_owned(),
        "etcd-maintain; etcd-restart(.11)",
    );
}

#[test]
fn a_bootstrap_waits_for_the_authorities_and_so_does_everything_after_it() {
    let waits = "etcd-boot-aborted; held etcd-bootstrap authorities(.11 .12 .13)";
    check(sealed(Fleet::with_rivers()), |_| {}, waits);
    check(Fleet::with_rivers(), |_| {}, "etcd-boot; etcd-bootstrap(.11 .12 .13)");
}

#[test]
fn a_start_and_a_renewal_wait_and_later_rows_count() {
    check(
        sealed(Fleet::running()),
        |fleet| {
            fleet.stop(B, Container::Etcd);
            fleet.members(&[(A, '+'), (B, '-'), (C, '+')]);
        },
        "completed; held etcd-start authorities(.12)",
    );
    check(
        sealed(Fleet::running()),
        |fleet| fleet.certificates(A, &[(ETCD_SERVER, 3)]),
        "completed; held etcd-renew-certificates authorities(.11)",
    );
}

#[test]
fn a_member_with_valid_certificates_starts_without_the_authorities() {
    for (days, expected) in [
        ((300, 300), "etcd-start; etcd-start(.12)"),
        ((300, 3), "completed; held etcd-start authorities(.12)"),
        ((-1, 300), "completed; held etcd-start authorities(.12)"),
    ] {
        check(
            sealed(Fleet::running()),
            |fleet| {
                fleet.stop(B, Container::Etcd);
                fleet.members(&[(A, '+'), (B, '-'), (C, '+')]);
                fleet.certificates(B, &[(ETCD_SERVER, days.0), (ETCD_PEER, days.1)]);
            },
            expected,
        );
    }
}

#[test]
fn a_member_stops_only_after_its_successor_has_joined() {
    check(
        sealed(Fleet::running()),
        |fleet| {
            fleet.leave(C);
            fleet.join(C, false);
            fleet.join(D, true);
            fleet.run_rivers();
            fleet.container(C, Container::EtcdRivers).running = false;
        },
        "completed; held etcd-add-member authorities(.14)",
    );
}

#[test]
fn without_a_certificate_for_etcd_the_wait_for_etcd_is_held_and_no_later_row_counts() {
    check(
        sealed(Fleet::running()),
        |fleet| {
            fleet.status.etcd = None;
            fleet.certificates(A, &[(ETCD_SERVER, 3)]);
            fleet.container(B, Container::Etcd).image = "old".to_owned();
        },
        "etcd-wait; held etcd-renew-certificates authorities(.11); held etcd-wait-cluster \
         authorities(https://.11:2379 https://.12:2379 https://.13:2379)",
    );
}

#[test]
fn the_message_of_the_authorities_is_the_reason() {
    let mut fleet = sealed(Fleet::running());
    fleet.certificates(A, &[(ETCD_SERVER, 3)]);
    let held = &fleet.decide().held[0];
    assert_eq!(held.reason.to_string(), "no certificate can be issued at present: Vault is sealed");
}

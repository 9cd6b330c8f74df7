//! Tests of the renewal of certificates.

use madako_domain::certificate::{NodeCertificate, Validity};
use madako_domain::containers::Container;
use time::Duration;

use super::fleet::{A, B, C, Fleet, NOW, X, check};
use super::kubernetes::running;
use crate::KubernetesMode;
use crate::kubernetes::certificates::CertificateSubject;
use crate::kubernetes::plan::{Durations, plan};

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

/// A certificate of Kubernetes that ends in 29 days.
fn age(fleet: &mut Fleet, address: &str, subject: CertificateSubject) {
    let to = NOW + Duration::days(29);
    let validity = Some(Validity { from: to - Duration::days(3650), to });
    let certificate = NodeCertificate { text: String::new(), validity };
    fleet.node(address).kubernetes_certificates.insert(subject.path().to_owned(), certificate);
}

/// A fleet with a due certificate of a controller manager, and with other ones.
fn aging_kubernetes(others: &[(&str, CertificateSubject)]) -> Fleet {
    let mut fleet = running();
    age(&mut fleet, B, CertificateSubject::ControllerManager);
    for (address, subject) in others {
        age(&mut fleet, address, *subject);
    }
    fleet
}

#[test]
fn certificates_of_kubernetes_are_renewed_after_those_of_etcd_and_after_the_roll() {
    let files = [(X, CertificateSubject::Kubelet), (A, CertificateSubject::ApiServer)];
    check(aging_kubernetes(&files), |_| {}, "k8s-maintain; kubernetes-renew-certificates(.11)");
    check(
        aging_kubernetes(&files),
        |fleet| fleet.certificates(C, &[("server.crt", 29)]),
        "etcd-maintain; etcd-renew-certificates(.13)",
    );
    check(
        aging_kubernetes(&files),
        |fleet| drop(fleet.node(X).containers.remove("kube-proxy")),
        "k8s-start; kube-proxy-bootstrap(.21)",
    );
    check(
        aging_kubernetes(&files),
        |fleet| fleet.authorities = Some("sealed".to_owned()),
        "completed; held kubernetes-renew-certificates authorities(.11)",
    );
    check(
        aging_kubernetes(&files),
        |fleet| fleet.settings.kubernetes = KubernetesMode::Observe,
        "completed; held kubernetes-renew-certificates observed(.11)",
    );
}

#[test]
fn a_renewal_writes_keys_before_certificates_and_kubeconfigs_while_their_program_is_stopped() {
    let commands = |fleet: Fleet| -> Vec<String> {
        let operation = fleet.decide().operations.remove(0);
        operation
            .commands
            .iter()
            .map(|command| format!("{} {}", command.name(), command.target().replace("/etc/kubernetes/", "")))
            .collect()
    };
    let image = running().settings.images.kubernetes;
    assert_eq!(
        commands(aging_kubernetes(&[])),
        [
            format!("image-pull {image}").as_str(),
            "prepare-certificates controller-manager/kubeconfig",
            "stop-container kube-controller-manager",
            "make-files controller-manager/kubeconfig",
            "run-container kube-controller-manager",
        ]
    );
    let files = [(A, CertificateSubject::Aggregation), (A, CertificateSubject::Kubelet)];
    assert_eq!(
        commands(aging_kubernetes(&files)),
        [
            "prepare-certificates pki/aggregation.crt,pki/kubelet.crt",
            "make-files pki/aggregation.key,pki/aggregation.crt,pki/kubelet.key,pki/kubelet.crt",
        ]
    );
}

#[test]
fn a_member_that_is_out_of_sync_keeps_no_certificate_of_kubernetes_from_its_renewal() {
    check(
        aging_kubernetes(&[(A, CertificateSubject::EtcdClient)]),
        |fleet| fleet.members(&[(A, '+'), (B, '+'), (C, '-')]),
        "k8s-maintain; kubernetes-renew-certificates(.11)",
    );
}

#[test]
fn a_plan_names_the_certificates_that_are_due_and_their_nodes() {
    let fleet = aging_kubernetes(&[(A, CertificateSubject::Kubelet)]);
    let planned = plan(&fleet.input(), fleet.kubernetes.as_ref().unwrap(), &Durations::new());
    assert!(planned.steps.is_empty());
    assert!(
        planned.notes.iter().any(|note| note.contains("kubelet.crt ends soon on 1 nodes, first 10.0.0.11:")),
        "{planned:?}"
    );
}

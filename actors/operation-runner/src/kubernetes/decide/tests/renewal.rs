//! Tests of the renewal of certificates.

use madako_domain::certificate::Validity;
use time::Duration;

use super::*;
use crate::kubernetes::certificates::CertificateSubject as Subject;

/// A certificate of ten years that ends after so many days.
fn ending(days: i64) -> Validity {
    let to = NOW + Duration::days(days);
    Validity { from: to - Duration::days(3650), to }
}

/// A fleet with new certificates, apart from these, which end after so many days.
fn aging(control_plane: usize, workers: usize, ends: &[(&str, Subject, i64)]) -> Fleet {
    let mut fleet = Fleet::new(control_plane, workers);
    for node in fleet.status.nodes.values_mut() {
        let subjects = Subject::ALL.into_iter().filter(|it| node.components.contains_key(&it.component()));
        node.certificates = subjects.map(|subject| (subject, ending(3000))).collect();
    }
    for (address, subject, days) in ends {
        let node = fleet.status.nodes.get_mut(*address).unwrap();
        node.certificates.insert(*subject, ending(*days));
    }
    fleet
}

/// `target: files, component` and `held reason: targets`.
fn rows(fleet: &Fleet) -> Vec<String> {
    let RenewalDecision { renewal, held } = decide_renewal(&fleet.input());
    let due = renewal.into_iter().map(|Renewal { target, subjects, restart }| {
        let files = subjects.iter().map(|subject| subject.path().trim_start_matches("/etc/kubernetes/"));
        let words: Vec<&str> = files.chain(restart.iter().map(Component::name)).collect();
        format!("{target}: {}", words.join(" "))
    });
    let held = held.into_iter().map(|(reason, nodes)| format!("held {}: {}", reason.name(), nodes.join(" ")));
    due.chain(held).collect()
}

#[test]
fn nothing_is_renewed_before_its_last_thirty_days() {
    assert_eq!(rows(&aging(3, 1, &[(A, Subject::ApiServer, 30)])), [""; 0]);
    assert_eq!(rows(&aging(3, 1, &[(A, Subject::ApiServer, 29)])), ["10.0.0.1: pki/apiserver.crt"]);
    assert_eq!(rows(&Fleet::new(3, 1)), [""; 0], "unreadable certificates are not due");
}

#[test]
fn files_that_programs_read_anew_are_replaced_node_by_node_and_wait_for_nothing() {
    let ends = [
        (A, Subject::ApiServer, 29),
        (A, Subject::Aggregation, 10),
        (B, Subject::EtcdClient, -1),
        (C, Subject::Kubelet, 5),
    ];
    let mut fleet = aging(3, 0, &ends);
    let first = "10.0.0.1: pki/apiserver.crt pki/aggregation.crt";
    assert_eq!(rows(&fleet), [first]);
    for address in [A, B, C] {
        fleet.of(address, Component::ApiServer).health = Some(Err("the certificate has expired".to_owned()));
    }
    (fleet.is_etcd_in_sync, fleet.rollout.paused) = (false, true);
    fleet.busy.insert(A.to_owned());
    fleet.outdate(Component::ApiServer);
    assert_eq!(rows(&fleet), [first], "another image does not matter");
    fleet.backing_off.insert(A.to_owned());
    assert_eq!(rows(&fleet), ["10.0.0.2: pki/apiserver-etcd-client.crt", "held backing-off: 10.0.0.1"]);
    fleet.status.nodes.get_mut(B).unwrap().reachable = false;
    assert_eq!(rows(&fleet), ["10.0.0.3: pki/kubelet.crt", "held backing-off: 10.0.0.1"]);
    fleet.of(C, Component::Kubelet).container.to_mut().running = false;
    assert_eq!(rows(&fleet), ["held backing-off: 10.0.0.1"], "its start issues the certificate");
}

#[test]
fn controller_managers_restart_one_by_one_while_all_others_are_healthy() {
    let ends = [A, B, C].map(|address| (address, Subject::ControllerManager, 29));
    let mut fleet = aging(3, 0, &ends);
    let restart = "controller-manager/kubeconfig kube-controller-manager";
    assert_eq!(rows(&fleet), [format!("10.0.0.2: {restart}")], "the others have their turn later");
    fleet.of(C, Component::ApiServer).health = None;
    assert_eq!(rows(&fleet), ["held api-servers-unhealthy: 10.0.0.2 10.0.0.3 10.0.0.1"]);
    fleet.of(C, Component::ApiServer).health = Some(Ok(()));
    fleet.busy.insert(C.to_owned());
    assert_eq!(rows(&fleet), ["held control-plane-busy: 10.0.0.2 10.0.0.3 10.0.0.1"]);
    fleet.busy.clear();
    fleet.of(C, Component::ControllerManager).health = None;
    assert_eq!(
        rows(&fleet),
        [format!("10.0.0.3: {restart}"), "held one-by-one: 10.0.0.2".to_owned()],
        "the one without an answer is first"
    );
    fleet.of(C, Component::ControllerManager).health = Some(Ok(()));
    fleet.status.nodes.get_mut(B).unwrap().certificates.remove(&Subject::ControllerManager);
    assert_eq!(rows(&fleet), [format!("10.0.0.3: {restart}")], "the leading one is last");
}

#[test]
fn a_component_whose_certificate_has_ended_restarts_first_and_needs_one_api_server() {
    let mut fleet = aging(3, 0, &[(B, Subject::Scheduler, 29), (C, Subject::Scheduler, -1)]);
    for address in [A, B, C] {
        fleet.of(address, Component::Scheduler).health = Some(Err("silence".to_owned()));
    }
    fleet.of(B, Component::Scheduler).health = Some(Ok(()));
    fleet.of(A, Component::ApiServer).health = Some(Err("silence".to_owned()));
    assert_eq!(rows(&fleet), ["10.0.0.3: scheduler/kubeconfig kube-scheduler"]);
    for address in [B, C] {
        fleet.of(address, Component::ApiServer).health = None;
    }
    assert_eq!(rows(&fleet), ["held api-servers-unhealthy: 10.0.0.3 10.0.0.2"]);
}

#[test]
fn a_proxy_restarts_as_a_wave_of_one_node() {
    let ends = [A, B, C].map(|address| (address, Subject::Proxy, 29));
    let mut fleet = aging(1, 2, &ends);
    fleet.set_wave(8);
    assert_eq!(rows(&fleet), ["10.0.0.1: proxy/kubeconfig kube-proxy"]);
    fleet.rollout.begin_wave("kube-proxy", &[A.to_owned()]);
    assert_eq!(rows(&fleet), ["held wave-watched: 10.0.0.1 10.0.0.2 10.0.0.3"]);
    fleet.rollout.paused = true;
    assert_eq!(rows(&fleet), ["held roll-paused: 10.0.0.1 10.0.0.2 10.0.0.3"]);
}

#[test]
fn the_roll_restarts_components_that_are_outdated() {
    let mut fleet = aging(1, 1, &[(A, Subject::Proxy, 29)]);
    fleet.outdate(Component::Proxy);
    assert_eq!(rows(&fleet), [""; 0]);
    assert_eq!(fleet.rows()[0], "kube-proxy-restart: 10.0.0.1", "which issues another certificate");
}

#[test]
fn kubelets_restart_after_a_renewal_only_if_they_do_not_read_their_certificate_anew() {
    let mut fleet = aging(1, 1, &[]);
    let issued = ending(3000).from;
    let mut at = |minutes: i64, image: &str| {
        for node in [A, B] {
            let kubelet = fleet.of(node, Component::Kubelet);
            kubelet.container.to_mut().started_at = Some(issued + Duration::minutes(minutes));
            image.clone_into(&mut kubelet.container.to_mut().image);
        }
        let image = image.to_owned();
        let (cluster, options) = (fleet.cluster.clone(), fleet.options.clone());
        let mut input = fleet.input();
        input.wanted = Wanted { cluster: &cluster, options: &options, image: &image };
        decide_renewal(&input).renewal
    };
    let restart =
        Some(Renewal { target: A.to_owned(), subjects: Vec::new(), restart: Some(Component::Kubelet) });
    assert_eq!(at(-6, "k:1.30.5"), restart);
    assert_eq!(at(-6, "k:latest"), restart, "its version is not known");
    assert_eq!(at(-6, "k:1.31.0"), None);
    assert_eq!(at(-4, "k:1.30.5"), None, "clocks differ");
    assert_eq!(at(1, "k:1.30.5"), None, "it read the certificate");
}

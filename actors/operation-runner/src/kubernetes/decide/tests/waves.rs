//! Tests of kubelets and proxies: waves, lost kubelets, and starts during a roll.

use madako_domain::component::Component;
use time::Duration;

use super::{A, B, C, D, Fleet, NOW, OLD};

#[test]
fn kubelets_and_proxies_restart_in_waves_after_the_last_api_server() {
    let mut fleet = Fleet::new(1, 3);
    fleet.outdate(Component::Kubelet);
    fleet.outdate(Component::Proxy);
    let rows = [
        "kubelet-restart: 10.0.0.1",
        "kube-proxy-restart: 10.0.0.1",
        "held kubelet-restart wave: 10.0.0.2 10.0.0.3 10.0.0.4",
        "held kube-proxy-restart wave: 10.0.0.2 10.0.0.3 10.0.0.4",
    ];
    assert_eq!(fleet.rows(), rows);
    fleet.set_wave(8);
    assert_eq!(
        fleet.rows()[0],
        "kubelet-restart: 10.0.0.1 10.0.0.2",
        "--max-concurrent-updates bounds a wave"
    );
    fleet.outdate(Component::ApiServer);
    let held = "held kubelet-restart api-servers-first: 10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4";
    assert!(fleet.rows().contains(&held.to_owned()), "{:?}", fleet.rows());
}

#[test]
fn nodes_that_are_not_ready_come_in_the_last_waves() {
    let mut fleet = Fleet::new(1, 2);
    fleet.outdate(Component::Kubelet);
    fleet.status.unready.extend([A, B].map(str::to_owned));
    assert_eq!(fleet.rows(), ["kubelet-restart: 10.0.0.3", "held kubelet-restart wave: 10.0.0.1 10.0.0.2"]);
    fleet.rollout.failed.insert(C.to_owned(), "its disk is full".to_owned());
    fleet.set_wave(2);
    let rows = ["kubelet-restart: 10.0.0.1 10.0.0.2", "held kubelet-restart wave: 10.0.0.3"];
    assert_eq!(fleet.rows(), rows, "a failed node ends no wave of others");
}

#[test]
fn a_wave_waits_for_the_present_one_and_for_the_operator() {
    let mut fleet = Fleet::new(1, 1);
    fleet.outdate(Component::Kubelet);
    let reason = |fleet: &Fleet| fleet.rows().last().unwrap().clone();
    fleet.rollout.begin_wave("kubelet", &[A.to_owned()]);
    assert_eq!(reason(&fleet), "held kubelet-restart wave-watched: 10.0.0.1 10.0.0.2");
    fleet.rollout.halted = true;
    assert_eq!(reason(&fleet), "held kubelet-restart roll-halted: 10.0.0.1 10.0.0.2");
    OLD.clone_into(&mut fleet.rollout.image);
    assert_eq!(fleet.rows()[0], "kubelet-restart: 10.0.0.1", "the failures are those of another image");
    fleet.rollout.paused = true;
    assert_eq!(reason(&fleet), "held kubelet-restart roll-paused: 10.0.0.1 10.0.0.2");
    fleet.rollout_fault = Some("x");
    assert_eq!(reason(&fleet), "held kubelet-restart roll-unreadable: 10.0.0.1 10.0.0.2");
}

#[test]
fn a_dead_control_plane_node_keeps_an_image_but_no_argument_from_the_kubelets() {
    let mut fleet = Fleet::new(3, 0);
    fleet.status.nodes.get_mut(C).unwrap().reachable = false;
    fleet.of(A, Component::Kubelet).container.to_mut().extra.args.push("--v=2".to_owned());
    OLD.clone_into(&mut fleet.of(B, Component::Kubelet).container.to_mut().image);
    let rows = fleet.rows();
    assert!(rows.contains(&"kubelet-restart: 10.0.0.1".to_owned()), "{rows:?}");
    assert!(rows.contains(&"held kubelet-restart api-servers-unhealthy: 10.0.0.2".to_owned()), "{rows:?}");
}

#[test]
fn an_api_server_that_serves_an_older_minor_version_on_an_unreachable_node_holds_newer_kubelets() {
    let first = "held kubelet-restart api-servers-first: 10.0.0.2 10.0.0.4";
    let starts = "kubelet-bootstrap: 10.0.0.4";
    for (served, is_older) in [(Some("1.33"), true), (Some("1.34"), false), (None, false)] {
        let mut fleet = Fleet::new(3, 1);
        fleet.status.nodes.remove(C);
        fleet.of(D, Component::Kubelet).container.to_mut().running = false;
        OLD.clone_into(&mut fleet.of(B, Component::Kubelet).container.to_mut().image);
        fleet.status.wanted_version = Some("1.34.5".parse().unwrap());
        for (address, version) in [(A, Some("1.34.5")), (B, Some("1.34.5")), (C, served)] {
            let Some(version) = version else { continue };
            fleet.status.versions.insert(Component::ApiServer, address, version.parse().unwrap());
        }
        let rows = fleet.rows();
        assert_eq!(rows.contains(&first.to_owned()), is_older, "{served:?}: {rows:?}");
        assert_eq!(rows.contains(&starts.to_owned()), !is_older, "{served:?}: {rows:?}");
    }
}

#[test]
fn a_kubelet_without_a_node_object_restarts() {
    let mut fleet = Fleet::new(1, 2);
    fleet.status.registered.as_mut().unwrap().remove(B);
    assert_eq!(fleet.rows(), ["kubelet-restart: 10.0.0.2"]);
    for (seconds_ago, is_due) in [(5, false), (59, false), (61, true), (-5, true)] {
        let started = NOW - Duration::seconds(seconds_ago);
        fleet.of(B, Component::Kubelet).container.to_mut().started_at = Some(started);
        assert_eq!(!fleet.rows().is_empty(), is_due, "started {seconds_ago} s ago");
    }
    fleet.status.registered = None;
    assert_eq!(fleet.rows(), [""; 0], "no API server answers");
}

#[test]
fn a_kubelet_that_does_not_register_takes_no_wave_from_the_others() {
    let mut fleet = Fleet::new(1, 2);
    fleet.status.registered.as_mut().unwrap().remove(B);
    fleet.rollout.failed.insert(B.to_owned(), "the node is not Ready".to_owned());
    assert_eq!(fleet.rows(), ["kubelet-restart: 10.0.0.2"], "nothing else is due");
    OLD.clone_into(&mut fleet.of(C, Component::Kubelet).container.to_mut().image);
    assert_eq!(fleet.rows(), ["kubelet-restart: 10.0.0.3", "held kubelet-restart wave: 10.0.0.2"]);
}

#[test]
fn stopped_kubelets_of_the_same_minor_version_start_during_the_roll_of_api_servers() {
    let mut fleet = Fleet::new(3, 1);
    fleet.outdate(Component::ApiServer);
    fleet.of(D, Component::Kubelet).container.to_mut().running = false;
    let held = "held kubelet-bootstrap api-servers-first: 10.0.0.4".to_owned();
    assert!(fleet.rows().contains(&held), "no version is known: {:?}", fleet.rows());
    fleet.status.wanted_version = Some("1.34.5".parse().unwrap());
    for (server, starts) in [("1.34.4", true), ("1.33.9", false)] {
        for address in [A, B, C] {
            fleet.status.versions.insert(Component::ApiServer, address, server.parse().unwrap());
        }
        let rows = fleet.rows();
        assert_eq!(rows.contains(&"kubelet-bootstrap: 10.0.0.4".to_owned()), starts, "{server}: {rows:?}");
    }
}

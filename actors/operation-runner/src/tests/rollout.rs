//! Tests of the states of the nodes in a wave of restarts of kubelets or proxies.

use madako_domain::component::Component;
use time::{Duration, OffsetDateTime};

use super::fleet::{Fleet, X};
use super::kubernetes::running;
use crate::kubernetes::held::KubernetesBlockedBy;
use crate::kubernetes::rollout::{ReadyNodes, WatchedState, is_rolled_out, watched_state};
use crate::kubernetes::row;

/// Time of the last report of each Ready node, in seconds.
const REPORT: i64 = 1_000;

fn state(change: impl FnOnce(&mut Fleet), ready: Option<&[&str]>) -> (WatchedState, bool) {
    state_of_kubelet(change, ready, false)
}

/// The state of the kubelet on a worker, and whether all kubelets are as wanted.
fn state_of_kubelet(
    change: impl FnOnce(&mut Fleet),
    ready: Option<&[&str]>,
    may_restart: bool,
) -> (WatchedState, bool) {
    let mut fleet = running();
    change(&mut fleet);
    let input = fleet.input();
    let (wanted, status) = (row::wanted(&input, fleet.kubernetes.as_ref().unwrap()), row::status(&input));
    let at = |time: i64| OffsetDateTime::from_unix_timestamp(time).unwrap();
    let ready: Option<ReadyNodes<'_>> =
        ready.map(|ready| ready.iter().map(|name| (*name, Some(at(REPORT)))).collect());
    let node = fleet.cluster.nodes.iter().find(|node| node.address == X).unwrap();
    let state = watched_state(&wanted, &status, ready.as_ref(), (Component::Kubelet, node), may_restart);
    let is_rolled_out = |component| is_rolled_out(&wanted, &status, component);
    assert!(is_rolled_out(Component::Proxy));
    (state, is_rolled_out(Component::Kubelet))
}

#[test]
fn a_node_is_good_while_it_is_ready_with_the_wanted_component() {
    assert_eq!(state(|_| {}, Some(&[X])), (WatchedState::Good, true));
    assert_eq!(state(|_| {}, None).0, WatchedState::Unknown);
    let bad = |why: &str| WatchedState::Bad(why.to_owned());
    assert_eq!(state(|_| {}, Some(&[])).0, bad("the node is not Ready"));
    assert_eq!(state(|fleet| fleet.node(X).reachable = false, Some(&[X])).0, bad("the node does not answer"));
    let stop = |fleet: &mut Fleet| drop(fleet.node(X).containers.remove("kubelet"));
    assert_eq!(state(stop, Some(&[X])).0, bad("kubelet does not run"));
    let fail = |fleet: &mut Fleet| {
        let answers = fleet.status.kubernetes.as_mut().unwrap();
        let health = answers.health.get_mut(X).unwrap();
        health.insert(Component::Kubelet, Err("silence".to_owned()));
    };
    assert_eq!(state(fail, Some(&[X])).0, bad("silence"));
    let start = |milliseconds: i64| {
        let started =
            OffsetDateTime::from_unix_timestamp(REPORT).unwrap() + Duration::milliseconds(milliseconds);
        let set = |fleet: &mut Fleet| {
            fleet.node(X).containers.get_mut("kubelet").unwrap().started_at = Some(started);
        };
        state(set, Some(&[X])).0
    };
    let unchecked = "no API server told whether containers restarted with the kubelet: none was asked yet";
    let unchecked = WatchedState::Unchecked(unchecked.to_owned());
    assert_eq!(start(999), unchecked, "a report has whole seconds");
    assert_eq!(start(1_000), bad("the kubelet has not reported since its start"));
    let outdate = |fleet: &mut Fleet| {
        fleet.node(X).containers.get_mut("kubelet").unwrap().image = "old:1".to_owned();
    };
    assert_eq!(state(outdate, Some(&[X])), (WatchedState::NotRestarted, false));
}

#[test]
fn a_node_whose_containers_restarted_with_the_kubelet_is_bad_unless_that_is_wanted() {
    let answer = |restarted: Result<Vec<String>, String>, may_restart: bool| {
        let note = |fleet: &mut Fleet| {
            let answers = fleet.status.kubernetes.as_mut().unwrap();
            answers.restarted.insert(X.to_owned(), restarted);
        };
        state_of_kubelet(note, Some(&[X]), may_restart).0
    };
    let names = |count: usize| Ok((0..count).map(|number| format!("a/p{number}/c")).collect());
    assert_eq!(answer(names(0), false), WatchedState::Good);
    let why = "5 containers restarted with the kubelet, among them a/p0/c, a/p1/c, a/p2/c";
    assert_eq!(answer(names(5), false), WatchedState::Bad(why.to_owned()));
    assert_eq!(answer(names(5), true), WatchedState::Good);
    let why = "no API server told whether containers restarted with the kubelet: silence";
    assert_eq!(answer(Err("silence".to_owned()), false), WatchedState::Unchecked(why.to_owned()));
    assert_eq!(answer(Err("silence".to_owned()), true), WatchedState::Good);
}

#[test]
fn the_wait_for_a_wave_names_the_reason_for_which_its_containers_are_not_known() {
    let mut fleet = running();
    let held = |fleet: &Fleet| {
        let status = row::status(&fleet.input());
        let unchecked = status.unchecked_containers().cloned();
        KubernetesBlockedBy::WaveWatched { nodes: vec![X.to_owned()], unchecked }.to_string()
    };
    assert!(!held(&fleet).contains("containers"));
    let answers = fleet.status.kubernetes.as_mut().unwrap();
    answers.restarted.insert(X.to_owned(), Err("more than the limit".to_owned()));
    assert!(held(&fleet).ends_with("whether containers restarted with them: more than the limit"));
}

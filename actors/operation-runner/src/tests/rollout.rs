//! The states of the nodes of a wave.

use std::collections::BTreeSet;

use madako_domain::component::Component;

use super::fleet::{Fleet, X};
use super::kubernetes::running;
use crate::kubernetes::rollout::{WatchedState, is_rolled_out, watched_state};
use crate::kubernetes::row;

/// The state of the kubelet on a worker, and whether all kubelets and proxies are as wanted.
fn state(change: impl FnOnce(&mut Fleet), ready: Option<&[&str]>) -> (WatchedState, bool) {
    let mut fleet = running();
    change(&mut fleet);
    let input = fleet.input();
    let (wanted, status) = (row::wanted(&input, fleet.kubernetes.as_ref().unwrap()), row::status(&input));
    let ready: Option<BTreeSet<String>> =
        ready.map(|ready| ready.iter().map(|name| (*name).to_owned()).collect());
    let node = fleet.cluster.nodes.iter().find(|node| node.address == X).unwrap();
    let state = watched_state(&wanted, &status, ready.as_ref(), (Component::Kubelet, node));
    (state, is_rolled_out(&wanted, &status))
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
    let outdate = |fleet: &mut Fleet| {
        fleet.node(X).containers.get_mut("kubelet").unwrap().image = "old:1".to_owned();
    };
    assert_eq!(state(outdate, Some(&[X])), (WatchedState::NotRestarted, false));
}

//! Tests of the page `/nodes`, which shows the state of each node.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::containers::Container;
use madako_domain::host_key::{HostKey, PinnedKey};
use madako_domain::state::ClusterState;
use time::OffsetDateTime;

use super::fleet::{A, B, C, Fleet, X};
use crate::stories::{NodeStories, NodeStory, StoryContext, describe_nodes};

const SINCE: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

/// The stories of a fleet. Every node has its state since [`SINCE`].
fn told(fleet: &Fleet, state: &ClusterState, errors: &[(&str, &str)]) -> NodeStories {
    let errors: BTreeMap<String, String> =
        errors.iter().map(|(node, error)| ((*node).to_owned(), (*error).to_owned())).collect();
    let decision = fleet.decide();
    let since = |_: &str, _: bool| Some(SINCE);
    describe_nodes(
        &fleet.input(),
        &StoryContext { state, decision: &decision, errors: &errors, since: &since },
    )
}

fn story(fleet: &Fleet, node: &str) -> NodeStory {
    told(fleet, &ClusterState::default(), &[]).remove(node).unwrap()
}

#[test]
fn a_node_as_wanted_has_containers_member_and_certificates_without_reasons() {
    let mut fleet = Fleet::running();
    fleet.certificates(A, &[("server.crt", 300)]);
    let story = story(&fleet, A);
    assert!(story.reachable && story.control_plane && !story.stale && !story.backing_off);
    assert_eq!((story.since, &story.error, story.held.as_slice()), (Some(SINCE), &None, &[][..]));
    assert_eq!(story.containers.keys().collect::<Vec<_>>(), ["etcd", "etcd-rivers", "rivers"]);
    assert!(story.containers.values().all(|it| it.running && !it.foreign && it.outdated.is_empty()));
    let member = story.etcd.unwrap();
    assert_eq!((member.id.as_str(), member.learner, member.in_sync), ("101", false, Some(true)));
    let validity = &story.certificates["server.crt"];
    assert_eq!((validity.not_after - validity.not_before).whole_days(), 365);
}

#[test]
fn each_outdated_container_has_its_reasons() {
    let mut fleet = Fleet::running();
    fleet.container(A, Container::Etcd).builtin.args.push("--old".to_owned());
    fleet.container(A, Container::Rivers).foreign = true;
    fleet.container(A, Container::Rivers).image = "other:1".to_owned();
    fleet.stop(A, Container::EtcdRivers);
    fleet.container(A, Container::EtcdRivers).image = "old".to_owned();
    let story = story(&fleet, A);
    assert_eq!(story.containers["etcd"].outdated, ["the argument --old is not wanted"]);
    let foreign = &story.containers["rivers"];
    assert!(foreign.foreign && foreign.outdated.is_empty());
    let stopped = &story.containers["etcd-rivers"];
    assert!(!stopped.running && stopped.outdated.is_empty(), "a start makes it anew");
}

#[test]
fn held_operations_are_listed_once_on_each_of_their_nodes() {
    let mut fleet = Fleet::running();
    fleet.lose(X);
    fleet.container(A, Container::Etcd).image = "old".to_owned();
    fleet.backing_off.insert(A.to_owned());
    fleet.members(&[(A, '+'), (B, '+'), (C, '?')]);
    let stories = told(&fleet, &ClusterState::default(), &[(X, "no TCP connection")]);
    let held = |node: &str| -> Vec<String> {
        stories[node].held.iter().map(|held| format!("{} {}", held.what, held.reason)).collect()
    };
    assert_eq!(held(X), ["rivers-bootstrap unreachable"]);
    assert_eq!(held(B), [""; 0]);
    assert!(held(A).iter().any(|held| held.starts_with("etcd-restart ")), "{:?}", held(A));
    assert_eq!(stories[X].error.as_deref(), Some("no TCP connection"));
    assert!(!stories[X].reachable && stories[X].containers.is_empty());
    assert!(stories[A].backing_off);
    assert!(stories[X].held[0].why.contains("do not answer"));
}

#[test]
fn pinned_host_keys_and_data_from_before_a_restore_are_reported() {
    let mut fleet = Fleet::running();
    fleet.stale.insert(B.to_owned());
    let host_key = HostKey { key: "ssh-ed25519 AAAA".to_owned(), fingerprint: "SHA256:x".to_owned() };
    let pinned = PinnedKey { serial: "s".to_owned(), host_key, pinned_at: Some(SINCE) };
    let state =
        ClusterState { host_keys: Arc::new([(A.to_owned(), (pinned, 1))].into()), ..ClusterState::default() };
    let stories = told(&fleet, &state, &[]);
    let pinned = stories[A].host_key.as_ref().unwrap();
    assert_eq!((pinned.fingerprint.as_str(), pinned.pinned_at), ("SHA256:x", Some(SINCE)));
    assert!(stories[B].host_key.is_none() && stories[B].stale && !stories[A].stale);
}

#[test]
fn the_page_is_read_as_it_was_written_and_without_fields_of_later_versions() {
    let mut fleet = Fleet::running();
    fleet.certificates(A, &[("server.crt", 300)]);
    let stories = told(&fleet, &ClusterState::default(), &[]);
    let text = serde_json::to_string(&stories).unwrap();
    assert_eq!(serde_json::from_str::<NodeStories>(&text).unwrap(), stories);
    let later: NodeStories =
        serde_json::from_str(r#"{"10.0.0.1": {"reachable": true, "later": 1}}"#).unwrap();
    assert!(later["10.0.0.1"].reachable);
}

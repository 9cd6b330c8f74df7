//! Tests of the simulated etcd after members are removed, lost, or lose their data.

use super::*;
use crate::nodes::{Content, NodeFault, NodePlace};

#[tokio::test(start_paused = true)]
async fn a_removed_member_ends_and_does_not_start_on_its_data() {
    let fleet = Fleet::bootstrapped(3).await;
    let address = fleet.all[0].as_str();
    let id = fleet.members().await.iter().find(|member| member.name == address).unwrap().id;
    let etcd = fleet.nodes.etcd_port();
    etcd.remove(&permit(), &fleet.all, id).await.unwrap();
    etcd.remove(&permit(), &fleet.all, id).await.unwrap();
    assert!(!fleet.runs(address) && fleet.members().await.len() == 2);
    fleet.start(address, &Initial::None).await.unwrap();
    sleep(A_WHILE).await;
    assert!(!fleet.runs(address));
    let removals = fleet.facts().iter().filter(|fact| matches!(fact, EtcdFact::Removed { .. })).count();
    assert_eq!(removals, 1);
}

#[tokio::test(start_paused = true)]
async fn etcd_removes_no_member_that_its_majority_needs() {
    let fleet = Fleet::bootstrapped(3).await;
    let members = fleet.members().await;
    let id = |address: &String| members.iter().find(|member| member.name == *address).unwrap().id;
    fleet.nodes.begin(&NodePlace::Address(fleet.all[2].clone()), NodeFault::Kill);
    let etcd = fleet.nodes.etcd_port();
    let refused = etcd.remove(&permit(), &fleet.all, id(&fleet.all[0])).await;
    assert!(matches!(refused, Err(EtcdError::Refused { .. })), "{refused:?}");
    etcd.remove(&permit(), &fleet.all, id(&fleet.all[2])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_running_voter_that_an_effect_ends_is_a_fact() {
    let fleet = Fleet::bootstrapped(3).await;
    let mut reported = Vec::new();
    for address in &fleet.all[..2] {
        fleet.stop(address).await;
        fleet.stop(address).await;
    }
    for fact in fleet.facts() {
        if let EtcdFact::VoterLost { effect, voting, others, had_quorum, .. } = fact {
            let in_sync = others.iter().filter(|voter| voter.out_of_sync.is_none()).count();
            reported.push((effect.address, effect.epoch, (voting, others.len(), in_sync), had_quorum));
        }
    }
    let [one, two] = [fleet.all[0].clone(), fleet.all[1].clone()];
    assert_eq!(reported, [(one, 5, (3, 2, 2), true), (two, 5, (3, 2, 1), true)]);
}

#[tokio::test(start_paused = true)]
async fn a_member_without_its_data_cannot_return() {
    let fleet = Fleet::bootstrapped(3).await;
    let address = &fleet.all[0];
    for initial in [Initial::New(&fleet.all), Initial::Existing(&fleet.all)] {
        fleet.stop(address).await;
        fleet.remove_data(address).await;
        fleet.start(address, &initial).await.unwrap();
        sleep(A_WHILE).await;
        assert!(!fleet.runs(address));
        assert_eq!(fleet.nodes.view_node(address).unwrap().volumes[VOLUME], Content::Empty);
    }
    let facts = fleet.facts();
    assert!(!facts.iter().any(|fact| matches!(fact, EtcdFact::Initialised { again: true, .. })));
    let removals = facts.iter().filter(|fact| matches!(fact, EtcdFact::DataRemoved { is_voting: true, .. }));
    assert_eq!(removals.count(), 1, "the second volume was empty");
}

#[tokio::test(start_paused = true)]
async fn a_majority_on_new_volumes_lacks_acknowledged_writes() {
    let fleet = Fleet::bootstrapped(3).await;
    for number in 1..=4 {
        assert_eq!(fleet.nodes.write(&fleet.all).await.unwrap().number, number);
    }
    for address in &fleet.all {
        fleet.stop(address).await;
    }
    for address in &fleet.all[..2] {
        fleet.remove_data(address).await;
        fleet.start(address, &Initial::New(&fleet.all)).await.unwrap();
    }
    sleep(A_WHILE).await;
    let facts = fleet.facts();
    let count = |is: fn(&EtcdFact) -> bool| facts.iter().filter(|fact| is(fact)).count();
    assert_eq!(count(|fact| matches!(fact, EtcdFact::Initialised { again: true, .. })), 2);
    let lost = |fact: &EtcdFact| matches!(fact, EtcdFact::WriteLost { acknowledged: 4, kept: 0, .. });
    assert_eq!(count(lost), 1);
}

#[tokio::test(start_paused = true)]
async fn a_majority_that_overlaps_keeps_acknowledged_writes() {
    let fleet = Fleet::bootstrapped(3).await;
    // Each write has another majority.
    for (number, down) in (1..=6).zip(fleet.all.iter().cycle()) {
        fleet.stop(down).await;
        assert_eq!(fleet.nodes.write(&fleet.all).await.unwrap().number, number);
        fleet.start(down, &Initial::None).await.unwrap();
        sleep(A_WHILE).await;
    }
    assert!(!fleet.facts().iter().any(|fact| matches!(fact, EtcdFact::WriteLost { .. })));
}

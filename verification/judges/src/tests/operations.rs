//! Tests of the promises about operations on nodes.

use serde_json::json;

use super::*;
use crate::{EffectStage, EtcdFact, Exemption, NodeEffect, Voter};

fn effect(number: u64, epoch: i64) -> NodeEffect {
    let what = "stop of the container etcd".to_owned();
    NodeEffect { number, epoch, address: address(1), what, outlives_permit: false }
}

impl Tape {
    fn etcd(&mut self, fact: EtcdFact) {
        self.tell(Fact::Etcd(fact));
    }

    fn stage(&mut self, effect: &NodeEffect, stage: EffectStage) {
        self.tell(Fact::Effect { effect: effect.clone(), stage });
    }

    /// An effect stops the member 1. The others have the numbers from 2 on, and these times out of sync.
    fn stop(&mut self, voting: usize, others: &[Option<u64>], had_quorum: bool) {
        let voter = |(member, age): (u64, &Option<u64>)| Voter { member, out_of_sync: age.map(seconds) };
        let others = (2..).zip(others).map(voter).collect();
        let effect = effect(1, 1);
        self.stage(&effect, EffectStage::Began);
        let lost =
            EtcdFact::VoterLost { effect: effect.clone(), cluster: 1, member: 1, voting, others, had_quorum };
        self.later(1).etcd(lost);
        self.stage(&effect, EffectStage::Happened);
    }
}

#[test]
fn a_command_leaves_a_majority_of_the_voting_members_in_sync() {
    judges(Promise::QuorumKept, |tape, spoiled| {
        let third = spoiled.then_some(600);
        tape.later(900).announce(0, 0);
        tape.stop(3, &[None, third], true);
    });
    // A removed member does not vote.
    judges(Promise::QuorumKept, |tape, spoiled| {
        tape.stop(if spoiled { 2 } else { 1 }, &[None], true);
    });
}

#[test]
fn a_restart_that_an_operator_asked_for_is_not_judged() {
    let restarted = |request: &str, is_under_way: bool| {
        let mut tape = Tape::new();
        tape.put(&[(&keys::etcd_restart(request), json!({}))]);
        let record = |status: &str| {
            json!({
                "id": "7", "status": status, "operation": "etcd-restart", "targets": [address(1)],
                "command": {"name": "stop-container", "target": "etcd"}, "info": "", "error": "",
                "start-at": "2026-01-01T00:00:00Z", "end-at": "0001-01-01T00:00:00Z",
            })
        };
        tape.put(&[(&keys::record(7), record("running")), (&keys::etcd_restart(request), Value::Null)]);
        if !is_under_way {
            tape.later(1).put(&[(&keys::record(7), record("completed"))]);
        }
        tape.later(1).stop(1, &[], true);
        tape
    };
    assert_eq!(restarted(&address(1), true).of(Promise::QuorumKept), (0, 0));
    restarted(&address(2), true).breaks(Promise::QuorumKept);
    restarted(&address(1), false).breaks(Promise::QuorumKept);
}

#[test]
fn without_a_majority_before_a_command_nothing_is_judged() {
    let mut tape = Tape::new();
    tape.stop(3, &[Some(600), Some(600)], false);
    assert_eq!(tape.of(Promise::QuorumKept), (0, 0));
}

#[test]
fn a_member_that_fails_after_the_announcement_of_a_command_is_excused_unless_an_effect_stopped_it() {
    let story = |age: u64, by_effect: bool| {
        let mut tape = Tape::new();
        tape.later(10).announce(0, 0);
        tape.later(1);
        if by_effect {
            let (effect, others) = (effect(7, 1), vec![Voter { member: 1, out_of_sync: None }; 2]);
            let (cluster, member, voting, had_quorum) = (1, 2, 3, true);
            tape.etcd(EtcdFact::VoterLost { effect, cluster, member, voting, others, had_quorum });
        }
        tape.later(1).stop(3, &[Some(age), None], true);
        tape
    };
    let failed = story(3, false);
    failed.keeps(Promise::QuorumKept);
    let uses = failed.oracle.exemptions().list_uses();
    let under_way = uses.iter().find(|(exemption, _)| *exemption == Exemption::UnderWay).unwrap().1;
    assert_eq!((under_way.uses, under_way.longest_seconds), (1, Some(3)));
    story(3 + TERMS.tolerance.as_secs(), false).keeps(Promise::QuorumKept);
    story(4 + TERMS.tolerance.as_secs(), false).breaks(Promise::QuorumKept);
    story(3, true).breaks(Promise::QuorumKept);
    let mut unknown = Tape::new();
    unknown.later(10).stop(3, &[Some(9), None], true);
    unknown.breaks(Promise::QuorumKept);
}

#[test]
fn one_cluster_of_etcd_is_formed() {
    judges(Promise::OneEtcd, |tape, spoiled| {
        tape.etcd(EtcdFact::Formed { cluster: 1 });
        if spoiled {
            tape.etcd(EtcdFact::Formed { cluster: 2 });
        }
    });
}

#[test]
fn data_are_initialised_once() {
    judges(Promise::InitialisedOnce, |tape, spoiled| {
        for member in [1, if spoiled { 1 } else { 2 }] {
            tape.etcd(EtcdFact::Initialised { cluster: 1, member, address: address(1) });
        }
    });
}

#[test]
fn data_are_removed_after_their_member() {
    judges(Promise::VoterDataKept, |tape, spoiled| {
        let fact =
            |is_voting| EtcdFact::DataRemoved { effect: effect(1, 1), cluster: 1, member: 1, is_voting };
        tape.etcd(fact(false));
        tape.etcd(fact(spoiled));
    });
}

#[test]
fn lost_acknowledged_write_of_etcd_breaks_its_promise() {
    judges(Promise::WritesKept, |tape, spoiled| {
        tape.etcd(EtcdFact::Acknowledged { cluster: 1, write: 4 });
        tape.etcd(EtcdFact::Acknowledged { cluster: 2, write: 9 });
        tape.etcd(EtcdFact::Kept { cluster: 1, write: if spoiled { 3 } else { 4 } });
        // The loss is reported once.
        tape.etcd(EtcdFact::Kept { cluster: 1, write: 3 + u64::from(!spoiled) });
    });
}

#[test]
fn effects_follow_the_order_of_their_epochs() {
    judges(Promise::EpochsInOrder, |tape, spoiled| {
        let (old, new) = (effect(1, 1), effect(2, 2));
        let pull = NodeEffect { outlives_permit: true, ..effect(3, 1) };
        tape.stage(&old, EffectStage::Began);
        tape.stage(&new, EffectStage::Happened);
        tape.stage(&pull, EffectStage::Happened);
        tape.stage(&old, if spoiled { EffectStage::Happened } else { EffectStage::Dropped });
    });
}

#[test]
fn a_pinned_key_changes_only_with_the_serial() {
    let key = |serial: &str, key: &str| json!({"serial": serial, "key": key, "fingerprint": key});
    let name = keys::host_key(&address(1));
    let name = name.as_str();
    judges(Promise::HostKeyKept, |tape, spoiled| {
        tape.put(&[(name, key("s", "one"))]);
        tape.put(&[(name, key("t", "two"))]);
        tape.put(&[(name, Value::Null)]);
        tape.put(&[(name, key("t", "three"))]);
        tape.put(&[(name, key("", if spoiled { "four" } else { "three" }))]);
    });
}

impl Tape {
    /// The restore number `number` begins.
    fn restore(&mut self, number: u32) {
        let restored = json!({
            "address": address(1), "path": "/a", "requested_at": format!("2026-01-01T00:00:{number:02}Z"),
            "began_at": "2026-01-01T00:01:00Z", "stale": [],
        });
        self.put(&[(keys::ETCD_RESTORED, restored)]);
    }
}

#[test]
fn a_restore_begins_without_a_majority() {
    judges(Promise::LossProved, |tape, spoiled| {
        tape.etcd(EtcdFact::Formed { cluster: 1 });
        tape.etcd(EtcdFact::Silent { cluster: 1 });
        tape.restore(1);
        tape.etcd(EtcdFact::Formed { cluster: 2 });
        // The former members are back.
        tape.etcd(EtcdFact::Kept { cluster: 1, write: 0 });
        if !spoiled {
            tape.etcd(EtcdFact::Silent { cluster: 2 });
        }
        tape.restore(2);
    });
}

#[test]
fn a_restore_replaces_the_clusters_before_it() {
    judges(Promise::OneEtcd, |tape, spoiled| {
        tape.etcd(EtcdFact::Formed { cluster: 1 });
        if !spoiled {
            tape.restore(1);
        }
        tape.etcd(EtcdFact::Formed { cluster: 2 });
    });
    let removed = |tape: &mut Tape, cluster| {
        tape.etcd(EtcdFact::DataRemoved { effect: effect(1, 1), cluster, member: 1, is_voting: true });
    };
    judges(Promise::VoterDataKept, |tape, spoiled| {
        tape.etcd(EtcdFact::Formed { cluster: 1 });
        tape.restore(1);
        tape.etcd(EtcdFact::Formed { cluster: 2 });
        removed(tape, if spoiled { 2 } else { 1 });
    });
    let stopped = |before: bool| {
        let mut tape = Tape::new();
        if before {
            tape.etcd(EtcdFact::Formed { cluster: 1 });
        }
        tape.restore(1);
        tape.stop(3, &[Some(600), Some(600)], true);
        tape
    };
    assert_eq!(stopped(true).of(Promise::QuorumKept), (0, 0));
    stopped(false).breaks(Promise::QuorumKept);
}

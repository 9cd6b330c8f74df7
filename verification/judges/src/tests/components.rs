//! Promises about the components of Kubernetes.

use serde_json::{Value, json};

use super::*;
use crate::{ComponentFact, EffectStage, NodeEffect};

fn effect(number: u64) -> NodeEffect {
    let what = "stop of the container".to_owned();
    NodeEffect { number, epoch: 1, address: address(1), what, outlives_permit: false }
}

impl Tape {
    /// An effect ends the API server 1, which was healthy for an hour. The others have these times of being unhealthy.
    fn end_server(&mut self, others: &[(u32, Option<u64>)]) {
        self.end_server_healthy_for(3600, others);
    }

    fn end_server_healthy_for(&mut self, healthy_for: u64, others: &[(u32, Option<u64>)]) {
        self.tell(Fact::Effect { effect: effect(1), stage: EffectStage::Began });
        let others = others.iter().map(|(number, age)| (address(*number), age.map(seconds)));
        let ended = ComponentFact::ApiServerEnded {
            effect: effect(1),
            healthy_for: seconds(healthy_for),
            others: others.collect(),
            is_ready: false,
        };
        self.later(1).tell(Fact::Component(ended));
    }

    fn start_kubelet(&mut self, taints: Option<&[&str]>) {
        let taints = taints.map(|taints| taints.iter().map(|taint| (*taint).to_owned()).collect());
        let started = ComponentFact::KubeletStarted { effect: effect(2), node: address(4), taints };
        self.tell(Fact::Component(started));
    }
}

#[test]
fn a_healthy_api_server_ends_only_while_the_others_are_healthy() {
    judges(Promise::ApiKept, |tape, spoiled| {
        tape.end_server(&[(2, None), (3, spoiled.then_some(600)), (9, Some(600))]);
    });
    // A control plane node without an API server.
    judges(Promise::ApiKept, |tape, spoiled| {
        let all = [(2, None), (3, None)];
        tape.end_server(if spoiled { &all[..1] } else { &all });
    });
}

#[test]
fn an_api_server_ends_only_out_of_its_endpoints() {
    judges(Promise::EndpointsWithdrawn, |tape, is_spoiled| {
        let ended = |other: Option<u64>, healthy_for: u64, is_ready: bool| ComponentFact::ApiServerEnded {
            effect: effect(1),
            healthy_for: seconds(healthy_for),
            others: [(address(2), other.map(seconds))].into(),
            is_ready,
        };
        // It is the only one, or the decision may have found it not healthy.
        tape.tell(Fact::Component(ended(Some(600), 3600, true)));
        tape.tell(Fact::Component(ended(None, 10, true)));
        tape.tell(Fact::Component(ended(None, 3600, is_spoiled)));
    });
}

#[test]
fn an_address_is_ready_while_an_api_server_is_healthy() {
    judges(Promise::EndpointsKept, |tape, is_spoiled| {
        for (is_ready, healthy_for) in
            [(true, Some(3600)), (false, None), (false, Some(10)), (!is_spoiled, Some(3600))]
        {
            let healthy_for = healthy_for.map(seconds);
            tape.tell(Fact::Component(ComponentFact::EndpointsChanged { is_ready, healthy_for }));
        }
    });
}

#[test]
fn a_node_reboots_after_its_api_server_ended() {
    judges(Promise::EndedBeforeReboot, |tape, is_spoiled| {
        let rebooted = ComponentFact::Rebooted { address: address(1), has_server: is_spoiled };
        tape.tell(Fact::Component(rebooted));
    });
}

#[test]
fn an_api_server_becomes_ready_after_it_served() {
    judges(Promise::ServedBeforeReady, |tape, is_spoiled| {
        let ready = ComponentFact::ServerReady { address: address(1), has_served: !is_spoiled };
        tape.tell(Fact::Component(ready));
    });
}

#[test]
fn a_server_that_fails_after_the_check_is_exempt() {
    let ended = |age: u64| {
        let mut tape = Tape::new();
        tape.later(900).announce(0, 0);
        tape.end_server(&[(2, None), (3, Some(age))]);
        tape
    };
    assert_eq!(ended(3).of(Promise::ApiKept), (1, 0));
    assert_eq!(ended(3).used(Exemption::UnderWay).uses, 1);
    ended(60).breaks(Promise::ApiKept);
}

#[test]
fn a_server_that_becomes_healthy_after_the_check_is_exempt() {
    let ended = |healthy_for: u64| {
        let mut tape = Tape::new();
        tape.later(900).announce(0, 0);
        tape.end_server_healthy_for(healthy_for, &[(2, None), (3, Some(600))]);
        tape
    };
    assert_eq!(ended(1).of(Promise::ApiKept), (1, 0));
    assert_eq!(ended(1).used(Exemption::UnderWay).uses, 1);
    ended(60).breaks(Promise::ApiKept);
}

#[test]
fn a_kubelet_of_a_registered_node_starts_with_its_boot_taints() {
    let taint = json!({"key": "a", "value": "b", "effect": "NoExecute"});
    let node = json!({"address": address(4), "control_plane": false, "user": "u"});
    let options = json!({"kubelet": {"boot_taints": [taint]}});
    let cluster = json!({"name": "c", "nodes": [node], "options": options});
    judges(Promise::BootTaintsFirst, |tape, spoiled| {
        tape.put(&[(keys::CLUSTER, cluster.clone())]);
        // A node that is not registered gets them by its kubelet.
        tape.start_kubelet(None);
        tape.start_kubelet(Some(if spoiled {
            &["a=:NoExecute"]
        } else {
            &["a=b:NoExecute", "c=:NoSchedule"]
        }));
    });
}

impl Tape {
    /// A component starts at a minor version beside API servers that are healthy for an hour, and kubelets.
    fn change_image(&mut self, component: &'static str, minor: u64, servers: [u64; 3], on_nodes: u64) {
        let server = |(number, minor): (u32, u64)| (address(number), (minor, seconds(3600)));
        let changed = ComponentFact::ImageChanged {
            effect: effect(3),
            component,
            minor,
            servers: (1..=3).zip(servers).map(server).collect(),
            oldest_on_nodes: Some(on_nodes),
        };
        self.later(1).tell(Fact::Component(changed));
    }
}

#[test]
fn components_start_only_at_versions_that_the_policy_allows() {
    for (component, good, bad) in [
        // No step over a minor version, and none back.
        ("kube-apiserver", 31, 32),
        ("kube-apiserver", 30, 29),
        ("kube-scheduler", 30, 31),
        ("kubelet", 27, 26),
        ("kubelet", 30, 31),
    ] {
        judges(Promise::VersionsAllowed, |tape, spoiled| {
            tape.change_image(component, if spoiled { bad } else { good }, [30; 3], 28);
        });
    }
    judges(Promise::VersionsAllowed, |tape, spoiled| {
        tape.change_image("kube-apiserver", 31, [30; 3], if spoiled { 27 } else { 28 });
    });
    judges(Promise::VersionsAllowed, |tape, spoiled| {
        tape.change_image("kube-proxy", 31, if spoiled { [31, 31, 30] } else { [31; 3] }, 30);
    });
}

impl Tape {
    fn put_rollout(&mut self, watched: &[u32], failed: &[u32], halted: bool) {
        let named = |numbers: &[u32], value: &str| -> serde_json::Map<String, Value> {
            numbers.iter().map(|number| (address(*number), json!(value))).collect()
        };
        let rollout = json!({
            "image": "k:1", "watched": named(watched, "kubelet"), "failed": named(failed, "x"),
            "halted": halted, "paused": false,
        });
        self.put(&[(keys::ROLLOUT, rollout)]);
    }

    /// An effect restarts the kubelet of node 1, while others do not serve since their restarts these seconds ago.
    fn restart_kubelet(&mut self, unready: &[(u32, u64)]) {
        self.tell(Fact::Effect { effect: effect(4), stage: EffectStage::Began });
        let unready = unready.iter().map(|(number, age)| (address(*number), seconds(*age)));
        let restarted =
            ComponentFact::Restarted { effect: effect(4), component: "kubelet", unready: unready.collect() };
        self.later(1).tell(Fact::Component(restarted));
    }
}

#[test]
fn no_kubelet_restarts_after_three_failed() {
    judges(Promise::RollHalts, |tape, spoiled| {
        tape.later(900).restart_kubelet(&[(4, 300), (5, 60), (6, if spoiled { 31 } else { 2 })]);
    });
    // An operator resumed the roll after the failures.
    judges(Promise::RollHalts, |tape, spoiled| {
        tape.put_rollout(&[], &[], false);
        tape.later(900).put_rollout(&[], &[4, 5, 6], true);
        if !spoiled {
            tape.put_rollout(&[], &[], false);
        }
        tape.later(60).restart_kubelet(&[(4, 300), (5, 200), (6, 100), (7, if spoiled { 40 } else { 50 })]);
    });
}

#[test]
fn a_kubelet_restarts_in_the_present_wave() {
    judges(Promise::WaveKept, |tape, spoiled| {
        tape.later(900).put_rollout(if spoiled { &[] } else { &[1] }, &[4], false);
        tape.later(60).restart_kubelet(&[(4, 300)]);
    });
    judges(Promise::WaveKept, |tape, spoiled| {
        tape.later(900).put_rollout(&[1], if spoiled { &[] } else { &[4] }, false);
        tape.later(60).restart_kubelet(&[(4, 50)]);
    });
    judges(Promise::WaveKept, |tape, spoiled| {
        tape.later(900).put_rollout(if spoiled { &[1, 2] } else { &[1] }, &[], false);
        tape.later(60).restart_kubelet(&[]);
    });
}

//! Converts events of the simulated nodes and their etcd into facts for the judges.

use madako_datacenter_sim::nodes::{self, Observed};
use madako_domain::cluster::Taint;
use madako_judges::{ComponentFact, EffectStage, EtcdFact, Fact, NodeEffect, Voter};

/// The fact for judges; `None` if no promise depends on it.
#[must_use]
pub fn fact_of_node(what: &Observed) -> Option<Fact> {
    let (effect, stage) = match what {
        Observed::Began(effect) => (effect, EffectStage::Began),
        Observed::Applied { effect, .. } => (effect, EffectStage::Happened),
        Observed::Dropped { effect, .. } => (effect, EffectStage::Dropped),
        Observed::Etcd(fact) => return fact_of_etcd(fact).map(Fact::Etcd),
        Observed::Kubernetes(fact) => return Some(Fact::Component(fact_of_components(fact))),
    };
    Some(Fact::Effect { effect: node_effect_of(effect), stage })
}

fn node_effect_of(effect: &nodes::Effect) -> NodeEffect {
    NodeEffect {
        number: effect.number,
        epoch: effect.epoch,
        address: effect.address.clone(),
        what: effect.what.clone(),
        outlives_permit: effect.outlives_permit,
    }
}

fn fact_of_components(fact: &nodes::KubernetesFact) -> ComponentFact {
    use nodes::KubernetesFact as Seen;
    match fact {
        Seen::ApiServerEnded { effect, healthy_for, others, is_ready } => ComponentFact::ApiServerEnded {
            effect: node_effect_of(effect),
            healthy_for: *healthy_for,
            others: others.clone(),
            is_ready: *is_ready,
        },
        Seen::Rebooted { address, has_server } => {
            ComponentFact::Rebooted { address: address.clone(), has_server: *has_server }
        }
        Seen::EndpointsChanged { is_ready, healthy_for } => {
            ComponentFact::EndpointsChanged { is_ready: *is_ready, healthy_for: *healthy_for }
        }
        Seen::ServerReady { address, has_served } => {
            ComponentFact::ServerReady { address: address.clone(), has_served: *has_served }
        }
        Seen::KubeletStarted { effect, node, taints } => {
            let text = |taint: &Taint| format!("{}={}:{}", taint.key, taint.value, taint.effect);
            ComponentFact::KubeletStarted {
                effect: node_effect_of(effect),
                node: node.clone(),
                taints: taints.as_ref().map(|taints| taints.iter().map(text).collect()),
            }
        }
        Seen::ImageChanged { effect, component, minor, servers, oldest_on_nodes } => {
            ComponentFact::ImageChanged {
                effect: node_effect_of(effect),
                component: component.name(),
                minor: *minor,
                servers: servers.clone(),
                oldest_on_nodes: *oldest_on_nodes,
            }
        }
        Seen::Restarted { effect, component, unready } => ComponentFact::Restarted {
            effect: node_effect_of(effect),
            component: component.name(),
            unready: unready.clone(),
        },
    }
}

fn fact_of_etcd(fact: &nodes::EtcdFact) -> Option<EtcdFact> {
    use nodes::EtcdFact as Seen;
    Some(match fact {
        Seen::Formed { cluster, .. } => EtcdFact::Formed { cluster: *cluster },
        Seen::Initialised { cluster, member, address, .. } => {
            EtcdFact::Initialised { cluster: *cluster, member: *member, address: address.clone() }
        }
        Seen::Written { cluster, number } => EtcdFact::Acknowledged { cluster: *cluster, write: *number },
        Seen::QuorumRegained { cluster, kept } | Seen::WriteLost { cluster, kept, .. } => {
            EtcdFact::Kept { cluster: *cluster, write: *kept }
        }
        Seen::VoterLost { effect, cluster, member, voting, others, had_quorum } => {
            let voter = |voter: &nodes::Voter| Voter { member: voter.member, out_of_sync: voter.out_of_sync };
            EtcdFact::VoterLost {
                effect: node_effect_of(effect),
                cluster: *cluster,
                member: *member,
                voting: *voting,
                others: others.iter().map(voter).collect(),
                had_quorum: *had_quorum,
            }
        }
        Seen::DataRemoved { effect, cluster, member, is_voting } => EtcdFact::DataRemoved {
            effect: node_effect_of(effect),
            cluster: *cluster,
            member: *member,
            is_voting: *is_voting,
        },
        Seen::QuorumLost { cluster } => EtcdFact::Silent { cluster: *cluster },
        Seen::Added { .. }
        | Seen::Promoted { .. }
        | Seen::Removed { .. }
        | Seen::Exited { .. }
        | Seen::AuthenticationOn { .. } => return None,
    })
}

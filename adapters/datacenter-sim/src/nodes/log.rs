//! Records effects on simulated nodes and changes of their etcd, from which the judges of a simulation check the
//! promises to operators.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use madako_domain::cluster::Taint;
use madako_domain::component::Component;

use super::limits::MAX_FACTS;

/// An effect of an instance: an action on a node, or a change of the members of etcd.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effect {
    /// Number of the effect, in the order of the beginnings.
    pub number: u64,
    pub epoch: i64,
    /// Address of the node; for a change of etcd the first asked address.
    pub address: String,
    /// The action or change, as text without secrets.
    pub what: String,
    /// The effect may happen after the end of its permit.
    pub outlives_permit: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFact {
    /// Number of the fact, from 0, without gaps.
    pub number: u64,
    /// Time since the beginning of the world.
    pub at: Duration,
    pub what: Observed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed {
    /// An instance sent an effect with a valid permit.
    Began(Effect),
    /// The effect happened, or failed on the node with this message.
    Applied {
        effect: Effect,
        failed: Option<String>,
    },
    /// The effect will never happen.
    Dropped {
        effect: Effect,
        why: String,
    },
    Etcd(EtcdFact),
    Kubernetes(KubernetesFact),
}

/// A change of Kubernetes' components, or of the Endpoints of API servers, by an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubernetesFact {
    /// An effect ended a healthy API server.
    ApiServerEnded {
        effect: Effect,
        /// Time for which the API server was healthy.
        healthy_for: Duration,
        /// Addresses of the other nodes with an API server, and the time for which each was not healthy; `None`: it was.
        others: BTreeMap<String, Option<Duration>>,
        /// Its address was ready in the Endpoints of the API servers.
        is_ready: bool,
    },
    /// A reboot command took a node away.
    Rebooted {
        address: String,
        /// It had a healthy API server, which an effect on the node could have ended.
        has_server: bool,
    },
    /// The ready addresses in the Endpoints of the API servers changed.
    EndpointsChanged {
        /// An address is ready.
        is_ready: bool,
        /// Longest time for which an API server was healthy; `None`: none is.
        healthy_for: Option<Duration>,
    },
    /// An API server became ready in the Endpoints of the API servers.
    ServerReady {
        address: String,
        /// It has served since its start, or has ended.
        has_served: bool,
    },
    /// An effect started a kubelet that did not run.
    KubeletStarted {
        effect: Effect,
        /// Name of the Node object.
        node: String,
        /// Taints of that object; `None` if there is none.
        taints: Option<Vec<Taint>>,
    },
    /// An effect started a component with another image than its last one on the node.
    ImageChanged {
        effect: Effect,
        component: Component,
        /// Minor version of the image.
        minor: u64,
        /// Healthy API servers before the effect: minor version, and the time for which each was healthy.
        servers: BTreeMap<String, (u64, Duration)>,
        /// Oldest minor version of the other kubelets and proxies that run.
        oldest_on_nodes: Option<u64>,
    },
    /// An effect restarted a kubelet or proxy.
    Restarted {
        effect: Effect,
        component: Component,
        /// Addresses of the other nodes whose component an effect restarted and which does not serve since, with the time
        /// since that restart.
        unready: BTreeMap<String, Duration>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Voter {
    pub member: u64,
    /// Time since the member was last in sync; `None`: it is in sync.
    pub out_of_sync: Option<Duration>,
}

/// A change of etcd. Clusters and members have etcd's ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EtcdFact {
    /// A cluster has a majority for the first time.
    Formed {
        cluster: u64,
        members: Vec<u64>,
        /// Another cluster was formed before.
        second: bool,
    },
    Added {
        cluster: u64,
        member: u64,
        /// Its URL for other members.
        peer_url: String,
    },
    /// A learner got its vote.
    Promoted {
        cluster: u64,
        member: u64,
    },
    Removed {
        cluster: u64,
        member: u64,
    },
    /// No connected majority of the voting members runs any more.
    QuorumLost {
        cluster: u64,
    },
    /// A connected majority of the voting members runs again.
    QuorumRegained {
        cluster: u64,
        /// Number of the last write that the members have.
        kept: u64,
    },
    /// An effect stopped or removed a running voting member.
    VoterLost {
        effect: Effect,
        cluster: u64,
        member: u64,
        /// Number of voting members after the effect.
        voting: usize,
        /// The voting members that the effect did not concern, as they were before it.
        others: Vec<Voter>,
        had_quorum: bool,
    },
    /// A member started on an empty volume.
    Initialised {
        cluster: u64,
        member: u64,
        address: String,
        /// The member had data before.
        again: bool,
    },
    DataRemoved {
        effect: Effect,
        cluster: u64,
        member: u64,
        is_voting: bool,
    },
    /// A majority has a write, which is acknowledged.
    Written {
        cluster: u64,
        /// Number of the write, from 1.
        number: u64,
    },
    /// The members of a new majority lack writes that a client knows to be durable.
    WriteLost {
        cluster: u64,
        /// Number of the last acknowledged write.
        acknowledged: u64,
        /// Number of the last write that the members have.
        kept: u64,
    },
    Exited {
        address: String,
        why: String,
    },
    AuthenticationOn {
        cluster: u64,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Log {
    facts: VecDeque<NodeFact>,
    next: u64,
}

impl Log {
    pub(crate) fn note(&mut self, at: Duration, what: Observed) {
        self.facts.push_back(NodeFact { number: self.next, at, what });
        self.next += 1;
        if self.facts.len() > MAX_FACTS {
            self.facts.pop_front();
        }
    }

    pub(crate) fn facts_since(&self, number: u64) -> Vec<NodeFact> {
        let begin = self.facts.partition_point(|fact| fact.number < number);
        self.facts.range(begin..).cloned().collect()
    }
}

//! Facts about the simulated nodes and their etcd, for judges.

use std::collections::VecDeque;
use std::time::Duration;

use super::limits::MAX_FACTS;

/// An effect of an instance: an action on a node, or a change of the members of etcd.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effect {
    /// Number of the effect, in the order of the beginnings.
    pub number: u64,
    /// Epoch of its permit.
    pub epoch: i64,
    /// Address of the node; for a change of etcd the first asked address.
    pub address: String,
    /// The action or change, as text without secrets.
    pub what: String,
    /// The effect may happen after the end of its permit.
    pub outlives_permit: bool,
}

/// An observation with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFact {
    /// Number of the fact, from 0, without gaps.
    pub number: u64,
    /// Time since the beginning of the world.
    pub at: Duration,
    pub what: Observed,
}

/// The content of a fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed {
    /// An instance sent an effect with a valid permit.
    Began(Effect),
    /// The effect happened, or failed on the node with this message.
    Applied {
        effect: Effect,
        /// The message of a failure.
        failed: Option<String>,
    },
    /// The effect will never happen.
    Dropped { effect: Effect, why: String },
    /// A change of etcd.
    Etcd(EtcdFact),
}

/// A voting member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Voter {
    /// Id of the member.
    pub member: u64,
    /// Time since the member was last in sync; `None`: it is in sync.
    pub out_of_sync: Option<Duration>,
}

/// A change of etcd. Clusters and members have etcd's ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EtcdFact {
    /// A cluster has a majority for the first time.
    Formed {
        /// Id of the cluster.
        cluster: u64,
        /// Ids of its members.
        members: Vec<u64>,
        /// Another cluster was formed before.
        second: bool,
    },
    /// A learner was added.
    Added {
        /// Id of the cluster.
        cluster: u64,
        /// Id of the member.
        member: u64,
        /// Its URL for other members.
        peer_url: String,
    },
    /// A learner got its vote.
    Promoted {
        /// Id of the cluster.
        cluster: u64,
        /// Id of the member.
        member: u64,
    },
    /// A member was removed.
    Removed {
        /// Id of the cluster.
        cluster: u64,
        /// Id of the member.
        member: u64,
    },
    /// No connected majority of the voting members runs any more.
    QuorumLost {
        /// Id of the cluster.
        cluster: u64,
    },
    /// A connected majority of the voting members runs again.
    QuorumRegained {
        /// Id of the cluster.
        cluster: u64,
        /// Number of the last write that the members have.
        kept: u64,
    },
    /// An effect stopped or removed a running voting member.
    VoterLost {
        effect: Effect,
        /// Id of the cluster.
        cluster: u64,
        /// Id of the member.
        member: u64,
        /// Number of voting members after the effect.
        voting: usize,
        /// The voting members that the effect did not concern, as they were before it.
        others: Vec<Voter>,
        /// The cluster had a quorum before the effect.
        had_quorum: bool,
    },
    /// A member started on an empty volume.
    Initialised {
        /// Id of the cluster.
        cluster: u64,
        /// Id of the member.
        member: u64,
        /// Address of its node.
        address: String,
        /// The member had data before.
        again: bool,
    },
    /// An effect removed the data of a member.
    DataRemoved {
        effect: Effect,
        /// Id of the cluster.
        cluster: u64,
        /// Id of the member.
        member: u64,
        /// The member has a vote.
        is_voting: bool,
    },
    /// A majority has a write, which is acknowledged.
    Written {
        /// Id of the cluster.
        cluster: u64,
        /// Number of the write, from 1.
        number: u64,
    },
    /// The members of a new majority lack writes that a client knows to be durable.
    WriteLost {
        /// Id of the cluster.
        cluster: u64,
        /// Number of the last acknowledged write.
        acknowledged: u64,
        /// Number of the last write that the members have.
        kept: u64,
    },
    /// etcd ended by itself.
    Exited {
        /// Address of the node.
        address: String,
        /// Its message.
        why: String,
    },
    /// Authentication was turned on.
    AuthenticationOn {
        /// Id of the cluster.
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

    /// The kept facts from a number on.
    pub(crate) fn since(&self, number: u64) -> Vec<NodeFact> {
        let begin = self.facts.partition_point(|fact| fact.number < number);
        self.facts.range(begin..).cloned().collect()
    }
}

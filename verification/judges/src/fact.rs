//! The facts about the service that are observed from outside: commits, requests, effects, faults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::machine::MachineState;
use serde::{Deserialize, Serialize};

/// Time since the beginning of a run, by the judge's clock.
pub type FactTime = Duration;

/// A part of the world that can have a fault.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultPlace {
    /// Host name under which the instance is a candidate.
    Instance(String),
    Store,
    Registry,
    Providers,
    /// The hosts that run commands.
    Hosts,
    /// The cluster's API server.
    Kubernetes,
}

/// A request of an instance to the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegistryQuestion {
    Machines,
    /// Machines to be repaired.
    Reports,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Relative to the prefix of the service; the whole key if it is outside the prefix.
    pub key: String,
    /// `None`: deleted.
    pub value: Option<Arc<[u8]>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineReport {
    pub address: String,
    pub state: MachineState,
    /// Beginning of the state, by the registry.
    pub since: FactTime,
}

/// The purpose of a command on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Command {
    Repair,
    Success,
    HealthCheck,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KubernetesRequest {
    Cordon,
    Uncordon,
    Evict,
    /// Ends a pod past its disruption budget.
    Delete,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFact {
    /// `NAMESPACE/NAME`
    pub name: String,
    pub protected: bool,
}

/// An effect of an instance: an action on a node, or a change of the members of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEffect {
    /// Unique in a stream.
    pub number: u64,
    pub epoch: i64,
    /// Address of the node; for a change of etcd the first asked address.
    pub address: String,
    /// The action or change, as text.
    pub what: String,
    /// The effect may happen after the end of its permit.
    pub outlives_permit: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffectStage {
    /// An instance sent it with a valid permit.
    Began,
    /// It happened, or failed on the node.
    Happened,
    /// It will never happen.
    Dropped,
}

/// A voting member of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Voter {
    pub member: u64,
    /// Time since the member was last in sync; `None`: it is in sync.
    pub out_of_sync: Option<Duration>,
}

/// An observation of etcd on the nodes. Clusters and members have etcd's ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EtcdFact {
    /// A cluster has a majority for the first time.
    Formed {
        cluster: u64,
    },
    /// A member started on an empty volume.
    Initialised {
        cluster: u64,
        member: u64,
        address: String,
    },
    /// A write is acknowledged. The writes of a cluster have the numbers 1, 2 and so on.
    Acknowledged {
        cluster: u64,
        write: u64,
    },
    /// A majority exists again, or other members form it. They have the writes up to this one.
    Kept {
        cluster: u64,
        write: u64,
    },
    /// No connected majority of the voting members runs any more.
    Silent {
        cluster: u64,
    },
    /// An effect stopped or removed a running voting member.
    VoterLost {
        effect: NodeEffect,
        cluster: u64,
        member: u64,
        /// Number of voting members after the effect.
        voting: usize,
        /// The voting members that the effect did not concern, as they were before it.
        others: Vec<Voter>,
        /// True if the cluster had a majority before the effect.
        had_quorum: bool,
    },
    DataRemoved {
        effect: NodeEffect,
        cluster: u64,
        member: u64,
        is_voting: bool,
    },
}

/// An observation of the components of Kubernetes on the nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ComponentFact {
    /// An effect ended a healthy API server.
    ApiServerEnded {
        effect: NodeEffect,
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
        effect: NodeEffect,
        /// Name of the Node object.
        node: String,
        /// `KEY=VALUE:EFFECT` of each taint of that object; `None` if there is none.
        taints: Option<BTreeSet<String>>,
    },
    /// An effect started a component with another image than its last one on the node.
    ImageChanged {
        effect: NodeEffect,
        component: &'static str,
        /// Minor version of the image.
        minor: u64,
        /// Healthy API servers before the effect: minor version, and the time for which each was healthy.
        servers: BTreeMap<String, (u64, Duration)>,
        /// Oldest minor version of the other kubelets and proxies that run.
        oldest_on_nodes: Option<u64>,
    },
    /// An effect restarted a kubelet or proxy.
    Restarted {
        effect: NodeEffect,
        component: &'static str,
        /// Addresses of the other nodes whose component an effect restarted and which does not serve since, with the time
        /// since that restart.
        unready: BTreeMap<String, Duration>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    Stored {
        revision: i64,
        changes: Vec<Change>,
    },
    /// A user learned that its own write became this revision.
    ByUser {
        revision: i64,
    },
    /// A request of an instance reached the registry.
    Polled {
        instance: String,
        question: RegistryQuestion,
    },
    /// A good answer of the registry reached an instance.
    Answered {
        instance: String,
        question: RegistryQuestion,
        machines: Arc<Vec<MachineReport>>,
    },
    /// A request of an instance reached a provider of metrics.
    Fetched {
        instance: String,
        /// Requests for the same metric have the same text.
        what: String,
    },
    /// A provider received a request for a metric.
    Provided {
        metric: String,
        /// True if the provider answered with a usable value.
        good: bool,
    },
    /// A command begins on the host of an instance.
    Began {
        instance: String,
        command: Command,
        address: String,
    },
    Ended {
        instance: String,
        command: Command,
        address: String,
        /// Repair: the command exited with 0. Health check: its output said that the machine is healthy.
        good: bool,
    },
    Permitted {
        instance: String,
        until: FactTime,
        /// End of the epoch's lease in the store unless it is renewed.
        lease_ends: FactTime,
    },
    /// Kubernetes answered the dry run of an eviction.
    EvictionTried {
        protected: bool,
        refused: bool,
    },
    /// Kubernetes received a request of an instance.
    Kubernetes {
        action: KubernetesRequest,
        /// Name or address of the node, or of the pod's node.
        node: String,
        /// The pod that should end.
        pod: Option<PodFact>,
        /// True if a disruption budget forbade the eviction.
        refused: bool,
        /// Earliest time at which the instance may have sent the request.
        sent: FactTime,
    },
    /// The placement API answered a request with `If-Match`.
    Conditional {
        /// Key of the resource in the store.
        key: String,
        /// Version that the client named.
        version: i64,
        status: u16,
        /// Version after the request, from the answer.
        after: Option<i64>,
    },
    /// The store answered a client's transaction with several conditions.
    Transacted {
        held: bool,
        written: bool,
    },
    /// A user made one cluster by far the best for an application.
    Improved {
        /// Key of the application in the store.
        application: String,
        cluster: String,
    },
    /// A stage of an effect on a node or on the members of etcd.
    Effect {
        effect: NodeEffect,
        stage: EffectStage,
    },
    /// An observation of etcd on the nodes.
    Etcd(EtcdFact),
    /// An observation of the components of Kubernetes on the nodes.
    Component(ComponentFact),
    /// The nodes that do not answer are others than before. The value is the time since which.
    Silent(BTreeMap<String, FactTime>),
    /// A fault begins or ends.
    Troubled {
        place: FaultPlace,
        /// True if only the clock of the place is wrong.
        clock: bool,
        begins: bool,
    },
}

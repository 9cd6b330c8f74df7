//! The catalogue of promises to operators, with the id and the text of each.

use serde::Serialize;

macro_rules! promises {
    ($($promise:ident, $what:literal;)+) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr, strum::VariantArray)]
        #[strum(serialize_all = "kebab-case")]
        pub enum Promise {
            $(#[doc = $what] $promise,)+
        }

        impl Promise {
            #[must_use]
            pub fn text(self) -> &'static str {
                match self { $(Self::$promise => $what,)+ }
            }
        }
    };
}

promises! {
    IntegrationDisabled, "While the integration is disabled, Madako plans no cluster and does not poll the registry for machines.";
    TemplateApplied, "Madako applies a changed template, also if it changed while the integration was disabled.";
    FreshObservation, "The planner uses no answer of the registry that is older than three polls.";
    HeldRemoval, "Madako plans nothing while the removal guard holds an answer.";
    CurrentInputs, "A plan is committed only while its inputs are unchanged.";
    ControlPlaneReplaced, "Madako replaces an unreachable control plane node.";
    RetiredNotEarly, "A retired worker does not leave the cluster before its waiting time has ended.";
    RetiredLeaves, "A retired worker leaves the cluster when its waiting time has ended.";
    StateTaint, "A node has the taint of its machine's state.";
    MachinePolls, "The leader polls the registry for machines at the poll interval.";
    ReportPolls, "The leader polls the registry for machines to repair at the poll interval.";
    MetricRounds, "Each metric is fetched once per metrics interval.";
    HealthChecks, "The health of each machine with an unfinished entry is checked once per poll interval, for each such entry.";
    QueueDisabled, "While the repair queue is disabled, no drain and no repair command begins.";
    QueueResumes, "A repair queue resumes its work when it is enabled again.";
    AutoRepairDisabled, "While auto-repair is disabled, no report becomes an entry.";
    ConcurrentRepairs, "At most max_concurrent_repairs machines are under repair at a time.";
    WatchLasts, "The watch after a repair command lasts its full time.";
    NextStep, "The next repair step begins when the previous step did not help.";
    FreshHealth, "No drain and no repair command begins for a healthy machine, or for a machine without a health check within two poll intervals.";
    HealthySucceeds, "A repair succeeds only when its machine is healthy.";
    ProtectedPods, "Pods of protected namespaces are not deleted.";
    EvictedFirst, "A pod is deleted only after a disruption budget refused its eviction.";
    DrainRequests, "A node is cordoned and its pods end only during a drain for its repair or reboot, and it is not uncordoned while that goes on.";
    DrainEnds, "A drain ends in time, and a drain that was given up begins again only after its back-off.";
    OneDrain, "A node has one drain at a time, for a repair or for a reboot.";
    DeletionKept, "An entry that a user deletes from the repair queue, or cancels in the reboot queue, does not return.";
    LeaseMargin, "A leader stops acting at the latest one safety margin before its lease ends.";
    IfMatch, "A request with If-Match changes only the version that it names.";
    AllConditions, "A transaction writes only when all of its conditions hold.";
    FailingMetrics, "An online cluster turns to FAILING_METRICS when one of its metrics has no value, and back when all have values.";
    BetterCluster, "An application moves to a better cluster.";
    QuorumKept, "After a command that stops or removes a running voting member of etcd, the members in sync are a majority of the voting members that remain.";
    OneEtcd, "No second cluster of etcd is formed, except one by each restore.";
    InitialisedOnce, "The data of a member of etcd are initialised once.";
    VoterDataKept, "The data of a voting member of etcd are removed only after the removal of the member, or after a restore.";
    WritesKept, "etcd loses no acknowledged write.";
    LossProved, "A restore of etcd begins only while no majority of its members runs.";
    EpochsInOrder, "No effect of an older epoch follows an effect of a newer epoch on nodes or on the members of etcd.";
    HostKeyKept, "A pinned host key is replaced only for a machine with another serial, or after an operator deleted it.";
    ApiKept, "A healthy API server of Kubernetes is ended only while every other configured API server is healthy.";
    EndpointsWithdrawn, "A healthy API server of Kubernetes is ended beside another one only after its address is not ready in the endpoints.";
    EndpointsKept, "While an API server of Kubernetes is healthy for a minute, an address is ready in the endpoints after each change of them.";
    EndedBeforeReboot, "The API server of a control plane node ends before the node reboots.";
    ServedBeforeReady, "An API server of Kubernetes becomes ready in the endpoints only after it served since its start.";
    BootTaintsFirst, "A kubelet starts on a registered node only after the Node object has the boot taints.";
    VersionsAllowed, "A component of Kubernetes starts with another image only at a version that the version policy of Kubernetes allows.";
    RollHalts, "When three nodes of a roll failed, or 5 % if that is more, no kubelet or proxy restarts until an operator resumes the roll.";
    WaveKept, "A kubelet or proxy restarts only as a node of the present wave, which is not larger than the roll allows.";
    DrainLimit, "A drain for a reboot begins only while at most maximum-unreachable-nodes-for-reboot other nodes do not answer, apart from those that reboot.";
}

impl Promise {
    /// True if only a world whose Kubernetes is acted on, or whose operators ask for reboots, can test the promise.
    #[must_use]
    pub fn needs_components(self) -> bool {
        matches!(
            self,
            Self::ApiKept
                | Self::EndpointsWithdrawn
                | Self::EndpointsKept
                | Self::EndedBeforeReboot
                | Self::ServedBeforeReady
                | Self::BootTaintsFirst
                | Self::VersionsAllowed
                | Self::RollHalts
                | Self::WaveKept
                | Self::DrainLimit
        )
    }

    /// True if only a world with nodes can test the promise.
    #[must_use]
    pub fn needs_nodes(self) -> bool {
        matches!(
            self,
            Self::QuorumKept
                | Self::OneEtcd
                | Self::InitialisedOnce
                | Self::VoterDataKept
                | Self::WritesKept
                | Self::LossProved
                | Self::EpochsInOrder
                | Self::HostKeyKept
        )
    }
}

madako_json::named!(Promise all);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub judged: u64,
    pub violations: Vec<String>,
}

//! Planted bugs (canaries), which prove that the simulation finds such bugs. A simulation plants one bug at its
//! start.
//!
//! Guarantees: only a build with debug assertions can plant a bug, so the test build suffices. In a release build
//! [`is_planted`] is the constant `false`, and the program contains no name of a bug.
//!
//! Does not: change a checker or a simulator. The code with the bug calls [`is_planted`] once.

macro_rules! canaries {
    ($($canary:ident, $part:ident, $what:literal;)+) => {
        /// A bug that can be planted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[cfg_attr(debug_assertions, derive(strum::IntoStaticStr, strum::VariantArray, strum::VariantNames))]
        #[cfg_attr(debug_assertions, strum(serialize_all = "kebab-case"))]
        #[repr(u8)]
        pub enum Canary {
            $(#[doc = $what] $canary,)+
        }

        #[cfg(debug_assertions)]
        impl Canary {
            /// The part of the service that contains the bug.
            #[must_use]
            pub fn part(self) -> Part {
                match self { $(Self::$canary => Part::$part,)+ }
            }

            /// A description of the fault.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self { $(Self::$canary => $what,)+ }
            }
        }
    };
}

canaries! {
    UnfencedCommit, LeaderAndStore, "A transaction does not compare the leader's key.";
    LastInLineLeads, LeaderAndStore, "The last candidate, not the first, considers itself the leader.";
    EndlessTerm, LeaderAndStore, "An instance trusts its lease, and every permit, long after the lease may have ended.";
    LostWatchEvent, LeaderAndStore, "A watch omits one revision in sixteen.";
    AnswerBeforeSync, LeaderAndStore, "The embedded store acknowledges a write before the disk has synced it.";
    ForgottenRestart, LeaderAndStore, "A supervisor does not restart a failed actor.";
    RecordLeftOpen, LeaderAndStore, "A new leader does not close the unfinished record of the previous leader.";
    LeaseFromAnswer, LeaderAndStore, "The lease time counts from the arrival of the answer, not from the sending of the request.";
    FirstConditionOnly, LeaderAndStore, "A transaction of the service compares only its first condition.";
    FirstComparisonOnly, LeaderAndStore, "The embedded store compares only the first of a transaction's comparisons.";
    BasisNotCompared, LeaderAndStore, "A plan is committed even if its inputs have changed.";
    VanishedNodesKept, ClusterKeeping, "Nodes whose machines are gone from the registry stay in the plan.";
    OneWorkerTooMany, ClusterKeeping, "A plan takes one worker more than the maximum.";
    ControlPlaneOneShort, ClusterKeeping, "A plan fills the control plane to one node less than required.";
    TemplateNotedEarly, ClusterKeeping, "A cluster records a template revision one below that of its template.";
    AllBadNodesAtOnce, ClusterKeeping, "A plan removes all vanished control plane nodes at once, whatever their number.";
    StaleObservationPlanned, ClusterKeeping, "The planner uses an observation older than three polls.";
    PlannedWhileDisabled, ClusterKeeping, "The planner plans while the integration is disabled.";
    PolledEverySecond, ClusterKeeping, "The poller polls the registry every second.";
    RemovalGuardTurned, ClusterKeeping, "The removal guard is inverted: it holds few missing nodes and lets many pass.";
    KnownMachineAdded, Repair, "A report of a machine with an entry becomes a second entry.";
    OneEntryTooMany, Repair, "Reports become one entry more than the maximum allows.";
    WriteIndexForgotten, Repair, "An entry is written without its counter, so that the next entry overwrites it.";
    UnannouncedCommand, Repair, "A command runs although the result of writing its record is unknown.";
    ApiServersTogether, Repair, "An API server is repaired during the repair of another API server.";
    RepairsWhileDisabled, Repair, "Repairs begin while the queue is disabled.";
    OneRepairMore, Repair, "The repair queue works on one repair more than allowed.";
    WatchSkipped, Repair, "The watch after a repair command is skipped.";
    SecondStepSkipped, Repair, "The second step of a repair is never tried.";
    ProtectedPodsDeleted, Repair, "Pods of protected namespaces are deleted when a disruption budget forbids their eviction.";
    EntryNotCompared, Repair, "A write replaces a queue entry even if the entry has changed since it was read.";
    RebootIgnored, Repair, "An API server is repaired during the reboot of another API server.";
    RecordsKept, Repair, "Old records are never deleted.";
    RebootCancelOverwritten, Repair, "A write replaces an entry of the reboot queue even if a user has cancelled it meanwhile.";
    RebootNotDrained, Repair, "A node reboots before its pods have ended.";
    NodeDrainedTwice, Repair, "A node is drained for a repair while it is drained for a reboot, without a check of I7 over both queues.";
    CordonForgotten, Repair, "No cordon is taken back.";
    OfflineClusterTaken, Placement, "Applications are bound to clusters that are not online.";
    LabelsIgnored, Placement, "The scheduler ignores constraints on labels.";
    RestlessMoves, Placement, "An application moves to the best other cluster even if that cluster is not better.";
    LastApplicationForgotten, Placement, "A pass omits the last application.";
    UnconditionalWrite, Placement, "A binding replaces an application even if the application has changed meanwhile.";
    NothingCollected, Placement, "Garbage collection removes no deleted resource.";
    RequestNotCompared, Placement, "An API request replaces a resource even if the resource has changed since it was read.";
    IfMatchIgnored, Placement, "A request with If-Match changes a resource of any version.";
    QuorumUnchecked, Operations, "A command begins without a check of I2 on the present members.";
    StoppedMemberCounted, Operations, "I2 counts the members that a command stops as in sync.";
    HalfIsEnough, Operations, "I2 is content with half of the voting members.";
    DeadMembersUncounted, Operations, "I2 does not count the votes of members that are out of sync.";
    BootstrapRepeated, Operations, "A bootstrap begins as long as a control plane node has no data.";
    EmptyVolumeStarted, Operations, "The member of a node with an empty volume is started like any other.";
    PermitOutlived, Operations, "An action on a node may happen an hour after the end of its permit.";
    PromotionSkipped, Operations, "An added member is never promoted.";
    HostKeyReplaced, Operations, "A changed host key is pinned in place of the former one.";
    OldStatusDecidedOn, Operations, "The reconcile pass after an operation decides on the states from before the operation.";
    DataRemovedFirst, Operations, "The data of a member are removed before the member is.";
    BackupUnproved, Operations, "A backup is recorded as proved without a proof.";
    OrphanKept, Operations, "The record of an operation whose actor failed stays unfinished.";
    RestoreBesideMajority, Operations, "A restore of etcd begins while a majority of its members answers.";
    TokenPastItsEnd, Operations, "A token of Vault is used after its end.";
    CertificateForAnother, Operations, "Vault is asked for a certificate with another name.";
    ApiServersAtOnce, Operations, "All outdated API servers of Kubernetes restart at the same time.";
    ApiGapUnchecked, Operations, "A command ends an API server without a check of I13 on the present API servers.";
    KubeletFirst, Operations, "Kubelets and proxies get another version before the last API server, without a check of I14.";
    WaveCountsNoFailures, Operations, "A wave whose nodes fail counts as a good one.";
    BootTaintsLate, Operations, "The boot taints of a registered node are added after the start of its kubelet.";
    ResourceBlocksRest, Operations, "A resource that the API server refuses holds the resources of later ranks for good.";
    EndpointsLeftReady, Operations, "An API server is ended while its address is ready in the endpoints.";
    RebootMeetsApiServer, Operations, "A control plane node reboots while its API server serves clients.";
    GateAsksThroughRivers, Operations, "The gate of a started API server asks through rivers, and another API server answers.";
}

#[cfg(debug_assertions)]
madako_json::named!(Canary all names, Part);

/// The part of the service that contains a canary.
#[cfg(debug_assertions)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Part {
    /// Election, transactions, watches, supervision.
    #[strum(serialize = "leader and store")]
    LeaderAndStore,
    /// The plans of the cluster and the removal guard.
    #[strum(serialize = "cluster keeping")]
    ClusterKeeping,
    /// The repair queue.
    Repair,
    /// The placement of applications on clusters.
    Placement,
    /// Operations on nodes and on etcd.
    Operations,
}

/// The planted bug and the names of all bugs. A program that reads the first keeps the names in its binary, which
/// shows that this build can plant bugs.
#[cfg(debug_assertions)]
#[derive(Debug)]
pub struct Planted {
    /// The number of the planted canary, or [`NONE`].
    number: std::sync::atomic::AtomicU8,
    /// The names of all canaries.
    pub names: &'static [&'static str],
}

/// The planted bug of this process.
#[cfg(debug_assertions)]
pub static PLANTED: Planted =
    Planted { number: std::sync::atomic::AtomicU8::new(NONE), names: Canary::NAMES };

#[cfg(debug_assertions)]
const NONE: u8 = u8::MAX;

/// Plants a bug in this process and removes the previous one.
#[cfg(debug_assertions)]
pub fn plant_canary(canary: Option<Canary>) {
    let number = canary.map_or(NONE, |canary| canary as u8);
    PLANTED.number.store(number, std::sync::atomic::Ordering::Relaxed);
}

/// True if this bug is planted in this process.
#[cfg(debug_assertions)]
#[must_use]
pub fn is_planted(canary: Canary) -> bool {
    PLANTED.number.load(std::sync::atomic::Ordering::Relaxed) == canary as u8
}

/// Always false: a release build cannot plant bugs.
#[cfg(not(debug_assertions))]
#[must_use]
pub const fn is_planted(_: Canary) -> bool {
    false
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_at_least_three_planted_bugs_with_distinct_names() {
        for part in
            [Part::LeaderAndStore, Part::ClusterKeeping, Part::Repair, Part::Placement, Part::Operations]
        {
            let count = Canary::ALL.iter().filter(|canary| canary.part() == part).count();
            assert!(count >= 3, "{part:?} has {count}");
        }
        let names: std::collections::BTreeSet<_> = Canary::ALL.iter().map(|canary| canary.name()).collect();
        assert_eq!(names.len(), Canary::ALL.len());
    }

    #[test]
    fn at_most_one_bug_is_planted() {
        assert!(!Canary::ALL.iter().any(|canary| is_planted(*canary)));
        for canary in Canary::ALL {
            plant_canary(Some(*canary));
            let planted: Vec<_> = Canary::ALL.iter().filter(|canary| is_planted(**canary)).collect();
            assert_eq!(planted, [canary]);
        }
        plant_canary(None);
        assert!(!Canary::ALL.iter().any(|canary| is_planted(*canary)));
    }
}

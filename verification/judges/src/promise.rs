//! The promises to operators.

use serde::Serialize;

macro_rules! promises {
    ($($promise:ident = $name:literal, $what:literal;)+) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Promise {
            $(#[doc = $what] $promise,)+
        }

        impl Promise {
            pub const ALL: &[Self] = &[$(Self::$promise),+];

            /// As reports print it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$promise => $name,)+ }
            }

            /// The text of the promise.
            #[must_use]
            pub fn what(self) -> &'static str {
                match self { $(Self::$promise => $what,)+ }
            }
        }
    };
}

promises! {
    IntegrationDisabled = "integration-disabled", "While the integration is disabled, no cluster is planned and the registry is not asked for machines.";
    TemplateApplied = "template-applied", "A changed template is applied, also one that changed while the integration was disabled.";
    FreshObservation = "fresh-observation", "No plan is made on an answer of the registry that is older than three polls.";
    HeldRemoval = "held-removal", "Nothing is planned while the removal guard holds an answer.";
    CurrentInputs = "current-inputs", "A plan is committed only while what it was made from is unchanged.";
    ControlPlaneReplaced = "control-plane-replaced", "A control plane node that is unreachable is replaced.";
    RetiredNotEarly = "retired-not-early", "A retired worker leaves not before its time.";
    RetiredLeaves = "retired-leaves", "A retired worker leaves when its time is over.";
    StateTaint = "state-taint", "A node has the taint of its machine's state.";
    MachinePolls = "machine-polls", "The registry is asked for machines at the interval.";
    ReportPolls = "report-polls", "The registry is asked for machines to be repaired at the interval.";
    MetricRounds = "metric-rounds", "Each metric is fetched once a round.";
    HealthChecks = "health-checks", "The health of each machine with an unfinished entry is asked once a round.";
    QueueDisabled = "queue-disabled", "While the repair queue is disabled, no drain and no repair command begins.";
    QueueResumes = "queue-resumes", "A repair queue that is enabled again goes on.";
    AutoRepairDisabled = "auto-repair-disabled", "While auto-repair is disabled, no report becomes an entry.";
    ConcurrentRepairs = "concurrent-repairs", "At most max_concurrent_repairs machines are worked on.";
    WatchLasts = "watch-lasts", "The watch after a repair command lasts its time.";
    NextStep = "next-step", "The next step is tried when one did not help.";
    FreshHealth = "fresh-health", "Nothing begins for a machine whose health was not asked within two rounds, or which is healthy.";
    HealthySucceeds = "healthy-succeeds", "A repair succeeds only when its machine is healthy.";
    ProtectedPods = "protected-pods", "Pods of protected namespaces are not deleted.";
    DeletionKept = "deletion-kept", "What a user deletes from the repair queue is not brought back.";
    LeaseMargin = "lease-margin", "A leader acts no longer than its lease lasts, less the margin.";
    IfMatch = "if-match", "A request with If-Match changes the version that it names, or nothing.";
    AllConditions = "all-conditions", "A transaction writes only when all of its conditions hold.";
    FailingMetrics = "failing-metrics", "A cluster whose metric has no value turns to FAILING_METRICS, and back.";
    BetterCluster = "better-cluster", "An application moves to the better cluster.";
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Number of tests.
    pub judged: u64,
    /// A description of each violation.
    pub violations: Vec<String>,
}

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
    IntegrationDisabled = "integration-disabled", "While the integration is disabled, Madako plans no cluster and does not poll the registry for machines.";
    TemplateApplied = "template-applied", "Madako applies a changed template, also if it changed while the integration was disabled.";
    FreshObservation = "fresh-observation", "The planner uses no answer of the registry that is older than three polls.";
    HeldRemoval = "held-removal", "Madako plans nothing while the removal guard holds an answer.";
    CurrentInputs = "current-inputs", "A plan is committed only while its inputs are unchanged.";
    ControlPlaneReplaced = "control-plane-replaced", "Madako replaces an unreachable control plane node.";
    RetiredNotEarly = "retired-not-early", "A retired worker does not leave the cluster before its waiting time has ended.";
    RetiredLeaves = "retired-leaves", "A retired worker leaves the cluster when its waiting time has ended.";
    StateTaint = "state-taint", "A node has the taint of its machine's state.";
    MachinePolls = "machine-polls", "The leader polls the registry for machines at the poll interval.";
    ReportPolls = "report-polls", "The leader polls the registry for machines to repair at the poll interval.";
    MetricRounds = "metric-rounds", "Each metric is fetched once per metrics interval.";
    HealthChecks = "health-checks", "The health of each machine with an unfinished entry is checked once per poll interval.";
    QueueDisabled = "queue-disabled", "While the repair queue is disabled, no drain and no repair command begins.";
    QueueResumes = "queue-resumes", "A repair queue resumes its work when it is enabled again.";
    AutoRepairDisabled = "auto-repair-disabled", "While auto-repair is disabled, no report becomes an entry.";
    ConcurrentRepairs = "concurrent-repairs", "At most max_concurrent_repairs machines are under repair at a time.";
    WatchLasts = "watch-lasts", "The watch after a repair command lasts its full time.";
    NextStep = "next-step", "The next repair step begins when the previous step did not help.";
    FreshHealth = "fresh-health", "No drain and no repair command begins for a healthy machine, or for a machine without a health check within two poll intervals.";
    HealthySucceeds = "healthy-succeeds", "A repair succeeds only when its machine is healthy.";
    ProtectedPods = "protected-pods", "Pods of protected namespaces are not deleted.";
    DeletionKept = "deletion-kept", "An entry that a user deletes from the repair queue does not return.";
    LeaseMargin = "lease-margin", "A leader stops acting at the latest one safety margin before its lease ends.";
    IfMatch = "if-match", "A request with If-Match changes only the version that it names.";
    AllConditions = "all-conditions", "A transaction writes only when all of its conditions hold.";
    FailingMetrics = "failing-metrics", "An online cluster turns to FAILING_METRICS when one of its metrics has no value, and back when all have values.";
    BetterCluster = "better-cluster", "An application moves to a better cluster.";
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Number of tests.
    pub judged: u64,
    pub violations: Vec<String>,
}

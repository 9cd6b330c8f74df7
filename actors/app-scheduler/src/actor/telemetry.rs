//! The metrics of the scheduler, and its log lines about bindings, moves and failures.

use std::collections::BTreeMap;
use std::time::Duration;

use madako_domain::placement::decision::{Decision, Outcome};
use madako_domain::placement::kind::ObjectKey;
use madako_protocol::actors::CommitError;
use madako_protocol::first_seen::FirstSeenTimes;

use crate::batch::Batch;
use crate::draft::Deletion;
use crate::pass::Pass;

madako_protocol::declare_metrics! {
    "Placement's decisions":
    histogram madako_placement_pass_seconds() in Seconds
        "Duration of a pass over all applications, without its commits.";
    gauge madako_placement_applications(outcome)
        "Applications by their last decision: `bound`, `stays`, `moved`, `held` (a move waits for others), \
         `degraded`, `failed`, `waits-for-metric`, `creates`, `waits-for-cluster`, `left-alone`.";
    gauge madako_placement_applications_since_timestamp_seconds(outcome) in Seconds
        "Unix time since which applications have the decision without a pause, as far as this leader knows; 0 if \
         none has it.";
    histogram madako_placement_score()
        "Score of the chosen cluster, at each binding whose candidates had values. Buckets from 0 to 1.";
    gauge madako_placement_circular()
        "Resources that depend on each other in a circle; garbage collection skips them.";
    counter madako_placement_bindings_total(kind) "Bindings of applications: `first` or `move`.";
    counter madako_placement_writes_total(what, outcome)
        "Writes of placement. `what`: `application`, `cluster` (to a cloud or project), `metrics` (a state that \
         follows from metrics), `unused-cluster`, `garbage`. `outcome`: `committed`, `conflict` (an input changed \
         meanwhile, and placement decides again), `failed`.";
}

pub(crate) fn record_pass(
    decided: &Pass,
    took: Duration,
    since: &mut FirstSeenTimes<&'static str>,
    now: i64,
) {
    madako_placement_pass_seconds().record(took);
    let mut counts: BTreeMap<&'static str, usize> = Outcome::NAMES.iter().map(|name| (*name, 0)).collect();
    for decision in decided.decisions.values() {
        *counts.entry(decision.outcome.name()).or_default() += 1;
    }
    since.note(counts.iter().filter(|(_, count)| **count > 0).map(|(outcome, _)| *outcome), now);
    for (outcome, count) in counts {
        madako_placement_applications(outcome).set(count as f64);
        let since = since.time_of(&outcome).unwrap_or(0);
        madako_placement_applications_since_timestamp_seconds(outcome).set(since as f64);
    }
    madako_placement_circular().set(decided.circular.len() as f64);
    for resource in &decided.circular {
        tracing::debug!(%resource, "the resource depends on itself; garbage collection ignores it");
    }
}

pub(crate) fn count_writes(batch: &Batch, error: Option<&CommitError>) {
    let outcome = match error {
        None => "committed",
        Some(CommitError::Conflict { .. }) => "conflict",
        Some(_) => "failed",
    };
    for (kind, count) in &batch.kinds {
        madako_placement_writes_total(kind.name(), outcome).increment(*count);
    }
    if error.is_none() {
        let bindings = u64::try_from(batch.bindings.len()).unwrap_or(u64::MAX);
        let first = bindings.saturating_sub(batch.moved);
        madako_placement_bindings_total("first").increment(first);
        madako_placement_bindings_total("move").increment(batch.moved);
        batch.deletions.iter().for_each(|(resource, by)| log_deletion(resource, by));
    }
}

/// Logs an effective step of a deletion.
fn log_deletion(resource: &ObjectKey, by: &Deletion) {
    match by {
        Deletion::WithOwner { owner } => {
            tracing::info!(
                %resource, %owner, rule = "owner",
                "the resource's deletion began: its owner is being deleted"
            );
        }
        Deletion::Unused { since } => {
            tracing::info!(
                %resource, %since, rule = "deletion_retention",
                "the resource's deletion began: no application uses it"
            );
        }
        Deletion::Done => {
            tracing::info!(
                %resource, rule = "no-dependents",
                "the resource is deleted: nothing depends on it any more"
            );
        }
    }
}

pub(crate) fn log_decision(application: &ObjectKey, decision: &Decision) {
    if let (Outcome::Bound { .. } | Outcome::Moved { .. }, Some(best)) = (&decision.outcome, &decision.best)
        && best.has_metrics
    {
        madako_placement_score().record(best.score);
    }
    match &decision.outcome {
        Outcome::Bound { to } => tracing::info!(%application, %to, "the application is bound"),
        Outcome::Moved { from, to, why } => {
            let gain = decision.gain.map(|gain| gain.gain);
            tracing::info!(%application, %from, %to, ?why, gain, "the application is moved");
        }
        Outcome::Degraded { retries, .. } => {
            tracing::info!(%application, retries, "no cluster fits the application")
        }
        Outcome::Failed => {
            tracing::warn!(%application, "no cluster fits the application, and it has no attempts left")
        }
        Outcome::Creates { cluster, cloud } => {
            tracing::info!(%application, %cluster, %cloud, "the scheduler creates a cluster for the application");
        }
        other => {
            tracing::debug!(%application, outcome = other.name(), "the scheduler decided on the application")
        }
    }
}

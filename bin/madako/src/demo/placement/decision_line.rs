//! Describes placement decisions as lines of the demo's output.

use std::time::Duration;

use madako_domain::placement::decision::{Decision, Hold, LeftAlone, Move, Outcome};
use madako_domain::placement::kind::ObjectKey;

/// The line of a decision; `None` for one without a visible effect.
pub(crate) fn decision_line(application: &ObjectKey, decision: &Decision) -> Option<String> {
    let name = &application.name;
    let fit = format!("{} of {} clusters fit", decision.clusters.fit, decision.clusters.considered);
    let score = decision.best.as_ref().map_or_else(String::new, |best| format!("score {:.2}, ", best.score));
    Some(match &decision.outcome {
        Outcome::Bound { to } => format!("{name} is bound to {} ({score}{fit})", to.name),
        Outcome::Moved { from, to, why } => {
            format!(
                "{name} moves from {} to {}: {} ({score}{fit})",
                from.name,
                to.name,
                describe_move(why, decision)
            )
        }
        Outcome::Held { on, to, why, rule: Hold::MaxMoves { limit, .. } } => format!(
            "{name} stays on {}; its move to {} waits: {}; at most {limit} applications move at a time",
            on.name,
            to.name,
            describe_move(why, decision)
        ),
        Outcome::Degraded { .. } => format!("no cluster fits {name} any more; the scheduler tries again"),
        Outcome::Failed => format!("no cluster fits {name}, and no attempts are left"),
        Outcome::Creates { cluster, cloud } => {
            format!("{} is created on {} for {name}", cluster.name, cloud.name)
        }
        Outcome::WaitsForCluster { cluster } => format!("{name} waits for {} to be online", cluster.name),
        Outcome::WaitsForMetric { metrics, .. } => {
            format!("{name} waits for the first value of {}", metrics.join(", "))
        }
        Outcome::LeftAlone { why: LeftAlone::Failed } => format!("{name} failed; the scheduler ignores it"),
        Outcome::Stays { .. }
        | Outcome::LeftAlone { why: LeftAlone::Deleted | LeftAlone::DeletedWithOwner } => return None,
    })
}

fn describe_move(why: &Move, decision: &Decision) -> String {
    match (why, decision.gain) {
        (Move::Better, Some(gain)) => {
            format!("better by {:.2}, more than the stickiness of {:.2}", gain.gain, gain.stickiness)
        }
        (Move::Better, None) => "it is better there".to_owned(),
        (Move::NotOnline, _) => "its cluster was not online for too long".to_owned(),
        (Move::Misfit, _) => "its cluster does not meet its constraints any more".to_owned(),
        (Move::Gone, _) => "its cluster is gone".to_owned(),
        (Move::Created, _) => "its own cluster is online".to_owned(),
    }
}

pub(crate) fn describe_offline(cluster: &str, stays: Duration) -> String {
    format!(
        "the demo takes {cluster} offline: its applications leave if it stays offline for {} s",
        stays.as_secs()
    )
}

/// The line of a cluster's return.
pub(crate) fn describe_online(cluster: &str) -> String {
    format!("the demo brings {cluster} back online")
}

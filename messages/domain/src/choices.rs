//! The reasons for which the nodes of the cluster have their parts, kept for as long as they are nodes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::cluster::Cluster;
use crate::limits::MOST_CHOICES_BYTES;
use crate::plan::{ChangeKind, Plan};

/// The plan that gave a node its part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Time of the commit.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The reason of the plan as a sentence.
    pub why: String,
}

/// The choices by the address of the node (`madako/decisions/choices`).
pub type Choices = BTreeMap<String, Choice>;

/// The choices after a plan with its cluster: those of its changes, and the earlier ones of nodes that stay.
///
/// Of choices with more than [`MOST_CHOICES_BYTES`] in total, the oldest are left out.
#[must_use]
pub fn choices_after(mut choices: Choices, plan: &Plan, cluster: &Cluster, now: OffsetDateTime) -> Choices {
    for change in &plan.changes {
        if !matches!(change.change, ChangeKind::Add | ChangeKind::Promote | ChangeKind::Demote) {
            continue;
        }
        // The part is new, so the reason for the old part no longer applies.
        choices.remove(&change.address);
        let about_node =
            plan.reasons.iter().find(|reason| reason.address.as_deref() == Some(change.address.as_str()));
        if let Some(reason) = about_node {
            choices.insert(change.address.clone(), Choice { at: now, why: reason.why.to_string() });
        }
    }
    let nodes: BTreeSet<&str> = cluster.nodes.iter().map(|node| node.address.as_str()).collect();
    choices.retain(|address, _| nodes.contains(address.as_str()));
    let mut newest_first: Vec<(String, Choice)> = choices.into_iter().collect();
    newest_first.sort_by_key(|(_, choice)| std::cmp::Reverse(choice.at));
    let mut bytes = 0;
    newest_first
        .into_iter()
        .take_while(|(address, choice)| {
            bytes += address.len() + choice.why.len();
            bytes <= MOST_CHOICES_BYTES
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::cluster::Node;
    use crate::plan::{Action, Change, Outcome, Part, PlanReason, Reason};

    const NOW: OffsetDateTime = datetime!(2026-01-02 03:04 UTC);

    fn cluster(addresses: &[&str]) -> Cluster {
        let node = |address: &&str| Node { address: (*address).to_owned(), ..Node::default() };
        Cluster { nodes: addresses.iter().map(node).collect(), ..Cluster::default() }
    }

    fn plan(changes: &[(ChangeKind, &str)]) -> Plan {
        let change = |(change, address): &(ChangeKind, &str)| Change {
            change: *change,
            address: (*address).to_owned(),
            part: Part::Worker,
        };
        let reason = |(_, address): &(ChangeKind, &str)| {
            Reason::new(Action::IncreaseWorkers, Outcome::Fired, PlanReason::NoCluster).with_address(address)
        };
        Plan {
            changes: changes.iter().map(change).collect(),
            reasons: changes.iter().map(reason).collect(),
            ..Plan::default()
        }
    }

    fn earlier(addresses: &[&str], bytes: usize) -> Choices {
        let choice = |address: &&str| Choice {
            at: NOW - time::Duration::days(i64::from(address.as_bytes()[0])),
            why: "x".repeat(bytes),
        };
        addresses.iter().map(|address| ((*address).to_owned(), choice(address))).collect()
    }

    #[test]
    fn a_choice_stays_with_its_node_until_the_node_leaves_or_gets_another_part() {
        let changes = plan(&[
            (ChangeKind::Remove, "b"),
            (ChangeKind::Promote, "c"),
            (ChangeKind::Add, "d"),
            (ChangeKind::Taint, "a"),
        ]);
        let after =
            choices_after(earlier(&["a", "b", "c"], 1), &changes, &cluster(&["a", "c", "d", "e"]), NOW);
        let times: Vec<(&str, bool)> =
            after.iter().map(|(address, choice)| (address.as_str(), choice.at == NOW)).collect();
        assert_eq!(times, [("a", false), ("c", true), ("d", true)]);
    }

    #[test]
    fn the_oldest_choices_are_left_out_first() {
        let known = earlier(&["a", "b", "c"], MOST_CHOICES_BYTES / 2 - 1);
        let after = choices_after(known, &Plan::default(), &cluster(&["a", "b", "c"]), NOW);
        assert_eq!(after.keys().collect::<Vec<_>>(), ["a", "b"]);
    }
}

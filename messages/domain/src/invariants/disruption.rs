//! I15: nodes that are not Ready because of a roll stay within its wave, and no node is drained while too many others are
//! unreachable.

use std::collections::BTreeSet;

use super::{Id, Violation};
use crate::rollout::Rollout;

/// I15 of a change of the roll of kubelets and proxies: nodes restart only after the wave before them is good, while the roll
/// goes on, and no more of them than the wave may have.
#[must_use]
pub fn check_wave(before: Option<&Rollout>, after: &Rollout) -> Option<Violation> {
    let before = before.map_or_else(|| Rollout::new(&after.image), |before| before.for_image(&after.image));
    let begun = after.watched.iter().filter(|(node, _)| !before.watched.contains_key(*node));
    let most = begun.clone().map(|(_, component)| before.wave_size(component)).min().unwrap_or(1);
    let begun = begun.count();
    let what = match begun {
        0 => return None,
        _ if before.paused => format!("a wave of {begun} nodes begins while an operator pauses the roll"),
        _ if before.halted => {
            format!("a wave of {begun} nodes begins after {} nodes failed", before.failed.len())
        }
        _ if !before.watched.is_empty() => {
            format!(
                "a wave of {begun} nodes begins while {} nodes of the wave before are not known to be good",
                before.watched.len()
            )
        }
        _ if begun > most => format!("a wave of {begun} nodes begins; the roll allows {most}"),
        _ => return None,
    };
    Some(Violation { invariant: Id::I15, what })
}

/// I15 of the drain of a node for a reboot or an upgrade. `unreachable` are the nodes of the cluster that do not answer and do
/// not reboot, `maximum` is the constraint `maximum-unreachable-nodes-for-reboot`.
#[must_use]
pub fn check_drain(node: &str, unreachable: &BTreeSet<&str>, maximum: usize) -> Option<Violation> {
    let what = || {
        let count = unreachable.len();
        let first = unreachable.first().copied().unwrap_or_default();
        format!(
            "{node} would be drained while {count} nodes are unreachable, first {first}; the limit is {maximum}"
        )
    };
    (unreachable.len() > maximum).then(|| Violation { invariant: Id::I15, what: what() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_begins_only_while_few_nodes_are_unreachable() {
        let check = |unreachable: &[&str], maximum| {
            let unreachable = unreachable.iter().copied().collect();
            check_drain("a", &unreachable, maximum).map(|violation| violation.to_string())
        };
        assert_eq!(check(&[], 0), None);
        assert_eq!(check(&["b"], 1), None);
        assert_eq!(
            check(&["c", "b"], 1).unwrap(),
            "I15: a would be drained while 2 nodes are unreachable, first b; the limit is 1"
        );
    }

    fn judge(begun: usize, spoil: impl FnOnce(&mut Rollout)) -> Option<String> {
        let mut before = Rollout { waves: [("kubelet".to_owned(), 2)].into(), ..Rollout::new("k:1") };
        spoil(&mut before);
        let mut after = before.for_image("k:1");
        let nodes: Vec<String> = (0..begun).map(|number| format!("n{number}")).collect();
        after.begin_wave("kubelet", &nodes);
        check_wave(Some(&before), &after).map(|violation| violation.to_string())
    }

    #[test]
    fn a_wave_begins_after_a_good_one_and_has_at_most_its_nodes() {
        assert_eq!(judge(2, |_| {}), None);
        assert_eq!(judge(3, |_| {}).unwrap(), "I15: a wave of 3 nodes begins; the roll allows 2");
        assert!(judge(1, |roll| roll.halted = true).unwrap().contains("after 0 nodes failed"));
        assert!(judge(1, |roll| roll.paused = true).unwrap().contains("pauses the roll"));
        let watched = |roll: &mut Rollout| roll.begin_wave("kubelet", &["other".to_owned()]);
        assert!(judge(1, watched).unwrap().contains("1 nodes of the wave before"));
        assert_eq!(judge(0, watched), None, "no node is added");
    }

    #[test]
    fn the_first_wave_of_an_image_has_one_node() {
        let mut first = Rollout::new("k:2");
        first.begin_wave("kubelet", &["a".to_owned()]);
        assert_eq!(check_wave(None, &first), None);
        let halted = Rollout { halted: true, ..Rollout::new("k:1") };
        assert_eq!(check_wave(Some(&halted), &first), None, "failures of another image do not count");
        first.begin_wave("kubelet", &["b".to_owned()]);
        assert!(check_wave(None, &first).is_some());
    }
}

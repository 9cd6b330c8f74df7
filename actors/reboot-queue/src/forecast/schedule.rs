//! The order in which waiting entries begin, if each drain with its boot takes the same time: slots of workers, then
//! control plane nodes one at a time, as [`crate::pass`] decides.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// An entry that waits, in the order of the queue. Times count from now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) node: String,
    pub(super) is_control_plane: bool,
    /// End of the back-off.
    pub(super) not_before: Duration,
}

/// A node that drains or reboots, with its slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunningReboot {
    pub(super) node: String,
    pub(super) is_control_plane: bool,
    pub(super) ends: Duration,
}

/// The reboot of a waiting entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    /// Position of the entry in the list of waiting ones.
    pub(super) entry: usize,
    pub(super) begins: Duration,
    pub(super) ends: Duration,
}

/// The reboots in the order of their beginning. Each waiting entry has one.
///
/// `workers` is the number of slots, at least 1; `takes` is the time of one drain with its boot.
pub(super) fn schedule(
    begun: &[RunningReboot],
    waiting: &[Waiting],
    workers: u32,
    takes: Duration,
) -> Vec<Slot> {
    let mut later: BTreeMap<&str, VecDeque<usize>> = BTreeMap::new();
    for (at, entry) in waiting.iter().enumerate() {
        later.entry(&entry.node).or_default().push_back(at);
    }
    let mut running: Vec<RunningReboot> = begun.to_vec();
    let is_begun = |node: &str| begun.iter().any(|begun| begun.node == node);
    let first = later.iter_mut().filter(|(node, _)| !is_begun(node));
    // A node's second entry waits for its first one.
    let mut ready: BTreeSet<usize> = first.filter_map(|(_, entries)| entries.pop_front()).collect();
    let mut slots = Vec::with_capacity(waiting.len());
    let mut now = Duration::ZERO;
    loop {
        running.retain(|begun| {
            let runs = begun.ends > now;
            if !runs {
                ready.extend(later.get_mut(begun.node.as_str()).and_then(VecDeque::pop_front));
            }
            runs
        });
        if let Some(entry) = next(&running, waiting, &ready, (workers, now)) {
            ready.remove(&entry);
            let Waiting { node, is_control_plane, .. } = waiting[entry].clone();
            let ends = now.saturating_add(takes);
            running.push(RunningReboot { node, is_control_plane, ends });
            slots.push(Slot { entry, begins: now, ends });
            continue;
        }
        let ends = running.iter().map(|begun| begun.ends);
        let due = ready.iter().map(|at| waiting[*at].not_before);
        match ends.chain(due).filter(|at| *at > now).min() {
            Some(at) => now = at,
            None => return slots,
        }
    }
}

/// The entry that begins now.
fn next(
    running: &[RunningReboot],
    waiting: &[Waiting],
    ready: &BTreeSet<usize>,
    (workers, now): (u32, Duration),
) -> Option<usize> {
    if running.iter().any(|begun| begun.is_control_plane) {
        return None;
    }
    let due = |is_control_plane: bool| {
        let is_due = |at: &&usize| {
            let entry = &waiting[**at];
            entry.is_control_plane == is_control_plane && entry.not_before <= now
        };
        ready.iter().find(is_due).copied()
    };
    match due(false) {
        Some(worker) => {
            Some(worker).filter(|_| running.len() < usize::try_from(workers).unwrap_or(usize::MAX))
        }
        None => due(true).filter(|_| running.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{any, proptest};
    use proptest::{prop_assert, prop_assert_eq};

    use super::*;

    const TAKES: Duration = Duration::from_secs(10);

    fn waits(node: &str, is_control_plane: bool, seconds: u64) -> Waiting {
        Waiting { node: node.to_owned(), is_control_plane, not_before: Duration::from_secs(seconds) }
    }

    fn begun(node: &str, is_control_plane: bool, seconds: u64) -> RunningReboot {
        RunningReboot { node: node.to_owned(), is_control_plane, ends: Duration::from_secs(seconds) }
    }

    fn begins(begun: &[RunningReboot], waiting: &[Waiting], workers: u32) -> Vec<(String, u64)> {
        let slots = schedule(begun, waiting, workers, TAKES);
        slots.iter().map(|slot| (waiting[slot.entry].node.clone(), slot.begins.as_secs())).collect()
    }

    fn expected(pairs: &[(&str, u64)]) -> Vec<(String, u64)> {
        pairs.iter().map(|(node, seconds)| ((*node).to_owned(), *seconds)).collect()
    }

    #[test]
    fn workers_fill_their_slots_before_control_plane_nodes_reboot_one_at_a_time() {
        let waiting = [
            waits("a", true, 0),
            waits("v", false, 0),
            waits("w", false, 0),
            waits("b", true, 0),
            waits("x", false, 0),
        ];
        let found = begins(&[], &waiting, 2);
        assert_eq!(found, expected(&[("v", 0), ("w", 0), ("x", 10), ("a", 20), ("b", 30)]));
    }

    #[test]
    fn nodes_under_way_and_back_offs_delay_the_others() {
        let waiting = [waits("v", false, 35), waits("w", false, 0), waits("a", true, 0)];
        // The worker in back-off lets the control plane node go first.
        assert_eq!(begins(&[begun("x", false, 4)], &waiting, 1), expected(&[("w", 4), ("a", 14), ("v", 35)]));
        assert_eq!(begins(&[begun("b", true, 7)], &waiting, 1), expected(&[("w", 7), ("a", 17), ("v", 35)]));
    }

    #[test]
    fn second_entry_of_a_node_waits_for_its_first() {
        let waiting = [waits("v", false, 0), waits("v", false, 0), waits("w", false, 0)];
        assert_eq!(begins(&[], &waiting, 3), expected(&[("v", 0), ("w", 0), ("v", 10)]));
        let held = [waits("v", false, 25), waits("v", false, 0)];
        assert_eq!(begins(&[], &held, 3), expected(&[("v", 25), ("v", 35)]), "as in the queue");
        assert_eq!(begins(&[begun("v", false, 3)], &held[1..], 3), expected(&[("v", 3)]));
    }

    proptest! {
        #[test]
        fn each_entry_begins_once_within_the_limits(
            entries in vec((0..12_u8, any::<bool>(), 0..90_u64), 0..40),
            under_way in vec((12..16_u8, 0..60_u64), 0..3),
            workers in 1..5_u32,
            takes in 0..30_u64,
        ) {
            // Whether a node is of the control plane does not change.
            let is_control_plane = |node: u8| node < 3;
            let waiting: Vec<Waiting> = entries
                .iter()
                .map(|(node, backs_off, seconds)| {
                    waits(&node.to_string(), is_control_plane(*node), if *backs_off { *seconds } else { 0 })
                })
                .collect();
            let begun: Vec<RunningReboot> =
                under_way.iter().map(|(node, ends)| begun(&node.to_string(), false, *ends)).collect();
            let slots = schedule(&begun, &waiting, workers, Duration::from_secs(takes));
            let mut places: Vec<usize> = slots.iter().map(|slot| slot.entry).collect();
            prop_assert!(slots.is_sorted_by_key(|slot| slot.begins));
            places.sort_unstable();
            prop_assert_eq!(places, (0..waiting.len()).collect::<Vec<_>>());
            for slot in &slots {
                let entry = &waiting[slot.entry];
                prop_assert!(slot.begins >= entry.not_before);
                let others = slots.iter().filter(|other| {
                    other.entry != slot.entry && other.begins <= slot.begins && slot.begins < other.ends
                });
                let others: Vec<&Waiting> = others.map(|other| &waiting[other.entry]).collect();
                let before = begun.iter().filter(|begun| begun.ends > slot.begins).count();
                if takes > 0 && entry.is_control_plane {
                    prop_assert!(others.is_empty() && before == 0, "{entry:?} beside {others:?}");
                } else if takes > 0 {
                    prop_assert!(others.iter().all(|other| !other.is_control_plane && other.node != entry.node));
                    prop_assert!(others.len() + before < workers as usize);
                }
            }
        }
    }
}

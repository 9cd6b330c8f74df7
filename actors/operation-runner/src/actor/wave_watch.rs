//! The watch over the nodes of a wave of kubelets or proxies: the wave is good when each of them is good for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::rollout::WatchEnd;
use tokio::time::Instant;

use super::{Inputs, RunnerState};
use crate::kubernetes::minor_upgrade::emptied_nodes;
use crate::kubernetes::rollout::WatchedState;
use crate::limits::{WAVE_DEADLINE, WAVE_GOOD};

/// Times of the watch over the nodes of the present wave. A new leader begins them anew.
#[derive(Debug, Default)]
pub(super) struct WaveWatch(BTreeMap<String, WatchTimes>);

#[derive(Debug, Clone, Copy)]
struct WatchTimes {
    began: Instant,
    /// Time since which it is good; `None`: it is not.
    good_since: Option<Instant>,
    /// Time of the first look that did not tell whether containers restarted. A look that does leaves it: the watch of a node
    /// that is good for long enough ends.
    unchecked_since: Option<Instant>,
}

impl WaveWatch {
    /// Notes the present states of the watched nodes, and returns the watches that end. Nodes that left the cluster, or that reboot
    /// through the reboot queue, have no state.
    pub(super) fn note<'a>(
        &mut self,
        watched: impl Iterator<Item = &'a String>,
        states: &BTreeMap<String, WatchedState>,
        now: Instant,
    ) -> BTreeMap<String, WatchEnd> {
        let watched: BTreeSet<&String> = watched.collect();
        self.0.retain(|node, _| watched.contains(node));
        let mut ends = BTreeMap::new();
        for node in watched {
            let anew = WatchTimes { began: now, good_since: None, unchecked_since: None };
            let times = self.0.entry(node.clone()).or_insert(anew);
            let end = match states.get(node) {
                None | Some(WatchedState::NotRestarted) => Some(WatchEnd::Dropped),
                Some(WatchedState::Good) => {
                    let since = *times.good_since.get_or_insert(now);
                    (now - since >= WAVE_GOOD).then_some(WatchEnd::Good)
                }
                // The API is not a fault of the node: the watch begins anew.
                Some(WatchedState::Unknown) => {
                    *times = anew;
                    None
                }
                // The node may be bad, whatever keeps its pods from the check: it does not count as good, and not for ever as new.
                Some(WatchedState::Unchecked(why)) => {
                    let since = times.unchecked_since.unwrap_or(now);
                    *times = WatchTimes { unchecked_since: Some(since), ..anew };
                    (now - since >= WAVE_DEADLINE).then(|| WatchEnd::Failed(why.clone()))
                }
                Some(WatchedState::Bad(why)) => {
                    times.good_since = None;
                    (now - times.began >= WAVE_DEADLINE).then(|| WatchEnd::Failed(why.clone()))
                }
            };
            ends.extend(end.map(|end| (node.clone(), end)));
        }
        ends
    }

    /// Age of the wave whose nodes were noted last.
    pub(super) fn age(&self, now: Instant) -> Duration {
        self.0.values().map(|times| now.saturating_duration_since(times.began)).max().unwrap_or_default()
    }

    /// Time until a watched node may be good for long enough.
    pub(super) fn pause(&self, now: Instant) -> Option<Duration> {
        let left = |times: &WatchTimes| {
            let since = times.good_since.unwrap_or(now);
            (since + WAVE_GOOD).saturating_duration_since(now)
        };
        self.0.values().map(left).max()
    }
}

impl RunnerState {
    /// Addresses of the nodes on which containers may restart with the kubelet, as far as the last decision and the state of the
    /// reboot queue tell. They are not asked for restarted containers.
    pub(super) fn nodes_with_accepted_restarts(&self, inputs: &Inputs) -> BTreeSet<String> {
        let reboots = &inputs.state.repair.reboots;
        let emptied = emptied_nodes(self.given.settings.minor_upgrade, reboots, &inputs.cluster, None);
        let in_place = || {
            let nodes = inputs.cluster.nodes.iter().map(|node| &node.address);
            nodes.filter(|address| !self.same_minor.contains(*address)).cloned().collect()
        };
        emptied.unwrap_or_else(in_place)
    }
}

#[cfg(test)]
mod tests {
    use madako_domain::rollout::Rollout;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_wave_is_good_after_half_a_minute_without_an_interruption() {
        let mut rollout = Rollout::new("k:1");
        rollout.begin_wave("kubelet", &["a".to_owned()]);
        let mut watch = WaveWatch::default();
        let began = Instant::now();
        let mut note = |state: WatchedState, seconds: u32| {
            let ends = watch.note(
                rollout.watched.keys(),
                &BTreeMap::from([("a".to_owned(), state)]),
                began + SECOND * seconds,
            );
            ends.into_values().next()
        };
        let bad = || WatchedState::Bad("the node is not Ready".to_owned());
        assert_eq!(note(WatchedState::Good, 0), None);
        assert_eq!(note(WatchedState::Good, 29), None);
        assert_eq!(note(bad(), 30), None, "an interruption");
        assert_eq!(note(WatchedState::Good, 40), None);
        assert_eq!(note(WatchedState::Good, 70), Some(WatchEnd::Good));
        assert_eq!(note(bad(), 299), None);
        assert_eq!(note(WatchedState::Unknown, 300), None, "no API server answers");
        assert_eq!(note(bad(), 599), None);
        assert_eq!(note(bad(), 600), Some(WatchEnd::Failed("the node is not Ready".to_owned())));
        assert_eq!(note(WatchedState::NotRestarted, 601), Some(WatchEnd::Dropped));
        assert_eq!(watch.age(began + SECOND * 601), SECOND * 301, "since an API server answered");
        assert_eq!(
            watch.note(rollout.watched.keys(), &BTreeMap::new(), began)["a"],
            WatchEnd::Dropped,
            "it left"
        );
        assert_eq!(watch.note(std::iter::empty(), &BTreeMap::new(), began), BTreeMap::new());
        assert_eq!(watch.pause(began), None);
    }

    #[test]
    fn a_node_whose_containers_cannot_be_checked_fails_with_the_reason() {
        let watched = ["a".to_owned()];
        let mut watch = WaveWatch::default();
        let began = Instant::now();
        let mut note = |state: WatchedState, seconds: u32| {
            let states = BTreeMap::from([("a".to_owned(), state)]);
            watch.note(watched.iter(), &states, began + SECOND * seconds).into_values().next()
        };
        let unchecked = || WatchedState::Unchecked("silence".to_owned());
        assert_eq!(note(unchecked(), 0), None);
        assert_eq!(note(WatchedState::Unknown, 200), None, "no API server answers at all");
        assert_eq!(note(unchecked(), 210), None);
        assert_eq!(note(WatchedState::Good, 490), None, "one look is not enough");
        assert_eq!(note(unchecked(), 509), None);
        assert_eq!(note(unchecked(), 510), Some(WatchEnd::Failed("silence".to_owned())));
        assert_eq!(note(WatchedState::Good, 511), None);
        assert_eq!(note(WatchedState::Good, 541), Some(WatchEnd::Good));
    }
}

//! The watch over the nodes of a wave of kubelets or proxies: the wave is good when each of them is good for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::rollout::WatchEnd;
use tokio::time::Instant;

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
            let times = self.0.entry(node.clone()).or_insert(WatchTimes { began: now, good_since: None });
            let end = match states.get(node) {
                None | Some(WatchedState::NotRestarted) => Some(WatchEnd::Dropped),
                Some(WatchedState::Good) => {
                    let since = *times.good_since.get_or_insert(now);
                    (now - since >= WAVE_GOOD).then_some(WatchEnd::Good)
                }
                // The API is not a fault of the node: the watch begins anew.
                Some(WatchedState::Unknown) => {
                    *times = WatchTimes { began: now, good_since: None };
                    None
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
}

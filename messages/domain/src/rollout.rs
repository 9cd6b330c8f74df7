//! The roll of components to another image or other arguments (`madako/kubernetes/rollout`): the waves of kubelets and proxies, and
//! the API servers that failed. The next leader goes on with it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::canary::{Canary, is_planted};

/// Failed nodes that halt a roll, at least.
const FAILED_NODES: usize = 3;
/// Failed nodes that halt a roll, in percent of all nodes, if that is more.
const FAILED_PERCENT: usize = 5;

/// The state of the roll.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    /// The image that the nodes get. Another image begins anew.
    pub image: String,
    /// Nodes of the next wave of each component, at first one; 0: a node of the present wave has failed.
    #[serde(default)]
    pub waves: BTreeMap<String, usize>,
    /// Nodes of the present wave that are not known to be good, with the component that restarts.
    pub watched: BTreeMap<String, String>,
    /// Nodes that failed, with the reason.
    pub failed: BTreeMap<String, String>,
    /// Too many nodes failed: no wave begins until an operator resumes the roll.
    pub halted: bool,
    /// An operator paused the roll: no wave begins.
    pub paused: bool,
    /// The load of an API server for which the next wave is smaller than the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowed: Option<String>,
    /// API servers that did not pass their health checks in time after a start, with the reason. No healthy one restarts until
    /// each of them has passed the checks after another start, or an operator resumes the roll.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failed_servers: BTreeMap<String, String>,
}

/// The end of the watch over a node of a wave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEnd {
    /// The component has been good for long enough.
    Good,
    /// The component did not restart, or the node left the cluster.
    Dropped,
    /// The component was not good in time.
    Failed(String),
}

impl Rollout {
    /// A roll before its first wave.
    #[must_use]
    pub fn new(image: &str) -> Self {
        Self { image: image.to_owned(), ..Self::default() }
    }

    /// The roll for an image. A pause is the operator's, and stays.
    #[must_use]
    pub fn for_image(&self, image: &str) -> Self {
        if self.image == image { self.clone() } else { Self { paused: self.paused, ..Self::new(image) } }
    }

    /// Failed nodes that halt the roll in a cluster.
    #[must_use]
    pub fn halt_limit(nodes: usize) -> usize {
        FAILED_NODES.max((nodes * FAILED_PERCENT).div_ceil(100))
    }

    /// Nodes that the next wave of a component may have.
    #[must_use]
    pub fn wave_size(&self, component: &str) -> usize {
        self.waves.get(component).map_or(1, |nodes| (*nodes).max(1))
    }

    /// Most nodes of the next wave of each component that has had one, such as `kubelet 4, kube-proxy 1`.
    #[must_use]
    pub fn next_waves(&self) -> String {
        let sizes = self.waves.keys().map(|component| format!("{component} {}", self.wave_size(component)));
        sizes.collect::<Vec<_>>().join(", ")
    }

    /// Notes the nodes of a wave before the component restarts on them.
    pub fn begin_wave(&mut self, component: &str, nodes: &[String]) {
        self.watched.extend(nodes.iter().map(|node| (node.clone(), component.to_owned())));
    }

    /// Notes the ends of watches. After the last one, the next wave of the component has twice as many nodes, at most `most`, or
    /// one after a failure. With a `load` of the API, it has half as many. `nodes` is the size of the cluster.
    pub fn end_watches(
        &mut self,
        ends: &BTreeMap<String, WatchEnd>,
        most: usize,
        nodes: usize,
        load: Option<&str>,
    ) {
        let mut ended = None;
        for (node, end) in ends {
            let Some(component) = self.watched.remove(node) else { continue };
            let wave = self.waves.entry(component.clone()).or_insert(1);
            ended = Some(component);
            match end {
                WatchEnd::Good => drop(self.failed.remove(node)),
                WatchEnd::Dropped => {}
                WatchEnd::Failed(_) if is_planted(Canary::WaveCountsNoFailures) => {}
                WatchEnd::Failed(why) => {
                    self.failed.insert(node.clone(), why.clone());
                    *wave = 0;
                }
            }
        }
        self.halted |= self.failed.len() >= Self::halt_limit(nodes);
        let is_proved = ends.values().any(|end| *end != WatchEnd::Dropped);
        let ended = ended.filter(|_| self.watched.is_empty());
        if let Some(wave) = ended.and_then(|component| self.waves.get_mut(&component))
            && (is_proved || *wave == 0)
        {
            let next = if load.is_some() { *wave / 2 } else { *wave * 2 };
            *wave = next.clamp(1, most.max(1));
            self.slowed = load.map(str::to_owned);
        }
    }

    /// Lets the next roll of a component, which is as wanted on all nodes, begin with one node.
    pub fn end_roll(&mut self, component: &str) {
        self.waves.remove(component);
        if self.waves.is_empty() {
            self.slowed = None;
        }
    }

    /// Lets the roll go on, from one node on if nodes had failed.
    pub fn resume(&mut self) {
        if self.halted || !self.failed.is_empty() {
            self.waves.clear();
        }
        self.failed.clear();
        self.failed_servers.clear();
        (self.halted, self.paused) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn ends(of: &[(&str, WatchEnd)]) -> BTreeMap<String, WatchEnd> {
        of.iter().map(|(node, end)| ((*node).to_owned(), end.clone())).collect()
    }

    #[test]
    fn each_good_wave_doubles_the_next_one_and_a_failure_makes_it_small() {
        let mut rollout = Rollout::new("k:1");
        rollout.begin_wave("kubelet", &nodes(&["a"]));
        rollout.end_watches(&ends(&[("a", WatchEnd::Good)]), 3, 10, None);
        assert_eq!(rollout.wave_size("kubelet"), 2);
        rollout.begin_wave("kubelet", &nodes(&["b", "c"]));
        rollout.end_watches(&ends(&[("b", WatchEnd::Good)]), 3, 10, None);
        assert_eq!(
            (rollout.wave_size("kubelet"), rollout.watched.len()),
            (2, 1),
            "c is not known to be good"
        );
        rollout.end_watches(&ends(&[("c", WatchEnd::Good)]), 3, 10, None);
        assert_eq!(rollout.wave_size("kubelet"), 3, "the maximum");
        assert_eq!(rollout.wave_size("kube-proxy"), 1, "each component begins with one node");
        rollout.begin_wave("kubelet", &nodes(&["d", "e"]));
        rollout.end_watches(&ends(&[("d", WatchEnd::Failed("x".to_owned()))]), 3, 10, None);
        assert_eq!((rollout.waves["kubelet"], rollout.wave_size("kubelet"), rollout.halted), (0, 1, false));
        rollout.end_watches(&ends(&[("e", WatchEnd::Good)]), 3, 10, None);
        assert_eq!(rollout.wave_size("kubelet"), 1);
        rollout.begin_wave("kubelet", &nodes(&["d"]));
        rollout.end_watches(&ends(&[("d", WatchEnd::Good)]), 3, 10, None);
        assert_eq!(
            (rollout.wave_size("kubelet"), rollout.failed.len()),
            (2, 0),
            "a node that is good has not failed"
        );
        rollout.begin_wave("kubelet", &nodes(&["f"]));
        rollout.end_watches(&ends(&[("f", WatchEnd::Dropped)]), 3, 10, None);
        assert_eq!(rollout.wave_size("kubelet"), 2, "a wave without a restart proves nothing");
        rollout.slowed = Some("slow".to_owned());
        rollout.end_roll("kubelet");
        assert_eq!((rollout.wave_size("kubelet"), rollout.slowed), (1, None));
    }

    #[test]
    fn a_load_of_the_api_halves_the_next_wave_and_says_why() {
        let mut rollout = Rollout { waves: [("kubelet".to_owned(), 5)].into(), ..Rollout::new("k:1") };
        let mut wave = |load: Option<&str>| {
            rollout.begin_wave("kubelet", &nodes(&["a"]));
            rollout.end_watches(&ends(&[("a", WatchEnd::Good)]), 8, 10, load);
            (rollout.wave_size("kubelet"), rollout.slowed.clone())
        };
        assert_eq!(wave(Some("slow")), (2, Some("slow".to_owned())));
        assert_eq!(wave(Some("slow")).0, 1);
        assert_eq!(wave(Some("slow")).0, 1, "the roll goes on");
        assert_eq!(wave(None), (2, None));
    }

    #[test]
    fn three_failed_nodes_or_five_percent_halt_the_roll_until_it_is_resumed() {
        assert_eq!([1, 60, 61, 1000].map(Rollout::halt_limit), [3, 3, 4, 50]);
        let mut rollout = Rollout::new("k:1");
        let failed = WatchEnd::Failed("x".to_owned());
        rollout.begin_wave("kubelet", &nodes(&["a", "b", "c"]));
        rollout.end_watches(&ends(&[("a", failed.clone()), ("b", failed.clone())]), 3, 10, None);
        assert!(!rollout.halted);
        rollout.end_watches(&ends(&[("c", failed)]), 3, 10, None);
        assert!(rollout.halted);
        assert!(!rollout.for_image("k:2").halted, "another image begins anew");
        rollout.failed_servers.insert("s".to_owned(), "x".to_owned());
        assert!(rollout.for_image("k:2").failed_servers.is_empty());
        rollout.paused = true;
        assert!(rollout.for_image("k:2").paused && rollout.for_image("k:1") == rollout);
        rollout.resume();
        assert_eq!(rollout, Rollout::new("k:1"));
    }

    #[test]
    fn the_stored_form_is_stable() {
        let mut rollout = Rollout::new("k:1");
        rollout.begin_wave("kubelet", &nodes(&["a"]));
        let text = serde_json::to_string(&rollout).unwrap();
        let expected = r#"{"image":"k:1","waves":{},"watched":{"a":"kubelet"},"failed":{},"halted":false,"paused":false}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Rollout>(&text).unwrap(), rollout);
    }
}

//! Components of Kubernetes that end soon after each of their starts, such as a scheduler with an argument that it does not know.
//!
//! # Guarantees
//! - The next start of such a component on its node waits: 30 s after the second end in a row, twice as long after each further one,
//!   at most 10 min. Meanwhile nothing else on the node waits. After the first end it starts at once, as after a kill by an operator.
//! - A component that has run for [`EARLY_END`] starts at once after its next end.
//! - Another cluster configuration or image of Kubernetes ends all pauses: it may have corrected the component. So does another
//!   leader, which does not know the starts of the one before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::component::Component;
use madako_protocol::permit::Moment;

use crate::backing_off::pause_after;
use crate::limits::EARLY_END;

/// A component on a node, which its address names.
pub(crate) type ComponentOnNode = (String, Component);

/// Revision of the cluster configuration, and the image of Kubernetes.
pub(crate) type WantedState = (i64, String);

/// The components that the service has started, until each has run for long enough.
#[derive(Debug, Default)]
pub(crate) struct EarlyEnds {
    starts: BTreeMap<ComponentOnNode, Start>,
    /// The wanted state for which the starts count.
    wanted: WantedState,
}

#[derive(Debug, Clone, Copy)]
struct Start {
    at: Moment,
    /// Number of the starts in a row after which the component ended early.
    ends: u32,
    /// The component has ended: end of the pause before the next start.
    until: Option<Moment>,
}

impl EarlyEnds {
    pub(crate) fn note_starts(&mut self, component: Component, nodes: &[String], now: Moment) {
        for node in nodes {
            let start = self.starts.entry((node.clone(), component));
            let start = start.or_insert(Start { at: now, ends: 0, until: None });
            (start.at, start.until) = (now, None);
        }
    }

    /// Notes the states of the components: they run or not, or `None` if nothing is known of the node.
    pub(crate) fn note_states(&mut self, runs: impl Fn(&str, Component) -> Option<bool>, now: Moment) {
        self.starts.retain(|(node, component), start| {
            let is_early = now - start.at < EARLY_END;
            match runs(node, *component) {
                None => true,
                // A component that runs after its end was started by another program.
                Some(true) => is_early && start.until.is_none(),
                // Its next start follows the pause.
                Some(false) if start.until.is_some() => true,
                Some(false) if is_early => {
                    let pause = start.ends.checked_sub(1).map_or(Duration::ZERO, pause_after);
                    start.until = Some(now + pause);
                    start.ends += 1;
                    true
                }
                Some(false) => false,
            }
        });
    }

    /// Forgets nodes outside of the cluster.
    pub(crate) fn retain(&mut self, is_node: impl Fn(&str) -> bool) {
        self.starts.retain(|(node, _), _| is_node(node));
    }

    pub(crate) fn wanted(&self) -> &WantedState {
        &self.wanted
    }

    pub(crate) fn note_wanted(&mut self, revision: i64, image: &str) {
        if (self.wanted.0, self.wanted.1.as_str()) != (revision, image) {
            *self = Self { starts: BTreeMap::new(), wanted: (revision, image.to_owned()) };
        }
    }

    /// The components whose next start waits, with the end of their pause.
    pub(crate) fn remaining_pauses(&self, now: Moment) -> impl Iterator<Item = (&ComponentOnNode, Moment)> {
        let until = self.starts.iter().filter_map(|(component, start)| Some((component, start.until?)));
        until.filter(move |(_, until)| *until > now)
    }

    pub(crate) fn pausing(&self, now: Moment) -> BTreeSet<ComponentOnNode> {
        self.remaining_pauses(now).map(|(component, _)| component.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "10.0.0.1";

    #[test]
    fn each_early_end_doubles_the_pause_and_a_long_run_or_another_configuration_ends_it() {
        let began = Moment::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut ends = EarlyEnds::default();
        ends.note_wanted(7, "k:1");
        let mut pauses = Vec::new();
        for number in 0..7 {
            let now = at(10_000 * number);
            ends.note_starts(Component::Scheduler, &[NODE.to_owned()], now);
            ends.note_states(|_, _| None, now);
            ends.note_states(|_, _| Some(false), now + Duration::from_secs(1));
            ends.note_states(|_, _| Some(false), now + Duration::from_secs(9));
            let (_, until) = ends.remaining_pauses(now).next().unwrap();
            pauses.push((until - now).as_secs() - 1);
        }
        assert_eq!(pauses, [0, 30, 60, 120, 240, 480, 600]);
        let now = at(60_001);
        assert_eq!(ends.pausing(now), BTreeSet::from([(NODE.to_owned(), Component::Scheduler)]));
        ends.note_wanted(7, "k:1");
        assert_eq!(ends.pausing(now).len(), 1);
        ends.note_wanted(8, "k:1");
        assert_eq!(ends.pausing(now).len(), 0, "another configuration");

        ends.note_starts(Component::Scheduler, &[NODE.to_owned()], now);
        ends.note_states(|_, _| Some(true), now + EARLY_END);
        ends.note_states(|_, _| Some(false), now + EARLY_END);
        assert_eq!(ends.pausing(now).len(), 0, "it ran for long enough");
        ends.note_starts(Component::Scheduler, &[NODE.to_owned()], now);
        ends.retain(|node| node != NODE);
        assert!(ends.starts.is_empty(), "the node left the cluster");
    }
}

//! The simulated network: the links between all hosts, and the faults of each host: the conditions of a link's two ends
//! determine what the link does.
//!
//! Faults of a host combine: a link that is both slow and silent is silent, and is slow after the silence. Each
//! condition counts its faults and ends with the last one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use madako_faults::{DELAY, LOSS_PERCENT};

use crate::link::{Link, LinkTraffic, Mode};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Endpoint {
    Instance(u32),
    Store,
    Registry,
    Provider,
    /// One of several providers of metrics, by number.
    ProviderOf(u32),
    /// The nodes of the cluster, with their etcd.
    Nodes,
    /// Clients of all kinds. Their own links have no faults.
    People,
}

/// Conditions of an end, each with the number of faults that cause it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Condition {
    /// The place does not run: connections break, and none can be made.
    pub down: u32,
    /// Bytes to and from the place wait without an error.
    pub silent: u32,
    /// Bytes to and from the place are late.
    pub slow: u32,
    /// The network loses a part of the segments to and from the place.
    pub lossy: u32,
}

struct PlaceLink {
    ends: (Endpoint, Endpoint),
    link: Link,
}

#[derive(Default)]
struct NetworkState {
    seed: u64,
    made: u64,
    conditions: BTreeMap<Endpoint, Condition>,
    ways: Vec<PlaceLink>,
    /// Traffic of removed links.
    gone: BTreeMap<(Endpoint, Endpoint), LinkTraffic>,
}

/// All links. Clones are the same network.
#[derive(Clone, Default)]
pub struct Network(Arc<Mutex<NetworkState>>);

impl Network {
    /// A network without links; `seed` decides which segments get lost.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(NetworkState { seed, ..NetworkState::default() })))
    }

    #[must_use]
    pub fn link(&self, from: Endpoint, to: Endpoint) -> Link {
        let mut inner = self.0.lock().unwrap();
        inner.made += 1;
        let link = Link::from_seed(inner.seed.wrapping_mul(0x9e37_79b9).wrapping_add(inner.made));
        let way = PlaceLink { ends: (from, to), link: link.clone() };
        inner.apply(&way);
        inner.ways.push(way);
        link
    }

    /// Breaks all links of an end for good. A restarted process gets new links.
    pub fn forget(&self, place: Endpoint) {
        let mut inner = self.0.lock().unwrap();
        let (gone, kept): (Vec<PlaceLink>, Vec<PlaceLink>) = std::mem::take(&mut inner.ways)
            .into_iter()
            .partition(|way| way.ends.0 == place || way.ends.1 == place);
        inner.ways = kept;
        for way in gone {
            way.link.set(Mode::Cut);
            let used = way.link.traffic();
            add_traffic(inner.gone.entry(way.ends).or_default(), used);
        }
    }

    /// Changes the condition of an end, and the mode of its links accordingly.
    pub fn change(&self, place: Endpoint, change: impl FnOnce(&mut Condition)) {
        let mut inner = self.0.lock().unwrap();
        change(inner.conditions.entry(place).or_default());
        for way in inner.links_of(place) {
            inner.apply(way);
        }
    }

    /// Breaks the present connections of an end. New ones can be made.
    pub fn reset(&self, place: Endpoint) {
        let inner = self.0.lock().unwrap();
        inner.links_of(place).for_each(|way| way.link.reset());
    }

    #[must_use]
    pub fn condition_of(&self, place: Endpoint) -> Condition {
        self.0.lock().unwrap().conditions.get(&place).copied().unwrap_or_default()
    }

    /// Traffic of all links whose ends satisfy `is`.
    #[must_use]
    pub fn sum_traffic(&self, is: impl Fn(Endpoint, Endpoint) -> bool) -> LinkTraffic {
        let inner = self.0.lock().unwrap();
        let mut sum = LinkTraffic::default();
        let gone = inner.gone.iter().map(|(ends, used)| (*ends, *used));
        let there = inner.ways.iter().map(|way| (way.ends, way.link.traffic()));
        for (_, used) in gone.chain(there).filter(|((from, to), _)| is(*from, *to)) {
            add_traffic(&mut sum, used);
        }
        sum
    }
}

fn add_traffic(sum: &mut LinkTraffic, used: LinkTraffic) {
    sum.connections += used.connections;
    sum.sent += used.sent;
    sum.received += used.received;
}

impl NetworkState {
    fn links_of(&self, place: Endpoint) -> impl Iterator<Item = &PlaceLink> {
        self.ways.iter().filter(move |way| way.ends.0 == place || way.ends.1 == place)
    }

    fn apply(&self, way: &PlaceLink) {
        let condition = |place| self.conditions.get(&place).copied().unwrap_or_default();
        let (from, to) = (condition(way.ends.0), condition(way.ends.1));
        let mode = if from.down + to.down > 0 {
            Mode::Cut
        } else if from.silent + to.silent > 0 {
            Mode::Stalled
        } else {
            Mode::Open
        };
        if way.link.mode() != mode {
            way.link.set(mode);
        }
        let late = u32::from(from.slow > 0) + u32::from(to.slow > 0);
        let passes = |percent: u32, end: Condition| {
            if end.lossy > 0 { percent * (100 - LOSS_PERCENT) / 100 } else { percent }
        };
        way.link.slow_down(DELAY * late, 100 - passes(passes(100, from), to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_has_the_worse_condition_of_its_ends() {
        let network = Network::new(1);
        let ends = (Endpoint::Instance(1), Endpoint::Store);
        let link = network.link(ends.0, ends.1);
        let other = network.link(Endpoint::Instance(2), Endpoint::Registry);
        network.change(ends.0, |condition| condition.silent += 1);
        network.change(ends.1, |condition| condition.silent += 1);
        assert_eq!(link.mode(), Mode::Stalled);
        network.change(ends.1, |condition| condition.down += 1);
        assert_eq!(link.mode(), Mode::Cut);
        network.change(ends.1, |condition| condition.down -= 1);
        network.change(ends.0, |condition| condition.silent -= 1);
        assert_eq!(link.mode(), Mode::Stalled, "the other end is still silent");
        network.change(ends.1, |condition| condition.silent -= 1);
        assert_eq!((link.mode(), other.mode()), (Mode::Open, Mode::Open));
        network.change(ends.0, |condition| condition.slow += 2);
        assert_eq!((link.draw_latency(), other.draw_latency()), (DELAY, std::time::Duration::ZERO));
        network.change(ends.1, |condition| condition.slow += 1);
        assert_eq!(link.draw_latency(), DELAY * 2, "once for each end");
    }

    #[test]
    fn lossy_link_is_late_at_times() {
        let network = Network::new(1);
        let link = network.link(Endpoint::Instance(1), Endpoint::Store);
        network.change(Endpoint::Store, |condition| condition.lossy += 1);
        let late = (0..1000).filter(|_| !link.draw_latency().is_zero()).count();
        assert!((60..150).contains(&late), "{late} of a thousand are late");
    }
}

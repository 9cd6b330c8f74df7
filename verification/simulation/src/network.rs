//! Who talks to whom, and what is wrong with each of them: from the state of two ends follows what their links do.
//!
//! Faults hold side by side: what is both slow and silent is silent, and is slow when the silence is over. Each is counted, so
//! that it is well only when the last one has ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use madako_faults::{DELAY, LOSS_PERCENT};

use crate::link::{Link, Mode, Used};

/// An end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// An instance, by its number.
    Instance(u32),
    /// The store.
    Store,
    /// The registry of machines.
    Registry,
    /// The provider of metrics.
    Provider,
    /// One of several providers of metrics, by its number.
    ProviderOf(u32),
    /// Clients of all kinds, whose own ways are always well.
    People,
}

/// What is wrong with an end, each as often as there are faults that say so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Condition {
    /// It does not run: connections break, none is made.
    pub down: u32,
    /// Nothing gets to it or from it, and nobody is told.
    pub silent: u32,
    /// What gets to it or from it is late.
    pub slow: u32,
    /// Some of it is lost.
    pub lossy: u32,
}

/// A link between two ends.
struct Way {
    ends: (Place, Place),
    link: Link,
}

#[derive(Default)]
struct Inside {
    seed: u64,
    made: u64,
    conditions: BTreeMap<Place, Condition>,
    ways: Vec<Way>,
    /// What went over links that are gone.
    gone: BTreeMap<(Place, Place), Used>,
}

/// All links. Clones are the same network.
#[derive(Clone, Default)]
pub struct Network(Arc<Mutex<Inside>>);

impl Network {
    /// Without links; what they lose is drawn from the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Inside { seed, ..Inside::default() })))
    }

    /// A new link between two ends.
    #[must_use]
    pub fn link(&self, from: Place, to: Place) -> Link {
        let mut inside = self.0.lock().unwrap();
        inside.made += 1;
        let link = Link::seeded(inside.seed.wrapping_mul(0x9e37_79b9).wrapping_add(inside.made));
        let way = Way { ends: (from, to), link: link.clone() };
        inside.apply(&way);
        inside.ways.push(way);
        link
    }

    /// Breaks all links of an end for good: whoever comes back gets new ones.
    pub fn forget(&self, place: Place) {
        let mut inside = self.0.lock().unwrap();
        let (gone, kept): (Vec<Way>, Vec<Way>) = std::mem::take(&mut inside.ways)
            .into_iter()
            .partition(|way| way.ends.0 == place || way.ends.1 == place);
        inside.ways = kept;
        for way in gone {
            way.link.set(Mode::Cut);
            let used = way.link.used();
            add(inside.gone.entry(way.ends).or_default(), used);
        }
    }

    /// Changes the condition of an end, and with it what its links do.
    pub fn change(&self, place: Place, change: impl FnOnce(&mut Condition)) {
        let mut inside = self.0.lock().unwrap();
        change(inside.conditions.entry(place).or_default());
        for way in inside.of(place) {
            inside.apply(way);
        }
    }

    /// Breaks each connection of an end, once.
    pub fn reset(&self, place: Place) {
        let inside = self.0.lock().unwrap();
        inside.of(place).for_each(|way| way.link.reset());
    }

    /// What is wrong with an end.
    #[must_use]
    pub fn condition(&self, place: Place) -> Condition {
        self.0.lock().unwrap().conditions.get(&place).copied().unwrap_or_default()
    }

    /// What went over the links between two kinds of ends.
    #[must_use]
    pub fn used(&self, is: impl Fn(Place, Place) -> bool) -> Used {
        let inside = self.0.lock().unwrap();
        let mut sum = Used::default();
        let gone = inside.gone.iter().map(|(ends, used)| (*ends, *used));
        let there = inside.ways.iter().map(|way| (way.ends, way.link.used()));
        for (_, used) in gone.chain(there).filter(|((from, to), _)| is(*from, *to)) {
            add(&mut sum, used);
        }
        sum
    }
}

fn add(sum: &mut Used, used: Used) {
    sum.connections += used.connections;
    sum.sent += used.sent;
    sum.received += used.received;
}

impl Inside {
    fn of(&self, place: Place) -> impl Iterator<Item = &Way> {
        self.ways.iter().filter(move |way| way.ends.0 == place || way.ends.1 == place)
    }

    fn apply(&self, way: &Way) {
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
    fn a_link_does_what_both_its_ends_allow() {
        let network = Network::new(1);
        let ends = (Place::Instance(1), Place::Store);
        let link = network.link(ends.0, ends.1);
        let other = network.link(Place::Instance(2), Place::Registry);
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
        assert_eq!((link.latency(), other.latency()), (DELAY, std::time::Duration::ZERO));
        network.change(ends.1, |condition| condition.slow += 1);
        assert_eq!(link.latency(), DELAY * 2, "once for each end");
    }

    #[test]
    fn what_loses_segments_is_late_now_and_then() {
        let network = Network::new(1);
        let link = network.link(Place::Instance(1), Place::Store);
        network.change(Place::Store, |condition| condition.lossy += 1);
        let late = (0..1000).filter(|_| !link.latency().is_zero()).count();
        assert!((60..150).contains(&late), "{late} of a thousand are late");
    }
}

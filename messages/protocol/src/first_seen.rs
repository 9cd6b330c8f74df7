//! Notes since when a node, a held operation or another object is in its present state. The memory ends with the actor:
//! a new one counts anew.

use std::collections::BTreeMap;

/// Unix times in seconds, by the object of the state.
#[derive(Debug)]
pub struct FirstSeenTimes<K>(BTreeMap<K, i64>);

impl<K> Default for FirstSeenTimes<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> FirstSeenTimes<K> {
    /// Notes the objects in that state at `now`. All others left it.
    pub fn note(&mut self, present: impl IntoIterator<Item = K>, now: i64) {
        let began = |key: K| {
            let since = self.0.get(&key).copied().unwrap_or(now);
            (key, since)
        };
        self.0 = present.into_iter().map(began).collect();
    }

    /// The time of one object.
    #[must_use]
    pub fn time_of(&self, key: &K) -> Option<i64> {
        self.0.get(key).copied()
    }

    /// The earliest of all times.
    #[must_use]
    pub fn earliest_time(&self) -> Option<i64> {
        self.0.values().copied().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_lasts_keeps_its_beginning_and_one_that_ended_begins_anew() {
        let mut since = FirstSeenTimes::default();
        assert_eq!(since.earliest_time(), None);
        since.note(["a"], 10);
        since.note(["a", "b"], 20);
        assert_eq!(
            (since.time_of(&"a"), since.time_of(&"b"), since.earliest_time()),
            (Some(10), Some(20), Some(10))
        );
        since.note(["b"], 30);
        since.note(["a", "b"], 40);
        assert_eq!((since.time_of(&"a"), since.earliest_time()), (Some(40), Some(20)));
    }
}

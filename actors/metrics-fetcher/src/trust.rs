//! Range and oscillation of a metric's values over the last hour.

use std::collections::VecDeque;
use std::time::Duration;

use madako_domain::placement::metrics::Trust;
use time::OffsetDateTime;

pub use crate::limits::{MEMORY, MOST_VALUES};

/// A change of direction counts above this part of the hour's range.
const SWING: f64 = 0.05;

/// The values of the last hour.
#[derive(Debug, Clone)]
pub struct ValueHistory {
    /// Monotonic arrival time and value.
    values: VecDeque<(Duration, f64)>,
    /// Derived from the values; read far more often than they change.
    trust: Trust,
}

impl ValueHistory {
    #[must_use]
    pub fn new(since: OffsetDateTime) -> Self {
        Self { values: VecDeque::new(), trust: Trust { since, range: None, turns: 0 } }
    }

    pub fn push(&mut self, elapsed: Duration, value: f64) {
        self.drop_old(elapsed);
        if self.values.len() == MOST_VALUES {
            self.values.pop_front();
        }
        self.values.push_back((elapsed, value));
        self.update_trust();
    }

    /// Drops values older than an hour.
    pub fn forget(&mut self, elapsed: Duration) {
        if self.drop_old(elapsed) {
            self.update_trust();
        }
    }

    #[must_use]
    pub fn trust(&self) -> Trust {
        self.trust
    }

    /// Drops expired values. Returns whether there were any.
    fn drop_old(&mut self, elapsed: Duration) -> bool {
        let before = self.values.len();
        while self.values.front().is_some_and(|(then, _)| elapsed.saturating_sub(*then) > MEMORY) {
            self.values.pop_front();
        }
        self.values.len() < before
    }

    fn update_trust(&mut self) {
        let values = || self.values.iter().map(|(_, value)| *value);
        let range = values().fold(None, |range, value| {
            let (low, high) = range.unwrap_or((value, value));
            Some((low.min(value), high.max(value)))
        });
        let turns = range.map_or(0, |(low, high)| needs_turn(values(), SWING * (high / 2.0 - low / 2.0)));
        self.trust = Trust { range, turns, ..self.trust };
    }
}

/// Counts the turns of the values: moves back from the last extreme by more than a threshold. The threshold is given
/// as its half, as halves never overflow.
fn needs_turn(values: impl Iterator<Item = f64>, threshold: f64) -> u32 {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    let mut rising: Option<bool> = None;
    let mut turns = 0;
    for value in values.map(|value| value / 2.0) {
        low = low.min(value);
        high = high.max(value);
        let (fell, rose) = (high - value > threshold, value - low > threshold);
        let now_rising = match rising {
            Some(true) if fell => false,
            Some(false) if rose => true,
            None if rose => true,
            None if fell => false,
            _ => continue,
        };
        turns += u32::from(rising.is_some());
        rising = Some(now_rising);
        // The search for the next extreme begins here.
        (low, high) = (value, value);
    }
    turns
}

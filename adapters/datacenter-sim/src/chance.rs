//! Deterministic random choices.
//!
//! A choice depends only on the seed, its kind, its subject and the number of earlier choices of that kind about that
//! subject. No generator position is shared. An operator's action on one machine, or a new kind of choice, therefore
//! leaves the rest of a history unchanged.

use std::time::Duration;

use rand::Rng;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Purpose of a choice. The number is part of every history: append new kinds at the end, never renumber.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum Kind {
    BmcType = 1,
    Product = 2,
    RegisterDate = 3,
    InHealthSince = 4,
    BrokenAtStart = 5,
    BreakAfter = 6,
    BreakWay = 7,
    RepairTakes = 8,
    RepairOutcome = 9,
    UpdateAfter = 10,
    UpdateTakes = 11,
    InitializeTakes = 12,
    AgeEvery = 13,
    RetireAfter = 14,
    RetiringTakes = 15,
    RetiredKept = 16,
    RetiredOutcome = 17,
    ReplacedAfter = 18,
    OutageAfter = 19,
    OutageTakes = 20,
    PowerOnTakes = 21,
    MetricTurn = 22,
    PodStartTakes = 23,
    PodEndTakes = 24,
    JobTakes = 25,
    PodNode = 26,
    CommandTakes = 27,
    CommandFate = 28,
    CommandHeals = 29,
    CheckConfused = 30,
    NodeDistance = 31,
    NodeLatency = 32,
    NodeBootTakes = 33,
    PullTakes = 34,
    ActionTakes = 35,
    EtcdStartTakes = 36,
    EtcdCatchUpTakes = 37,
    EtcdLatency = 38,
    VolumeDetachTakes = 39,
}

#[derive(Debug, Clone)]
pub(crate) struct SeededChance {
    // Cloned for each choice: seeding a new generator costs more than the choice.
    base: ChaCha8Rng,
}

impl SeededChance {
    pub(crate) fn new(seed: u64) -> Self {
        Self { base: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// The `nth` choice of a kind about a subject (a place or a rack).
    fn draw(&self, kind: Kind, subject: u32, nth: u32) -> u64 {
        let mut generator = self.base.clone();
        generator.set_stream((u64::from(kind as u8) << 32) | u64::from(subject));
        // A choice takes one 64-bit number, that is two of the generator's 32-bit words.
        generator.set_word_pos(u128::from(nth) * 2);
        generator.next_u64()
    }

    /// A number below `bound`, which must not be 0.
    pub(crate) fn number_below(&self, kind: Kind, subject: u32, nth: u32, bound: u64) -> u64 {
        // The high half of the product is uniform up to one part in 2^64 / bound.
        let wide = u128::from(self.draw(kind, subject, nth)) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the high half of a 128-bit product has 64 bits")
    }

    /// True with a probability of `percent` in a hundred.
    pub(crate) fn is_within_percent(&self, kind: Kind, subject: u32, nth: u32, percent: u8) -> bool {
        self.number_below(kind, subject, nth, 100) < u64::from(percent)
    }

    /// A time between zero and twice the mean.
    pub(crate) fn draw_wait(&self, kind: Kind, subject: u32, nth: u32, mean: Duration) -> Duration {
        let mean = to_milliseconds(mean);
        Duration::from_millis(1 + self.number_below(kind, subject, nth, 2 * mean))
    }

    /// A duration between half and one and a half times the mean.
    pub(crate) fn draw_duration(&self, kind: Kind, subject: u32, nth: u32, mean: Duration) -> Duration {
        let mean = to_milliseconds(mean);
        Duration::from_millis(1 + mean / 2 + self.number_below(kind, subject, nth, mean))
    }
}

/// A mean in whole milliseconds, at least one; far below 2^62, so that sums do not overflow.
fn to_milliseconds(mean: Duration) -> u64 {
    const HUNDRED_YEARS: u64 = 100 * 365 * 24 * 60 * 60 * 1000;
    u64::try_from(mean.as_millis()).unwrap_or(u64::MAX).clamp(1, HUNDRED_YEARS)
}

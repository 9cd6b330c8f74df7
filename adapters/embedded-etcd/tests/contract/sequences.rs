//! Random sequences of operations on a real etcd and on the embedded store: every answer, revision, error and watch
//! event must be equal.
//!
//! `MADAKO_CONTRACT_SEEDS=first..end` selects other seeds than the default ones.

use std::collections::VecDeque;
use std::ops::Range;

use etcd_client::proto::*;

use crate::generate::{Dice, KEYS, Known, Step, step};
use crate::outcome::{Outcome, perform};
use crate::peers::{Embedded, RealEtcd};
use crate::watchers::Watchers;

/// Default sequences, and steps of each. They take about twenty seconds together, most of it waits for etcd's own
/// intervals.
const SEEDS: Range<u64> = 0..12;
const STEPS: usize = 120;
/// Number of steps that are printed before the one that differs.
const SHOWN_STEPS: usize = 12;

struct Pair<'a> {
    real: &'a RealEtcd,
    embedded: &'a Embedded,
    real_watchers: Watchers,
    embedded_watchers: Watchers,
    known: Known,
    done: VecDeque<Step>,
    seed: u64,
}

#[tokio::test]
async fn random_sequences_are_answered_as_by_etcd() {
    let Some(real) = RealEtcd::start().await else { return };
    let embedded = Embedded::start().await;
    let mut known = Known { current: 1, compacted: -1 };
    for seed in seeds() {
        let mut pair = Pair {
            real: &real,
            embedded: &embedded,
            real_watchers: Watchers::open(&real.wire).await,
            embedded_watchers: Watchers::open(&embedded.wire).await,
            known,
            done: VecDeque::new(),
            seed,
        };
        let mut dice = Dice::new(seed);
        for _ in 0..STEPS {
            let step = step(&mut dice, pair.known);
            pair.step(step).await;
        }
        pair.compare_watches().await;
        pair.compare_history().await;
        known = pair.known;
    }
    embedded.stop().await;
}

fn seeds() -> Range<u64> {
    let Ok(seeds) = std::env::var("MADAKO_CONTRACT_SEEDS") else { return SEEDS };
    let (first, end) = seeds.split_once("..").expect("MADAKO_CONTRACT_SEEDS is first..end");
    first.parse().expect("a number")..end.parse().expect("a number")
}

impl Pair<'_> {
    async fn step(&mut self, step: Step) {
        if let Step::Compact(_) = step {
            // Previous values in a real etcd depend on the time of its compactions.
            self.compare_watches().await;
        }
        self.done.push_back(step.clone());
        if self.done.len() > SHOWN_STEPS {
            self.done.pop_front();
        }
        if let Step::Watch(request) = step {
            let real = self.real_watchers.create(request.clone()).await;
            let embedded = self.embedded_watchers.create(request).await;
            self.assert_equal(&embedded, &real);
            return;
        }
        let real = perform(&self.real.wire, &step).await;
        let embedded = perform(&self.embedded.wire, &step).await;
        self.assert_equal(&embedded, &real);
        if let Some(revision) = real.revision() {
            self.known.current = self.known.current.max(revision);
        }
        if let (Step::Compact(request), Outcome::Compact(_)) = (&step, &real) {
            self.known.compacted = request.revision;
        }
    }

    /// Writes a change that every watch receives, waits for it, and compares all received events.
    async fn compare_watches(&mut self) {
        let puts = KEYS.iter().map(|key| {
            PbTxnOpRequest::RequestPut(PbPutRequest {
                key: key.to_vec(),
                value: b"end".to_vec(),
                ..Default::default()
            })
        });
        let success = puts.map(|request| PbTxnRequestOp { request: Some(request) }).collect();
        let all = PbDeleteRequest { key: b"\0".to_vec(), range_end: b"\0".to_vec(), prev_kv: false };
        for step in [Step::Txn(PbTxnRequest { success, ..Default::default() }), Step::Delete(all)] {
            let real = perform(&self.real.wire, &step).await;
            self.assert_equal(&perform(&self.embedded.wire, &step).await, &real);
            self.known.current = real.revision().expect("it succeeds");
        }
        let reached = self.embedded_watchers.catch_up().await;
        assert_eq!(reached, self.known.current, "seed {}", self.seed);
        self.real_watchers.catch_up_with(&self.embedded_watchers.shown).await;
        for (id, shown) in &self.embedded_watchers.shown {
            self.assert_equal(shown, &self.real_watchers.shown[id]);
        }
    }

    /// All pairs at each readable revision, and its hash.
    async fn compare_history(&self) {
        for revision in self.known.compacted.max(self.known.current - 40)..=self.known.current {
            let all = PbRangeRequest {
                key: b"\0".to_vec(),
                range_end: b"\0".to_vec(),
                revision,
                ..PbRangeRequest::default()
            };
            for step in [Step::Range(all), Step::HashKv(PbHashKvRequest { revision })] {
                let real = perform(&self.real.wire, &step).await;
                self.assert_equal(&perform(&self.embedded.wire, &step).await, &real);
            }
        }
    }

    fn assert_equal<T: std::fmt::Debug + PartialEq>(&self, embedded: &T, real: &T) {
        if embedded == real {
            return;
        }
        for step in &self.done {
            println!("{step:?}");
        }
        panic!(
            "seed {}, revision {}, compacted {}: after the steps above\nembedded: {embedded:?}\netcd:     {real:?}",
            self.seed, self.known.current, self.known.compacted
        );
    }
}

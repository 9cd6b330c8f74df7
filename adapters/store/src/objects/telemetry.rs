//! Metrics of the cache.

use std::time::Duration;

use madako_domain::placement::kind::Kind;
use madako_protocol::placement::objects::Gap;
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use super::Shared;

const OBJECTS: &str = "madako_objects";
const REVISION: &str = "madako_objects_revision";
const FAULTS: &str = "madako_objects_faults";
const KEPT: &str = "madako_objects_changes_kept";
const FOLLOWERS: &str = "madako_objects_followers";
const GAPS: &str = "madako_objects_gaps_total";
const QUESTIONS: &str = "madako_objects_questions_total";
const READS: &str = "madako_objects_fresh_reads_total";
const SECONDS: &str = "madako_objects_fresh_seconds";
const OTHERS: &str = "madako_objects_other_keys";

pub(crate) fn describe() {
    describe_gauge!(OBJECTS, "Resources of placement, by kind.");
    describe_gauge!(REVISION, "Store revision of the view of placement's resources.");
    describe_gauge!(FAULTS, "Unreadable stored resources of placement; the log names them.");
    describe_gauge!(KEPT, "Changes of placement's resources kept for followers.");
    describe_gauge!(FOLLOWERS, "Followers of placement's resources.");
    describe_gauge!(OTHERS, "Keys outside placement in the last list of the store.");
    describe_counter!(GAPS, Unit::Count, "Followers that ended because they missed changes, by reason.");
    for reason in ["lagged", "relisted"] {
        // Create the series at zero.
        counter!(GAPS, "reason" => reason).increment(0);
    }
    describe_counter!(
        QUESTIONS,
        Unit::Count,
        "Requests for the store's revision; concurrent reads share a request."
    );
    describe_counter!(READS, Unit::Count, "Fresh reads, by outcome: ok or failed.");
    describe_histogram!(
        SECONDS,
        Unit::Seconds,
        "Time until the view reached the store's revision at the start of a read."
    );
}

/// Latest values of the gauges, so that only changed ones are set again.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    counts: Vec<usize>,
}

impl Gauges {
    #[allow(clippy::cast_precision_loss, reason = "revisions and counts stay far below 2^52")]
    pub(super) fn show(&mut self, shared: &Shared) {
        let (revision, faults, kept, counts) = {
            let view = shared.read();
            (view.revision(), view.fault_count(), view.ring().len(), view.counts())
        };
        gauge!(REVISION).set(revision as f64);
        gauge!(FAULTS).set(faults as f64);
        gauge!(KEPT).set(kept as f64);
        for (n, (kind, count)) in Kind::ALL.iter().zip(&counts).enumerate() {
            if self.counts.get(n) != Some(count) {
                gauge!(OBJECTS, "kind" => kind.name()).set(*count as f64);
            }
        }
        self.counts = counts;
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
pub(super) fn others(keys: usize) {
    gauge!(OTHERS).set(keys as f64);
}

pub(super) fn follower_came() {
    gauge!(FOLLOWERS).increment(1.0);
}

pub(super) fn follower_went() {
    gauge!(FOLLOWERS).decrement(1.0);
}

pub(super) fn gap(gap: &Gap) {
    let reason = match gap {
        Gap::Lagged { .. } => "lagged",
        Gap::Relisted { .. } => "relisted",
    };
    counter!(GAPS, "reason" => reason).increment(1);
}

pub(super) fn asked() {
    counter!(QUESTIONS).increment(1);
}

pub(super) fn fresh(ok: bool, took: Duration) {
    counter!(READS, "outcome" => if ok { "ok" } else { "failed" }).increment(1);
    histogram!(SECONDS).record(took.as_secs_f64());
}

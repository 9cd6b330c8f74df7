//! Durations of this fleet's own drains and boots, from the records of operations.

use std::collections::BTreeMap;
use std::time::Duration;

use madako_domain::record::Record;
use serde::Serialize;
use time::OffsetDateTime;

use crate::transition::{CANCEL, DEQUEUE, DRAIN_START, DRAIN_TIMEOUT, LEFT, REBOOT};

/// Operation of the operation runner that updates the kubelets of drained nodes.
pub const KUBELET_RESTART: &str = "kubelet-restart";

/// The reboots that the records show. At most 1,000 records are kept, so these are the last ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// From the start of a drain to its reboot command, or to the restart of its kubelet.
    drains: Vec<Duration>,
    /// From a reboot command to the removal of the entry of the booted node.
    boots: Vec<Duration>,
    aborted_drains: usize,
}

/// Durations that were observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MeasuredDuration {
    pub count: usize,
    pub median_seconds: u64,
    pub worst_seconds: u64,
}

/// The unfinished reboot of a node, while the records are read.
#[derive(Default)]
struct Progress {
    drain: Option<OffsetDateTime>,
    reboot: Option<OffsetDateTime>,
}

impl History {
    /// Reads records in the order of their ids. Records of other operations do not count, nor does a reboot whose
    /// beginning or end is missing.
    #[must_use]
    pub fn from_records<'a>(records: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut history = Self::default();
        let mut nodes: BTreeMap<&str, Progress> = BTreeMap::new();
        for record in records {
            if record.operation == KUBELET_RESTART {
                for node in &record.targets {
                    let drain = nodes.get_mut(node.as_str()).and_then(|progress| progress.drain.take());
                    history.drains.extend(drain.and_then(|since| duration_between(since, record.start_at)));
                }
                continue;
            }
            let Some(node) = record.targets.first() else { continue };
            let progress = nodes.entry(node).or_default();
            match record.operation.as_str() {
                DRAIN_START => *progress = Progress { drain: Some(record.start_at), reboot: None },
                DRAIN_TIMEOUT => {
                    history.aborted_drains += usize::from(progress.drain.take().is_some());
                }
                REBOOT => {
                    let drain = progress.drain.take();
                    history.drains.extend(drain.and_then(|since| duration_between(since, record.start_at)));
                    progress.reboot = Some(record.start_at);
                }
                DEQUEUE if record.info != LEFT => {
                    let reboot = progress.reboot.take();
                    history.boots.extend(reboot.and_then(|since| duration_between(since, record.start_at)));
                }
                DEQUEUE | CANCEL => *progress = Progress::default(),
                _ => {}
            }
        }
        history
    }

    #[must_use]
    pub fn drains(&self) -> Option<MeasuredDuration> {
        measure_durations(&self.drains)
    }

    #[must_use]
    pub fn boots(&self) -> Option<MeasuredDuration> {
        measure_durations(&self.boots)
    }

    #[must_use]
    pub fn aborted_drains(&self) -> usize {
        self.aborted_drains
    }
}

/// `None`: the clock was set back meanwhile.
fn duration_between(since: OffsetDateTime, until: OffsetDateTime) -> Option<Duration> {
    Duration::try_from(until - since).ok()
}

/// The median is the upper one of an even number.
fn measure_durations(durations: &[Duration]) -> Option<MeasuredDuration> {
    let mut sorted = durations.to_vec();
    sorted.sort_unstable();
    let (median, worst) = (sorted.get(sorted.len() / 2)?, sorted.last()?);
    Some(MeasuredDuration {
        count: sorted.len(),
        median_seconds: median.as_secs(),
        worst_seconds: worst.as_secs(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::NOW;

    fn record(id: i64, operation: &str, node: &str, seconds: i64) -> Record {
        let mut record =
            Record::new(id, operation, vec![node.to_owned()], NOW + time::Duration::seconds(seconds));
        record.complete(record.start_at);
        record
    }

    #[test]
    fn drains_and_boots_of_interleaved_reboots_are_measured() {
        let mut left = record(10, DEQUEUE, "x", 3000);
        LEFT.clone_into(&mut left.info);
        let records = [
            record(1, DRAIN_START, "v", 0),
            record(2, DRAIN_START, "w", 10),
            record(3, "etcd-restart", "v", 20),
            record(4, REBOOT, "w", 70),
            record(5, REBOOT, "v", 100),
            record(6, DEQUEUE, "v", 300),
            record(7, DEQUEUE, "w", 700),
            record(8, DRAIN_START, "x", 1000),
            record(9, REBOOT, "x", 1010),
            left,
        ];
        let history = History::from_records(&records);
        let drains = MeasuredDuration { count: 3, median_seconds: 60, worst_seconds: 100 };
        assert_eq!(history.drains(), Some(drains));
        let boots = MeasuredDuration { count: 2, median_seconds: 630, worst_seconds: 630 };
        assert_eq!(history.boots(), Some(boots), "a node that left did not boot");
        assert_eq!(history.aborted_drains(), 0);
    }

    #[test]
    fn a_drain_for_an_upgrade_ends_with_the_restart_of_the_kubelet() {
        let mut restart = record(3, KUBELET_RESTART, "v", 90);
        restart.targets.push("w".to_owned());
        let again = record(4, KUBELET_RESTART, "v", 500);
        let history = History::from_records(&[
            record(1, DRAIN_START, "v", 0),
            record(2, DRAIN_START, "w", 40),
            restart,
            again,
        ]);
        let drains = MeasuredDuration { count: 2, median_seconds: 90, worst_seconds: 90 };
        assert_eq!((history.drains(), history.boots()), (Some(drains), None));
    }

    #[test]
    fn aborted_and_cut_off_reboots_are_not_measured() {
        let records = [
            // The records before were removed.
            record(1, DEQUEUE, "u", 0),
            record(2, REBOOT, "v", 0),
            record(3, DRAIN_START, "w", 0),
            record(4, DRAIN_TIMEOUT, "w", 600),
            record(5, DRAIN_TIMEOUT, "w", 700),
            record(6, DRAIN_START, "x", 700),
            record(7, CANCEL, "x", 800),
            record(8, REBOOT, "x", 900),
            // The clock was set back.
            record(9, DEQUEUE, "x", 800),
        ];
        let history = History::from_records(&records);
        assert_eq!((history.drains(), history.boots(), history.aborted_drains()), (None, None, 1));
        assert_eq!(History::from_records(&[]), History::default());
    }
}

//! Logs the progress of the verification of the embedded store's file.
//!
//! Each step reads the file at most once. It skips pages without data and pages in redb's cache. The shown percentage
//! is therefore a lower bound of the progress and jumps ahead at the end of a step.

use tokio::time::Instant;

use crate::limits::PROGRESS_LOG_INTERVAL;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// redb opens the file and repairs the effects of a crash.
    Opening,
    Pages,
    /// Checksums of all records, which become the index.
    Records,
}

const STEPS: u64 = Step::Records as u64 + 1;

#[derive(Debug)]
pub(super) struct Progress {
    len: u64,
    step: Step,
    /// Bytes read in this step.
    read: u64,
    logged_at: Instant,
}

impl Progress {
    pub(super) fn new(len: u64, now: Instant) -> Self {
        Self { len, step: Step::Opening, read: 0, logged_at: now }
    }

    pub(super) fn enter(&mut self, step: Step) {
        (self.step, self.read) = (step, 0);
    }

    /// Counts bytes. Returns the percentage when the next log line is due.
    pub(super) fn record_read(&mut self, bytes: u64, now: Instant) -> Option<u64> {
        self.read = self.len.min(self.read.saturating_add(bytes));
        if now.duration_since(self.logged_at) < PROGRESS_LOG_INTERVAL {
            return None;
        }
        self.logged_at = now;
        let of_step = self.read.saturating_mul(100) / self.len.max(1);
        Some((self.step as u64 * 100 + of_step) / STEPS)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn long_verification_reports_its_progress_every_few_seconds() {
        let began = Instant::now();
        let mut progress = Progress::new(1_000, began);
        let mut read = |bytes, seconds| progress.record_read(bytes, began + Duration::from_secs(seconds));
        assert_eq!(read(300, 2), None);
        assert_eq!(read(300, 3), Some(20));
        assert_eq!(read(100, 5), None);
        // More bytes than the file has: pages are read repeatedly.
        assert_eq!(read(2_000, 7), Some(33));
        progress.enter(Step::Pages);
        assert_eq!(progress.record_read(500, began + Duration::from_secs(11)), Some(50));
        progress.enter(Step::Records);
        assert_eq!(progress.record_read(1_000, began + Duration::from_secs(14)), Some(100));
    }

    #[test]
    fn an_empty_file_has_a_share() {
        let began = Instant::now();
        assert_eq!(Progress::new(0, began).record_read(10, began + PROGRESS_LOG_INTERVAL), Some(0));
    }
}

//! Automatic compaction, by revisions and by bytes. It uses no clock, so that runs repeat.

use std::collections::VecDeque;

use crate::options::AutoCompaction;
use crate::range::ReadableRevisions;

/// Bytes written between two remembered revisions: the granularity of compaction by bytes.
const MARK_BYTES: u64 = 1024 * 1024;
/// History may exceed its limit by this fraction before a compaction, because each compaction scans the index.
const SLACK_DIVISOR: u64 = 4;

/// Tracks writes and chooses the revision to compact at.
#[derive(Debug)]
pub(crate) struct AutoCompactor {
    policy: AutoCompaction,
    /// Bytes written since the store was opened.
    written: u64,
    /// Revisions, each with the total of bytes written before it.
    marks: VecDeque<(i64, u64)>,
}

impl AutoCompactor {
    pub(crate) fn new(policy: AutoCompaction) -> Self {
        Self { policy, written: 0, marks: VecDeque::new() }
    }

    pub(crate) fn record_write(&mut self, main: i64, bytes: u64) {
        if self.marks.back().is_none_or(|(_, before)| self.written - before >= MARK_BYTES) {
            self.marks.push_back((main, self.written));
        }
        self.written += bytes;
    }

    /// The revision to compact at; `None` while history is within its limits.
    pub(crate) fn next_target(&mut self, view: ReadableRevisions) -> Option<i64> {
        if !self.policy.enabled {
            return None;
        }
        while self.marks.front().is_some_and(|(main, _)| *main <= view.compacted) {
            self.marks.pop_front();
        }
        let keep = i64::from(self.policy.keep_revisions);
        let slack = keep / SLACK_DIVISOR as i64;
        let by_revisions =
            (view.current - view.compacted.max(0) > keep + slack).then(|| view.current.saturating_sub(keep));
        let history = self.marks.front().map_or(0, |(_, before)| self.written - before);
        let too_much = history > self.policy.keep_bytes + self.policy.keep_bytes / SLACK_DIVISOR;
        let by_bytes = too_much
            .then(|| self.marks.iter().find(|(_, before)| self.written - before <= self.policy.keep_bytes))
            .flatten()
            .map(|(main, _)| main - 1);
        by_revisions.max(by_bytes).filter(|main| *main > view.compacted && *main <= view.current)
    }
}

#[cfg(test)]
mod tests {
    use super::AutoCompactor;
    use crate::options::AutoCompaction;
    use crate::range::ReadableRevisions;

    fn compactor(keep_revisions: u32, keep_bytes: u64) -> AutoCompactor {
        AutoCompactor::new(AutoCompaction { enabled: true, keep_revisions, keep_bytes })
    }

    #[test]
    fn cuts_history_to_its_revisions_once_the_slack_is_used_up() {
        let mut compactor = compactor(100, u64::MAX / 2);
        assert_eq!(compactor.next_target(ReadableRevisions { current: 125, compacted: -1 }), None);
        assert_eq!(compactor.next_target(ReadableRevisions { current: 126, compacted: -1 }), Some(26));
        assert_eq!(compactor.next_target(ReadableRevisions { current: 126, compacted: 26 }), None);
    }

    #[test]
    fn cuts_history_to_its_bytes_and_settles() {
        const MIB: u64 = 1024 * 1024;
        let mut compactor = compactor(u32::MAX, 8 * MIB);
        let mut view = ReadableRevisions { current: 1, compacted: -1 };
        let mut cuts = 0;
        for main in 2..200 {
            compactor.record_write(main, MIB);
            view.current = main;
            if let Some(target) = compactor.next_target(view) {
                assert!(main - target <= 8, "{main} {target}");
                view.compacted = target;
                cuts += 1;
            }
            assert!(main - view.compacted.max(1) <= 11, "{main} {}", view.compacted);
        }
        assert!((30..80).contains(&cuts), "{cuts} passes over the index");
    }
}

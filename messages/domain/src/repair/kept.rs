//! Madako's own state of a queue entry, beside the entry (`madako/repair/entries/<index in hex>`).
//!
//! Other programs write whole entries: `ckecli repair-queue reset-backoff` writes back an entry that it read earlier,
//! and thereby an older state. This state records the steps that must not run twice; it only ever advances.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};

/// A command that was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedRepairCommand {
    /// Index of the step in the procedure, from 0.
    pub step: u32,
    /// Start time, equal to the entry's time of transition.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Id of its operation record.
    pub record: i64,
}

/// The state of an entry.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KeptEntry {
    /// Create revision of the entry's key. The state does not apply to another entry with the same index.
    pub entry: i64,
    /// The repair command that was started last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<StartedRepairCommand>,
    /// Id of the success command's record, once that command was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finishing: Option<i64>,
    /// The end of the entry, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<EntryEnd>,
    /// The reason why the last drain was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<String>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub rest: BTreeMap<String, serde_json::Value>,
}

/// The result of an entry with its time and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryEnd {
    /// The result: `succeeded` or `failed`.
    pub status: RepairStatus,
    /// Index of the step at the end, from 0.
    pub step: u32,
    /// Wall-clock time of the end, in UTC.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The reason for the result, in words.
    pub why: String,
}

/// The progress to restore in an entry after another program wrote an older state over it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MissingProgress<'a> {
    /// The entry lacks the start of this command.
    Started(&'a StartedRepairCommand),
    /// The entry lacks its end.
    Ended(&'a EntryEnd),
}

impl KeptEntry {
    /// The progress that the entry lacks; `None` if it is up to date.
    #[must_use]
    pub fn find_missing_progress(&self, entry: &RepairQueueEntry) -> Option<MissingProgress<'_>> {
        if entry.is_finished() {
            return None;
        }
        if let Some(ended) = &self.ended {
            return Some(MissingProgress::Ended(ended));
        }
        let started = self.started.as_ref()?;
        let watching =
            entry.status == RepairStatus::Processing && entry.step_status == RepairStepStatus::Watching;
        let reached = if watching { entry.step >= started.step } else { entry.step > started.step };
        (!reached).then_some(MissingProgress::Started(started))
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const AT: OffsetDateTime = datetime!(2026-01-02 03:04:05 UTC);

    fn entry(status: RepairStatus, step: u32, step_status: RepairStepStatus) -> RepairQueueEntry {
        RepairQueueEntry { status, step, step_status, ..RepairQueueEntry::new("o", "t", "10.0.0.1") }
    }

    #[test]
    fn older_states_and_newer_states_are_distinguished() {
        use RepairStatus::{Failed, Processing, Queued};
        use RepairStepStatus::{Draining, Waiting, Watching};
        let started = StartedRepairCommand { step: 1, at: AT, record: 7 };
        let kept = KeptEntry { entry: 3, started: Some(started.clone()), ..KeptEntry::default() };
        for (status, step, step_status, behind) in [
            (Queued, 0, Waiting, true),
            (Processing, 0, Watching, true),
            (Processing, 1, Waiting, true),
            (Processing, 1, Draining, true),
            (Processing, 1, Watching, false),
            (Processing, 2, Waiting, false),
            (Failed, 0, Waiting, false),
        ] {
            let expected = behind.then_some(MissingProgress::Started(&started));
            assert_eq!(
                kept.find_missing_progress(&entry(status.clone(), step, step_status.clone())),
                expected,
                "{status} {step}"
            );
        }
    }

    #[test]
    fn an_entry_that_ended_does_not_begin_again() {
        let ended = EntryEnd { status: RepairStatus::Succeeded, step: 0, at: AT, why: "healthy".to_owned() };
        let kept = KeptEntry { ended: Some(ended.clone()), ..KeptEntry::default() };
        let older = entry(RepairStatus::Processing, 0, RepairStepStatus::Watching);
        assert_eq!(kept.find_missing_progress(&older), Some(MissingProgress::Ended(&ended)));
        assert_eq!(KeptEntry::default().find_missing_progress(&older), None);
    }

    #[test]
    fn kept_entry_survives_json() {
        let kept = KeptEntry {
            entry: 3,
            started: Some(StartedRepairCommand { step: 1, at: AT, record: 7 }),
            drain: Some("a job runs".to_owned()),
            ..KeptEntry::default()
        };
        let json = serde_json::to_string(&kept).unwrap();
        assert_eq!(
            json,
            r#"{"entry":3,"started":{"step":1,"at":"2026-01-02T03:04:05Z","record":7},"drain":"a job runs"}"#
        );
        assert_eq!(serde_json::from_str::<KeptEntry>(&json).unwrap(), kept);
    }
}

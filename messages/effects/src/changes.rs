//! Orders an actor's changes to the store: decides which states are valid for decisions, and when a failed change is
//! retried.

use std::time::Duration;

use madako_protocol::actors::{CommitError, Committed, Failure};
use madako_protocol::permit::Moment;

use crate::limits::COMMIT_LOST;
pub use crate::limits::{RETRY_FIRST, RETRY_MOST};

/// The changes of one workflow; at most one is in flight.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    sent: Option<SentChange>,
    /// Revision of the last commit. Older states are invalid for decisions.
    committed: i64,
    /// Revision of the state behind a failed change. It is invalid for further decisions.
    refused: Option<i64>,
    retry: Option<Retry>,
}

#[derive(Debug)]
struct SentChange {
    number: u64,
    decided_on: i64,
    lost_at: Moment,
}

/// The next attempt at a change with an unknown result. It needs a time, because the state may not change any more.
#[derive(Debug)]
struct Retry {
    pause: Duration,
    at: Moment,
    came: bool,
}

impl Changes {
    /// True if a state of this revision is valid for decisions: it contains the last change, and no change based on
    /// it failed.
    pub(crate) fn may_decide_on(&self, revision: i64) -> bool {
        self.sent.is_none() && revision >= self.committed && self.refused.is_none_or(|old| revision > old)
    }

    pub(crate) fn record_sent(&mut self, number: u64, decided_on: i64, now: Moment) {
        self.sent = Some(SentChange { number, decided_on, lost_at: now + COMMIT_LOST });
    }

    /// Takes the answer to a commit. Returns false if the commit is not the awaited one.
    pub(crate) fn take_answer(
        &mut self,
        number: u64,
        result: &Result<Committed, CommitError>,
        now: Moment,
    ) -> bool {
        let Some(sent) = self.sent.take_if(|sent| sent.number == number) else { return false };
        match result {
            Ok(committed) => {
                self.committed = committed.revision;
                self.retry = None;
            }
            Err(error) => {
                self.refused = Some(sent.decided_on);
                if error.failure_class() == Failure::Unknown {
                    let pause = self.retry.take().map(|retry| (retry.pause * 2).min(RETRY_MOST));
                    let pause = pause.unwrap_or(RETRY_FIRST);
                    self.retry = Some(Retry { pause, at: now + pause, came: false });
                }
            }
        }
        true
    }

    /// The number of the change whose answer did not come in time.
    pub(crate) fn overdue_change(&self, now: Moment) -> Option<u64> {
        self.sent.as_ref().filter(|sent| sent.lost_at <= now).map(|sent| sent.number)
    }

    /// True once when the pause of a failed change ends.
    pub(crate) fn retry_is_due(&mut self, now: Moment) -> bool {
        let came = self.retry.as_mut().is_some_and(|retry| {
            let comes = !retry.came && retry.at <= now;
            retry.came |= comes;
            comes
        });
        if came {
            self.refused = None;
        }
        came
    }

    /// Allows decisions on a refused state, unless a pause is running.
    pub(crate) fn allow_refused_states(&mut self, now: Moment) {
        if self.retry.as_ref().is_none_or(|retry| retry.at <= now) {
            self.refused = None;
        }
    }

    pub(crate) fn clear_refusal(&mut self) {
        self.refused = None;
    }

    pub(crate) fn wake(&self) -> Option<Moment> {
        self.retry.as_ref().filter(|retry| !retry.came).map(|retry| retry.at)
    }

    pub(crate) fn forget(&mut self) {
        self.sent = None;
        self.retry = None;
    }
}

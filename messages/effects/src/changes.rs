//! Changes of the store, one after another: which state may be decided on, and when a change that failed is tried again.

use std::time::Duration;

use madako_protocol::actors::{CommitError, Committed, Failure};
use madako_protocol::permit::Moment;

use crate::limits::COMMIT_LOST;
pub use crate::limits::{RETRY_FIRST, RETRY_MOST};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    sent: Option<Sent>,
    /// Revision of the last commit: an older state is not decided on.
    committed: i64,
    /// Revision of the state that a failed change was decided on: it is not decided on again.
    refused: Option<i64>,
    retry: Option<Retry>,
}

#[derive(Debug)]
struct Sent {
    number: u64,
    decided_on: i64,
    lost_at: Moment,
}

/// The next try of a change whose end is unknown: the state may not change any more.
#[derive(Debug)]
struct Retry {
    pause: Duration,
    at: Moment,
    came: bool,
}

impl Changes {
    /// Whether a state of this revision may be decided on: it shows the last change, and no change of it failed.
    pub(crate) fn may_decide_on(&self, revision: i64) -> bool {
        self.sent.is_none() && revision >= self.committed && self.refused.is_none_or(|old| revision > old)
    }

    pub(crate) fn sent(&mut self, number: u64, decided_on: i64, now: Moment) {
        self.sent = Some(Sent { number, decided_on, lost_at: now + COMMIT_LOST });
    }

    /// A commit was answered. Whether it is the one that is waited for.
    pub(crate) fn answered(
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
                if error.failure() == Failure::Unknown {
                    let pause = self.retry.take().map(|retry| (retry.pause * 2).min(RETRY_MOST));
                    let pause = pause.unwrap_or(RETRY_FIRST);
                    self.retry = Some(Retry { pause, at: now + pause, came: false });
                }
            }
        }
        true
    }

    /// The number of the change whose answer was lost.
    pub(crate) fn lost(&self, now: Moment) -> Option<u64> {
        self.sent.as_ref().filter(|sent| sent.lost_at <= now).map(|sent| sent.number)
    }

    /// Whether the time has come to try again what failed.
    pub(crate) fn passed(&mut self, now: Moment) -> bool {
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

    /// Something else is looked for: that does not try sooner what failed.
    pub(crate) fn look_again(&mut self, now: Moment) {
        if self.retry.as_ref().is_none_or(|retry| retry.at <= now) {
            self.refused = None;
        }
    }

    pub(crate) fn forgive(&mut self) {
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

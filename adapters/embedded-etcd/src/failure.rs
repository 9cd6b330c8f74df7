//! Records that the embedded store failed for good, and notifies its owner.

use std::ops::Deref;
use std::sync::Arc;

use redb::ReadTransaction;
use tokio::sync::watch;

/// The reason of the failure, if any; shared by all users of the file.
#[derive(Debug, Clone)]
pub(crate) struct Failure(Arc<watch::Sender<Option<String>>>);

impl Failure {
    pub(crate) fn unset() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }

    pub(crate) fn reason(&self) -> Option<String> {
        self.0.borrow().clone()
    }

    /// Records the first reason. Later failures are consequences and are ignored.
    pub(crate) fn set(&self, reason: &str) {
        let is_first = self.0.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert_with(|| reason.to_owned());
            is_first
        });
        if is_first {
            tracing::error!(
                reason,
                "the embedded store failed; it takes no write until the process restarts"
            );
        }
    }

    pub(crate) async fn wait(&self) -> String {
        let mut reasons = self.0.subscribe();
        // The sender is in `self`, so the channel does not close before a reason arrives.
        let reason = reasons.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        reason.unwrap_or_default()
    }

    /// Returns a guard: a panic while it is held fails the store. redb panics on some inconsistent pages.
    pub(crate) fn fail_on_panic(&self, during: &'static str) -> FailsOnPanic {
        FailsOnPanic { failure: self.clone(), during }
    }
}

#[derive(Debug)]
pub(crate) struct FailsOnPanic {
    failure: Failure,
    during: &'static str,
}

impl Drop for FailsOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.failure.set(&format!("{} panicked; its file may be damaged", self.during));
        }
    }
}

/// A consistent read view of the file.
#[derive(Debug)]
pub(crate) struct Snapshot {
    transaction: ReadTransaction,
    _fails: FailsOnPanic,
}

impl Snapshot {
    pub(crate) fn new(transaction: ReadTransaction, failure: &Failure) -> Self {
        Self { transaction, _fails: failure.fail_on_panic("a read of the store") }
    }
}

impl Deref for Snapshot {
    type Target = ReadTransaction;

    fn deref(&self) -> &ReadTransaction {
        &self.transaction
    }
}

//! A bounded buffer of the newest changes, from which watches without lag are served without a read of the file.
//!
//! Bounded in bytes and revisions. A lagging watch reads evicted changes from the file.

use std::collections::VecDeque;
use std::sync::Arc;

use etcd_client::proto::PbEvent;

use crate::limits::{MAX_RECENT_BYTES, MAX_RECENT_REVISIONS};

/// `Event.type` of the protocol.
pub(crate) const DELETE: i32 = 1;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RevisionEvents {
    pub(crate) main: i64,
    pub(crate) events: Vec<PbEvent>,
}

impl RevisionEvents {
    pub(crate) fn size_in_bytes(&self) -> usize {
        self.events.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.key.len() + kv.value.len()).sum()
    }
}

#[derive(Debug, Default)]
pub(crate) struct RecentRevisions {
    revisions: VecDeque<Arc<RevisionEvents>>,
    bytes: usize,
}

impl RecentRevisions {
    pub(crate) fn push(&mut self, events: Arc<RevisionEvents>) {
        self.bytes += events.size_in_bytes();
        self.revisions.push_back(events);
        while self.bytes > MAX_RECENT_BYTES || self.revisions.len() > MAX_RECENT_REVISIONS {
            let Some(oldest) = self.revisions.pop_front() else { break };
            self.bytes -= oldest.size_in_bytes();
        }
    }

    /// The changes from revision `main` on; `None` if some of them were evicted.
    pub(crate) fn events_since(&self, main: i64) -> Option<impl Iterator<Item = &Arc<RevisionEvents>>> {
        let oldest = self.revisions.front()?.main;
        // Every revision has changes, so revisions follow one another without gaps.
        let skip = usize::try_from(main.checked_sub(oldest)?).ok()?;
        Some(self.revisions.iter().skip(skip))
    }
}

//! The open connections of all links, by the processes at their ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Node;

/// Number of connections by node. A clone shares the counts.
#[derive(Debug, Clone, Default)]
pub(super) struct OpenConnections(Arc<Mutex<BTreeMap<Node, u32>>>);

/// A connection that counts until it is dropped.
#[derive(Debug)]
pub(super) struct CountedConnection {
    open: OpenConnections,
    ends: [Node; 2],
}

impl OpenConnections {
    pub(super) fn count(&self, ends: [Node; 2]) -> CountedConnection {
        for end in &ends {
            *self.lock_counts().entry(end.clone()).or_default() += 1;
        }
        CountedConnection { open: self.clone(), ends }
    }

    pub(super) fn has_connection(&self, node: &Node) -> bool {
        self.lock_counts().get(node).is_some_and(|count| *count > 0)
    }

    // No panic happens under the lock.
    fn lock_counts(&self) -> MutexGuard<'_, BTreeMap<Node, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        for end in &self.ends {
            if let Some(count) = self.open.lock_counts().get_mut(end) {
                *count = count.saturating_sub(1);
            }
        }
    }
}

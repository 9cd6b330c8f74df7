//! The state of the removal guard in etcd: the count of polls that agree on a large removal, and its confirmation. The
//! crate `madako-sabakan-poller` has the rule; other processes and a new leader read this state.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use crate::limits::POLLS_TO_AGREE;

/// An observation that the guard holds back because nodes of the cluster vanished from the registry's list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardState {
    /// Addresses of the vanished nodes.
    #[serde(default)]
    pub vanished: BTreeSet<String>,
    /// Consecutive polls that agreed so far.
    #[serde(default)]
    pub agreed: u32,
    /// True once an operator confirmed the removal of these nodes.
    #[serde(default)]
    pub confirmed: bool,
}

//! The removal guard's state, as it is kept in etcd (design: "Rules for the outside").
//!
//! The rule itself is a brain of the poller; this is what another process or a new leader reads.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use crate::limits::POLLS_TO_AGREE;

/// An observation that is held back: nodes of the cluster vanished from the list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardState {
    /// Addresses of the nodes that vanished.
    #[serde(default)]
    pub vanished: BTreeSet<String>,
    /// Polls in a row that agreed so far.
    #[serde(default)]
    pub agreed: u32,
    /// Whether an operator accepted the removal of these nodes.
    #[serde(default)]
    pub confirmed: bool,
}

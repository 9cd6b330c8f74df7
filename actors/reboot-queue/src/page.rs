//! The content of the page `/reboots`: the decision of the leader on each entry of the reboot queue.

use serde::{Deserialize, Serialize};

use crate::next_action::Explained;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootsPage {
    /// Epoch of the leader that decided.
    pub epoch: i64,
    /// All entries, in the order of service.
    pub entries: Vec<Explained>,
}

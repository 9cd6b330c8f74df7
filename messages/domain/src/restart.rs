//! Requests of operators to restart a member of etcd, although etcd may stop meanwhile.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::limits::RESTART_REQUEST_LIFE;

/// The request for one node (`madako/etcd-restarts/<address>`). The record of the restart deletes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRequest {
    /// Time of the request, by the clock of the operator's host.
    #[serde(with = "time::serde::rfc3339")]
    pub requested_at: OffsetDateTime,
}

impl RestartRequest {
    /// True if the restart may still begin: an operator who asked longer ago expects no interruption of etcd now.
    #[must_use]
    pub fn is_valid(&self, now: OffsetDateTime) -> bool {
        now - self.requested_at < RESTART_REQUEST_LIFE
    }
}

/// Requests by the address of their node.
pub type RestartRequests = BTreeMap<String, RestartRequest>;

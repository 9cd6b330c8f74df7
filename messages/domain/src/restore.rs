//! Requests of operators to restore etcd from a snapshot, and what the store remembers of the last restore.
//!
//! A restore has begun as soon as [`Restored`] names the request. From then on it goes on until it is complete, whichever
//! instance leads: the members of before have stopped.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::limits::RESTORE_REQUEST_LIFE;

/// The request (`madako/etcd/restore`). The record of the restore deletes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreRequest {
    /// Address of the node whose member is restored.
    pub address: String,
    /// Path of the snapshot on the node.
    pub path: String,
    /// Time of the request, by the clock of the operator's host. It tells requests apart.
    #[serde(with = "time::serde::rfc3339")]
    pub requested_at: OffsetDateTime,
    /// The reason why the leader does not carry the request out; only a new request can change that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl RestoreRequest {
    /// True if the restore may still begin.
    #[must_use]
    pub fn is_valid(&self, now: OffsetDateTime) -> bool {
        now - self.requested_at < RESTORE_REQUEST_LIFE
    }

    /// A name for the request, of digits, which no other request has.
    #[must_use]
    pub fn id(&self) -> String {
        self.requested_at.unix_timestamp_nanos().unsigned_abs().to_string()
    }
}

/// The last restore that began (`madako/etcd/restored`). The key stays: it shows that data older than the restore must not
/// start again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// Address of the node whose member is the first one of the restored cluster.
    pub address: String,
    /// Path of the snapshot on the node.
    pub path: String,
    /// Time of the request, by the clock of the operator's host. It tells requests apart.
    #[serde(with = "time::serde::rfc3339")]
    pub requested_at: OffsetDateTime,
    /// Time at which the members of before were stopped.
    #[serde(with = "time::serde::rfc3339")]
    pub began_at: OffsetDateTime,
    /// Addresses of nodes that may have data of before the restore. Their members are stopped, never started, and never
    /// asked, until their data are removed.
    #[serde(default)]
    pub stale: BTreeSet<String>,
}

impl Restored {
    /// True if this restore began for the request.
    #[must_use]
    pub fn began_for(&self, request: &RestoreRequest) -> bool {
        (&self.address, &self.path, self.requested_at)
            == (&request.address, &request.path, request.requested_at)
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn request() -> RestoreRequest {
        RestoreRequest {
            address: "10.0.0.1".to_owned(),
            path: "/a".to_owned(),
            requested_at: datetime!(2026-01-01 0:00:00.000000007 UTC),
            refused: None,
        }
    }

    #[test]
    fn requests_differ_by_their_nanosecond_and_end_after_an_hour() {
        let request = request();
        assert_eq!(request.id(), "1767225600000000007");
        assert!(request.is_valid(request.requested_at + time::Duration::minutes(59)));
        assert!(!request.is_valid(request.requested_at + time::Duration::minutes(60)));
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let request = request();
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(
            text,
            r#"{"address":"10.0.0.1","path":"/a","requested_at":"2026-01-01T00:00:00.000000007Z"}"#
        );
        assert_eq!(serde_json::from_str::<RestoreRequest>(&text).unwrap(), request);
        let text = text.replace('}', r#","refused":"why"}"#);
        assert_eq!(serde_json::from_str::<RestoreRequest>(&text).unwrap().refused.as_deref(), Some("why"));
    }

    #[test]
    fn a_restore_belongs_to_the_request_that_it_names() {
        let request = request();
        let restored = Restored {
            address: request.address.clone(),
            path: request.path.clone(),
            requested_at: request.requested_at,
            began_at: request.requested_at,
            stale: BTreeSet::new(),
        };
        assert!(restored.began_for(&request));
        assert!(!restored.began_for(&RestoreRequest { path: "/b".to_owned(), ..request }));
    }
}

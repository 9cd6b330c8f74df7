//! The machines of one valid answer of the registry, with the time of the poll and its query.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use time::OffsetDateTime;
use tokio::time::Instant;

use crate::cluster::Taint;
use crate::guard::GuardState;
use crate::machine::Machine;

/// The revisions of the poll's inputs. An observation is valid for these revisions only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// Mod revision of the registry's URL.
    pub url: i64,
    /// Mod revision of the query's variables; 0 without variables.
    pub variables: i64,
}

/// A valid answer of the registry. A failed poll creates no observation.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// Machines with an address.
    pub machines: Arc<Vec<Machine>>,
    /// The addresses of `machines`.
    pub addresses: Arc<BTreeSet<String>>,
    /// Serials of machines without an address.
    pub left_out: Vec<String>,
    /// Wall-clock time of the answer.
    pub at: OffsetDateTime,
    /// Monotonic time of the answer, from which its age is computed.
    pub received: Instant,
    /// The query of the poll.
    pub query: Query,
    /// Present while the removal guard holds the observation back; then nothing is planned from it.
    pub held: Option<GuardState>,
}

/// The result of reading the taints of Kubernetes' nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaintsPoll {
    /// The taints of each node that has any, by node name; or the reason why they are unknown.
    pub result: Result<BTreeMap<String, Vec<Taint>>, String>,
    /// Monotonic start time of the read.
    pub started: Instant,
}

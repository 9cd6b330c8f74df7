//! What a poll of the registry returned, with its time and what was asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use time::OffsetDateTime;
use tokio::time::Instant;

use crate::cluster::Taint;
use crate::guard::GuardState;
use crate::machine::Machine;

/// The revisions of what a poll was made with: an observation answers only that question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// Mod revision of the URL.
    pub url: i64,
    /// Mod revision of the variables; 0 for none.
    pub variables: i64,
}

/// A good answer of the registry. A failed poll makes none.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// Machines with an address.
    pub machines: Arc<Vec<Machine>>,
    /// Their addresses.
    pub addresses: Arc<BTreeSet<String>>,
    /// Serials of machines without one.
    pub left_out: Vec<String>,
    /// The wall clock when the answer came.
    pub at: OffsetDateTime,
    /// The same moment on the clock that ages are measured by.
    pub seen: Instant,
    /// What was asked.
    pub query: Query,
    /// Present when the removal guard holds the observation back: nothing is planned on it.
    pub held: Option<GuardState>,
}

/// What a look at the taints of Kubernetes' nodes came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaintsLook {
    /// The taints of each node that has some, by its name; or why they are not known.
    pub result: Result<BTreeMap<String, Vec<Taint>>, String>,
    /// When it began.
    pub seen: Instant,
}

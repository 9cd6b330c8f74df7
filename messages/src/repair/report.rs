//! What the registry reports for repair (CKE's `docs/sabakan-triggered-repair.md`).

use std::sync::Arc;

use time::OffsetDateTime;
use tokio::time::Instant;

use crate::machine::Machine;
use crate::observation::Query;

/// A good answer of the registry to the auto-repair query: every machine in it is a report, whatever its state.
#[derive(Debug, Clone, PartialEq)]
pub struct Reports {
    /// Machines with an address, in the registry's order.
    pub machines: Arc<Vec<Machine>>,
    /// Serials of machines without one.
    pub left_out: Vec<String>,
    /// The wall clock when the answer came.
    pub at: OffsetDateTime,
    /// The same moment on the clock that ages are measured by.
    pub seen: Instant,
    /// What was asked.
    pub query: Query,
}

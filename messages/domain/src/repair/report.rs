//! The registry's reports of machines to repair (CKE's `docs/sabakan-triggered-repair.md`).

use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use crate::machine::{Machine, MachineParams, MachineState, QueryVariables};
use crate::observation::Query;

/// A monotonic time, from which ages are computed.
pub type Monotonic = Instant;

/// A valid answer of the registry to the auto-repair query. Every machine in it is a report, whatever its state.
#[derive(Debug, Clone, PartialEq)]
pub struct Reports {
    /// The machines: those with an address in the registry's order, then those without.
    pub machines: Arc<Vec<Machine>>,
    /// Wall-clock time of the answer.
    pub at: OffsetDateTime,
    /// Monotonic time of the answer.
    pub received: Instant,
    /// The query of the poll.
    pub query: Query,
    /// The store's revision at the time of the query; the answer is newer than all changes up to it.
    pub revision: i64,
}

impl Reports {
    /// True if the reports can be used: they answer the present query and are at most three poll intervals old
    /// (design, section 5).
    #[must_use]
    pub fn are_good(&self, present_query: Option<Query>, interval: Duration, now: Instant) -> bool {
        present_query == Some(self.query)
            && now.saturating_duration_since(self.received) <= interval.saturating_mul(3)
    }
}

/// The variables that select machines for repair while none are stored (seed: "Query").
#[must_use]
pub fn default_variables() -> QueryVariables {
    QueryVariables {
        having: Some(MachineParams {
            states: Some(vec![MachineState::Unhealthy, MachineState::Unreachable]),
            ..MachineParams::default()
        }),
        not_having: Some(MachineParams { roles: Some(vec!["boot".to_owned()]), ..MachineParams::default() }),
    }
}

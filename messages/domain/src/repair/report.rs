//! What the registry reports for repair (CKE's `docs/sabakan-triggered-repair.md`).

use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use crate::machine::{Machine, MachineParams, MachineState, QueryVariables};
use crate::observation::Query;

/// A moment on the clock that ages are measured by.
pub type Seen = Instant;

/// A good answer of the registry to the auto-repair query: every machine in it is a report, whatever its state.
#[derive(Debug, Clone, PartialEq)]
pub struct Reports {
    /// The machines: those with an address in the registry's order, then those without one.
    pub machines: Arc<Vec<Machine>>,
    /// The wall clock when the answer came.
    pub at: OffsetDateTime,
    /// The same moment on the clock that ages are measured by.
    pub seen: Instant,
    /// What was asked.
    pub query: Query,
    /// The store's revision that was known when it was asked: the answer is younger than everything up to there.
    pub revision: i64,
}

impl Reports {
    /// Whether they can be acted on: they answer what would be asked now, and are not older than three intervals of
    /// polls (design, section 5).
    #[must_use]
    pub fn are_good(&self, asked: Option<Query>, interval: Duration, now: Instant) -> bool {
        asked == Some(self.query) && now.saturating_duration_since(self.seen) <= interval.saturating_mul(3)
    }
}

/// The variables that choose machines to be repaired while none are stored (seed: "Query").
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

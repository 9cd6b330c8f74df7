//! Judges the requests to the registry at the address in the service's configuration: only searches are allowed.
//!
//! Does not: know the sender. Operators and faults change machines through the control API, so that a change at this
//! address comes from the service.

use super::Verdicts;
use crate::datacenter::{Line, LineContent};

pub const REGISTRY: &str = "registry";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistryRequests {
    /// Answered polls of the service.
    pub answers: u64,
    /// Requests that would change something.
    pub changes: Vec<String>,
}

#[must_use]
pub fn registry_requests(lines: &[Line]) -> RegistryRequests {
    let mut requests = RegistryRequests::default();
    for line in lines {
        match &line.what {
            LineContent::Polled { .. } => requests.answers += 1,
            LineContent::Changes { request } => {
                requests.changes.push(format!("{request} at {}", line.wall_clock_time()))
            }
            _ => {}
        }
    }
    requests
}

/// The service only reads the registry.
pub fn judge_registry_requests(requests: &RegistryRequests, verdicts: &mut Verdicts) {
    verdicts.verdict_of(REGISTRY).judged += requests.answers + requests.changes.len() as u64;
    for change in &requests.changes {
        verdicts.count_violation(REGISTRY, format!("the registry was to be changed: {change}"));
    }
}

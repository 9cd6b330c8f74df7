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
    let mut asked = RegistryRequests::default();
    for line in lines {
        match &line.what {
            LineContent::Polled { .. } => asked.answers += 1,
            LineContent::Changes { request } => {
                asked.changes.push(format!("{request} at {}", line.wall_clock_time()))
            }
            _ => {}
        }
    }
    asked
}

/// The service only reads the registry.
pub fn judge_registry_requests(asked: &RegistryRequests, verdicts: &mut Verdicts) {
    verdicts.verdict_of(REGISTRY).judged += asked.answers + asked.changes.len() as u64;
    for change in &asked.changes {
        verdicts.count_violation(REGISTRY, format!("the registry was to be changed: {change}"));
    }
}

//! What the registry was asked for at the address that the service has of it: searches, and nothing that changes it.
//!
//! Does not: know who asked. People change machines through the control door, so whoever changes something here has that address from
//! the service's configuration.

use super::Verdicts;
use crate::datacenter::{Line, What};

/// The name of the verdict.
pub const REGISTRY: &str = "registry";

/// What it was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Polls of the service that it answered.
    pub answers: u64,
    /// Requests that would change something.
    pub changes: Vec<String>,
}

/// What a journal tells of it.
#[must_use]
pub fn asked(lines: &[Line]) -> Asked {
    let mut asked = Asked::default();
    for line in lines {
        match &line.what {
            What::Polled { .. } => asked.answers += 1,
            What::Changes { request } => asked.changes.push(format!("{request} at {}", line.time())),
            _ => {}
        }
    }
    asked
}

/// The service only reads the registry.
pub fn judge(asked: &Asked, verdicts: &mut Verdicts) {
    verdicts.of(REGISTRY).judged += asked.answers + asked.changes.len() as u64;
    for change in &asked.changes {
        verdicts.broken(REGISTRY, format!("the registry was to be changed: {change}"));
    }
}

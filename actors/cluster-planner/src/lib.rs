//! ClusterPlanner: decides which part each machine has in the Kubernetes cluster.
//!
//! The pure function [`plan`] maps a template, constraints, machines and the current cluster to the next configuration
//! with its reasons (CKE's `sabakan-integration.md`). [`WhatIf`] runs it repeatedly for machines that are lost or
//! removed, and [`render`] formats plans.
//!
//! # Guarantees
//! - Equal inputs give equal plans, whatever the order of the machines.
//! - A plan performs one action, after which the constraints hold; without a due action the plan is empty.
//! - Only healthy machines with an unshared IPv4 address and valid labels are chosen; invalid labels of a node in use
//!   are left out, so that CKE never rejects a configuration for them.
//! - A node whose address several machines claim stays in the cluster.
//! - Any current configuration (with repeated or odd addresses, and any number of nodes) leads to a plan or an error,
//!   never to a panic.
//! - The running time is O(`n log n`) in machines and nodes.
//!
//! # Assumes
//! The template was checked ([`madako_domain::template::Template`]). The machines are one complete observation: a
//! missing machine does not exist. The poller guards against large removals.
//!
//! # Does not
//! Use a clock, randomness or I/O.

mod actor;
mod changes;
mod draft;
mod eligibility;
mod fill;
mod input;
mod inventory;
mod limits;
mod node;
mod obstacles;
mod picker;
mod planner;
pub mod render;
mod rules;
mod score;
mod templates;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod what_if;

use madako_domain::plan::{Plan, PlanError};

pub use crate::actor::{METRICS, Planner, PlannerArguments};
pub use crate::eligibility::{Eligibility, evaluate_eligibility};
pub use crate::input::{DEFAULT_RETIRE_WAIT, LeaderStage, PlanInput};
pub use crate::what_if::{MachineSelector, SelectorError, UnmatchedSelectors, WhatIf, WhatIfEnd, max_plans};

/// Plans the next configuration of the cluster.
///
/// # Errors
/// The constraints cannot be met, or an operator must act first: see [`madako_domain::plan::PlanErrorKind`]. The last
/// configuration stays.
pub fn plan(input: &PlanInput<'_>) -> Result<Plan, PlanError> {
    let inventory = inventory::Inventory::new(input.machines, input.current);
    planner::Planner::new(input, &inventory).run()
}

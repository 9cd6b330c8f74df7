//! ClusterPlanner: decides which machine has which part in the Kubernetes cluster.
//!
//! The brain is [`plan`]: from a template, constraints, machines and the current cluster to the next
//! configuration with its reasons (seed 000). [`WhatIf`] asks it again and again about machines that
//! are lost or removed, and [`render`] shows plans to people.
//!
//! # Guarantees
//! - The same inputs give the same plan, whatever the order of the machines.
//! - A plan does one thing, after which the constraints hold; nothing to do means an empty plan.
//! - Only healthy machines with an IPv4 address of their own, and with labels that Kubernetes has, are chosen;
//!   what a node in use brings besides is left out, so that CKE never refuses a configuration for it.
//! - A node whose address several machines claim stays in the cluster.
//! - Whatever the current configuration holds (repeated or odd addresses, any number of nodes), there is
//!   a plan or an error, never a panic.
//! - Its time grows no faster than `n log n` with machines and nodes.
//!
//! # Assumes
//! The template was checked ([`madako_domain::template::Template`]), and the machines are one complete
//! observation: what is not in it does not exist. Holding back a large removal is the poller's part.
//!
//! # Does not
//! No clock, no chance, no I/O.

mod actor;
mod changes;
mod draft;
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

pub use crate::actor::{Planner, PlannerArguments, describe_metrics};
pub use crate::input::{DEFAULT_RETIRE_WAIT, Moment, PlanInput};
pub use crate::what_if::{End, Selector, SelectorError, Unmatched, WhatIf, most_plans};

/// Plans the next configuration of the cluster.
///
/// # Errors
/// The constraints cannot be met, or people must act first: see [`madako_domain::plan::PlanErrorKind`].
/// The last configuration stays then.
pub fn plan(input: &PlanInput<'_>) -> Result<Plan, PlanError> {
    let inventory = inventory::Inventory::new(input.machines, input.current);
    planner::Planner::new(input, &inventory).run()
}

//! A simulated data center: a machine registry that answers sabakan's GraphQL API, and machines that live.
//!
//! For: the demo, the simulation, tests and benchmarks. [`Datacenter`] is the state, moved by the time that it
//! is given; [`SimulatedRegistry`] serves it, over TCP or in memory ([`InMemoryHttp`]); a [`FaultSwitch`] makes
//! it fail in every way that a registry can. Beside it, [`SimulatedPrometheus`] has metrics that wander, and
//! [`host::SimulatedHost`] has repair commands that act on the machines, and [`kubernetes::SimulatedKubernetes`] has
//! nodes, pods and disruption budgets.
//!
//! Guarantees: a history depends on its configuration (the seed within), the operator's actions and their
//! times, and on nothing else; states change by sabakan's rules; searches choose machines as sabakan does.
//!
//! Assumes: a clock that does not run backward by itself (time that does is ignored).
//!
//! Does not: read the wall clock, keep anything, or know users. Of sabakan's server, only `/graphql`,
//! `/health` and `/version` are there; messages about malformed queries are worded differently.

mod addressing;
mod chance;
mod config;
mod controls;
mod copied;
mod datacenter;
mod faults;
mod filter;
pub mod host;
pub mod kubernetes;
mod life;
mod memory;
mod prometheus;
mod schema;
mod server;
mod service;
mod spoiled;
mod tcp;
mod transitions;
mod variables;

pub use config::{DatacenterConfig, MAX_MACHINES, Rates, RoleCount};
pub use controls::ControlError;
pub use copied::{CopyError, MAX_RACK};
pub use datacenter::{BOOT_ROLE, Datacenter, Happening, MAX_JOURNAL, What};
pub use faults::{Fault, FaultSwitch};
pub use filter::chooses;
pub use memory::InMemoryHttp;
pub use prometheus::{SimulatedPrometheus, Wandering};
pub use server::GRAPHQL_PATH;
pub use service::{SearchListener, SimulatedRegistry};
pub use transitions::{SetStateError, permitted};

#[cfg(test)]
mod tests;

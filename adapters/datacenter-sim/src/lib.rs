//! A simulated data center: a machine registry with sabakan's GraphQL API, over machines that change their states.
//!
//! For: the demo, the simulation, tests and benchmarks. [`Datacenter`] is the state; its caller advances the time.
//! [`SimulatedRegistry`] serves it over TCP or in memory ([`InMemoryHttp`]); a [`FaultSwitch`] injects registry faults.
//! [`SimulatedPrometheus`] serves changing metrics, [`host::SimulatedHost`] runs repair commands on the machines, and
//! [`kubernetes::SimulatedKubernetes`] has nodes, pods and disruption budgets; [`nodes::SimulatedNodes`] has containers,
//! volumes and the etcd of the cluster, and [`vault::SimulatedVault`] issues its certificates.
//!
//! Guarantees: a history depends only on its configuration (including the seed) and on the operator's actions with
//! their times. States change by sabakan's rules; searches return the same machines as sabakan.
//!
//! Assumes: a clock that does not run backward (an earlier time is ignored).
//!
//! Does not: read the wall clock, persist data, or authenticate. Of sabakan's server, only `/graphql`, `/health` and
//! `/version` exist; messages about malformed queries are worded differently.

mod addressing;
mod chance;
mod config;
mod controls;
mod copied;
mod corrupt_answers;
mod datacenter;
mod faults;
mod filter;
pub mod host;
pub mod kubernetes;
mod life;
mod memory;
pub mod nodes;
mod prometheus;
mod schema;
mod server;
mod service;
mod tcp;
mod transitions;
mod variables;
pub mod vault;

pub use config::{DatacenterConfig, MAX_MACHINES, Rates, RoleCount};
pub use controls::ControlError;
pub use copied::{CopyError, MAX_RACK};
pub use datacenter::{BOOT_ROLE, Datacenter, DatacenterEvent, DatacenterEventKind, MAX_JOURNAL};
pub use faults::{Fault, FaultSwitch};
pub use filter::matches_search;
pub use memory::InMemoryHttp;
pub use prometheus::{RandomWalkMetric, SimulatedPrometheus};
pub use server::GRAPHQL_PATH;
pub use service::{SearchListener, SimulatedRegistry};
pub use transitions::{SetStateError, permitted_states};

#[cfg(test)]
mod tests;

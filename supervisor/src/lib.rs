//! The supervisor: the tree, restart policy, configuration and wiring of one instance.

pub mod clock;
pub mod config;
pub mod http;
pub mod instance;
pub mod journal;
pub mod limits;
pub mod measured;
pub mod nodes;
mod noted_nodes;
pub mod operations;
pub mod placement;
mod predecessor;
pub mod service;
pub mod store_failure;
mod telemetry;
pub mod tree;
pub mod vault;

pub use telemetry::{all_metrics, describe_metrics};

//! The domain: clusters, machines, plans, repairs, resources of placement, the state of the store, and the
//! invariants.
//!
//! Plain data and pure functions. Does no I/O, reads no clock, draws no random number.

#![warn(missing_docs)]

pub mod authority;
pub mod backup;
pub mod canary;
pub mod certificate;
pub mod choices;
pub mod cluster;
pub mod component;
pub mod constraints;
pub mod containers;
pub mod deprecated_api;
pub mod encryption_rotation;
pub mod found;
pub mod guard;
pub mod host_key;
pub mod images;
pub mod invariants;
pub mod keys;
pub mod kubernetes;
pub mod limits;
pub mod machine;
pub mod node_status;
pub mod objects;
pub mod observation;
pub mod obstacle;
pub mod options;
pub mod placement;
pub mod plan;
pub mod reboot;
pub mod record;
pub mod repair;
pub mod resource;
pub mod restart;
pub mod restore;
pub mod rollout;
mod rules;
mod schema;
pub mod settings;
pub mod skew;
pub mod state;
pub mod status;
pub mod store;
pub mod template;
pub mod vault;

#[cfg(test)]
mod tests;

//! Placement of applications and clusters (Krake's "Scheduling").
//!
//! The resources have the JSON form of Krake 1.0, field by field (see [`madako_json::krake`]), so that its clients
//! and its store keep working. This module does not store, authorize or decide.

pub mod binding;
pub mod change;
pub mod constraint;
pub mod core;
pub mod decision;
pub mod dependents;
pub mod fit;
pub mod infrastructure;
pub mod kind;
pub mod kubernetes;
pub mod metadata;
pub mod metrics;
pub mod names;
pub mod object_value;
pub mod objects;
pub mod openstack;
pub mod ownership;
pub mod secrets;

mod constraint_field;
mod rules;

pub use constraint::{LabelConstraint, MetricConstraint};
pub use rules::cluster_template;

#[cfg(test)]
mod tests;

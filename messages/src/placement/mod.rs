//! Placement: where applications and clusters run (seed 004).
//!
//! For: everybody who reads, writes, stores or decides about placement's resources. They have the JSON form of
//! Krake 1.0, field by field, so that its clients and its store go on working.
//!
//! Guarantees: what a request brings is read strictly, and every wrong field is named ([`document::from_request`]);
//! what is stored is read leniently, and what this version does not know is kept ([`document::from_stored`]); what
//! is written has Krake's order, defaults and nulls ([`json::to_text`]).
//!
//! Does not: store, authorize or decide anything.

pub mod binding;
pub mod constraint;
pub mod core;
pub mod decision;
pub mod document;
pub mod entries;
pub mod explainer;
pub mod fit;
pub mod follow;
pub mod free;
pub mod infrastructure;
pub mod json;
pub mod kind;
pub mod kubernetes;
pub mod limits;
pub mod metadata;
pub mod metrics;
pub mod names;
pub mod object_value;
pub mod objects;
pub mod openstack;
pub mod ownership;
pub mod providers;
pub mod reader;
pub mod scalar;
pub mod schema;
pub mod secrets;
pub mod tagged;
pub mod timestamp;

mod choice;
mod constraint_field;
mod object;
mod rules;
mod update;

pub use constraint::{LabelConstraint, MetricConstraint};
pub use rules::cluster_template;

#[cfg(test)]
mod tests;

//! Tests of the brain.

mod bounds;
mod breaker;
mod catalog;
mod fairness;
mod properties;
mod schedule;
pub(crate) mod store;
mod trust;

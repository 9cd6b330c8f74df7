//! Tests of the brain.

mod board;
mod bounds;
mod breaker;
mod catalog;
mod fairness;
mod properties;
pub(crate) mod store;
mod trust;

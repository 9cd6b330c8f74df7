//! Tests of the fetch schedule: definitions, bounds, trust, breakers and due fetches.

mod bounds;
mod breaker;
mod catalog;
mod fairness;
mod properties;
mod schedule;
pub(crate) mod store;
mod trust;

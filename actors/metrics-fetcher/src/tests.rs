//! The brain's tests: plain data in, plain data out.

mod board;
mod bounds;
mod breaker;
mod catalog;
mod fairness;
mod properties;
pub(crate) mod store;
mod trust;

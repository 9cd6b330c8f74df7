//! MetricsFetcher: the values of all metrics in use, each fetched once a round.
//!
//! `actor` runs the fetches; the other modules are pure: `catalog` has definitions and references, `bounds` checks
//! values, `trust` keeps an hour of values, `breaker` spares providers that are down, and `schedule` combines them into
//! due fetches and known values.
//!
//! Guarantees:
//! - a round fetches each name of a provider once, however many metrics, clusters and applications use it;
//! - a new or changed metric is fetched at once, also from a provider with an open breaker;
//! - after a failed fetch the last value counts until it expires; a missing or invalid definition has no value at
//!   once;
//! - an observation of a revision contains every metric that was in use at it.
//!
//! Does not: rate clusters, or store anything. A new leader starts without the last hour of values and needs one
//! round.

mod actor;
pub mod bounds;
pub mod breaker;
pub mod catalog;
mod limits;
pub mod schedule;
pub mod trust;

pub use actor::{Fetcher, FetcherArguments, METRICS, ROUNDS_AT_ONCE};

#[cfg(test)]
mod tests;

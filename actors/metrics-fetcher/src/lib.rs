//! MetricsFetcher: the values of all metrics that something refers to, each asked for once a round.
//!
//! `actor` is the shell. Its brain: `catalog` knows what is defined and referred to, `bounds` judges values, `trust`
//! remembers an hour of them, `breaker` spares providers that are down, and `board` puts these together: it says
//! what to ask now, and what is known.
//!
//! Guarantees:
//! - in a round each name of a provider is asked for once, however many metrics, clusters and applications mean it;
//! - what is new or changed is asked for at once, apart from a provider whose breaker is open: that answers at once,
//!   with the error that opened it;
//! - a value that failed to come is replaced by the last one for as long as that is young enough; a definition that
//!   is missing or wrong has no value at once;
//! - an observation of a revision has every metric that was referred to then.
//!
//! Does not: judge clusters by their metrics, or store anything. What it knows is lost with the leader, which
//! costs the memory of an hour, and one round.

mod actor;
pub mod board;
pub mod bounds;
pub mod breaker;
pub mod catalog;
mod limits;
pub mod trust;

pub use actor::{Fetcher, FetcherArguments, ROUNDS_AT_ONCE, describe_metrics};

#[cfg(test)]
mod tests;

//! What an instance shows over HTTP: `/health`, `/version`, `/metrics`, as CKE answers them.
//!
//! [`router`] makes the pages from a [`Service`]; [`serve`] answers connections of a listener with them:
//! one of TCP ([`bind`]) or of memory ([`memory::listener`]).
//!
//! Guarantees: a client can hold only so many connections, each only for so long without a whole request or
//! without reading its answer ([`Limits`]); after the shutdown signal no connection is accepted, answers that
//! have begun are finished, and what is left after the drain time is cut off; dropping the future of
//! [`serve`] cuts everything off at once.
//!
//! Assumes: what the service answers comes without blocking the thread.
//!
//! Does not: encrypt or authenticate; CKE's clients and Prometheus speak plain HTTP to this port.

mod connection;
pub mod memory;
mod process;
mod routes;
mod server;
#[cfg(test)]
mod tests;

pub use process::metrics_text;
pub use routes::{Service, router};
pub use server::{BindError, Limits, Served, bind, describe_metrics, serve};

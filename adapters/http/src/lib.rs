//! What an instance shows over HTTP: `/health`, `/version`, `/metrics`, as CKE answers them, and the API of
//! placement, as Krake answers it ([`placement`]).
//!
//! [`router`] makes the pages from a [`Service`], [`router_before`] puts them before the API; [`serve`] answers
//! connections of a listener with them: one of TCP ([`bind`]) or of memory ([`memory::listener`]).
//!
//! Guarantees: a client can hold only so many connections, each only for so long without a whole request or
//! without reading its answer ([`Limits`]); after the shutdown signal no connection is accepted, answers that
//! have begun are finished, and what is left after the drain time is cut off; dropping the future of
//! [`serve`] cuts everything off at once.
//!
//! Assumes: what the service answers comes without blocking the thread.
//!
//! Does not: encrypt by itself; CKE's clients and Prometheus speak plain HTTP. [`tls`] makes a listener that does. Only
//! the API authenticates.

mod connection;
pub mod limits;
pub mod memory;
pub mod placement;
mod process;
mod recorder;
mod routes;
mod server;
#[cfg(test)]
mod tests;
pub mod tls;

pub use axum::Router;
pub use process::metrics_text;
pub use recorder::recorder;
pub use routes::{Service, router, router_before};
pub use server::{BindError, Identify, Limits, Served, bind, describe_metrics, nobody, serve};

//! The HTTP interface of an instance: `/health`, `/version` and `/metrics` in CKE's format, and the API of placement in
//! Krake's ([`placement`]).
//!
//! [`router`] makes the pages from a [`Service`], [`router_before`] puts them before the API. [`serve`] answers the
//! connections of a listener: over TCP ([`bind_listener`]) or in memory ([`memory::listener`]).
//!
//! Guarantees: the number of connections is limited, and so is the time of each without a complete request or without
//! reading its answer ([`Limits`]). After the shutdown signal no connection is accepted, started answers are finished,
//! and the remaining ones are cut off after the drain time. Dropping the future of [`serve`] cuts off all connections
//! at once.
//!
//! Assumes: the service's answers do not block the thread.
//!
//! Does not: encrypt by itself, because CKE's clients and Prometheus use plain HTTP ([`tls`] makes an encrypted
//! listener); authenticate, except in the API.

mod connection;
pub mod limits;
pub mod memory;
pub mod placement;
mod process;
mod recorder;
mod routes;
mod server;
mod telemetry;
#[cfg(test)]
mod tests;
pub mod tls;

pub use axum::Router;
pub use process::{PROCESS_METRICS, metrics_text};
pub use recorder::{
    FAULT_GAUGES, Fault, FaultGauge, MetricsPage, MetricsRecorder, MetricsScope, build_recorder,
};
pub use routes::{Service, router, router_before};
pub use server::{
    BindError, IdentifyPeer, Limits, ServeOutcome, bind_listener, ignore_client_certificate, serve,
};
pub use telemetry::METRICS;

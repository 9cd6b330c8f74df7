//! The adapter against a real API server and controller manager (scripts/set-up builds them), and against one that is simulated
//! or malicious.
//!
//! Each test has servers of its own, on ports that the system gives. Where Kubernetes is not built, the tests say that they
//! are skipped; in CI they fail.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests: clippy.toml's exceptions do not reach their helpers"
)]

mod access;
mod adapter;
mod contract;
mod fake;
mod faults;
mod objects;
mod pki;
mod real;
mod server;
mod simulated;

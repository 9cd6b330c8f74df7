//! Tests of the Kubernetes adapter against a real API server and controller manager (scripts/set-up builds them), a
//! simulated one, and a malicious one.
//!
//! Each test has its own servers on ports that the system assigns. If Kubernetes is not built, the tests print that
//! they are skipped; in CI they fail.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests: clippy.toml's exceptions do not reach their helpers"
)]

mod access;
mod adapter;
mod component_contract;
mod components;
mod contract;
mod encryption;
mod fake;
mod faults;
mod kept_objects;
mod large;
mod objects;
mod pki;
mod real;
mod server;
mod simulated;
mod watch;

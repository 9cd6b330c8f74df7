//! One contract suite against a real Vault and the simulated one: what CKE and this crate ask has the same answers.
//!
//! scripts/set-up builds the real server (tests/vault). Without it these tests are skipped; in CI they fail.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests: clippy.toml's exceptions do not reach their helpers"
)]

mod contract;
mod leases;
mod servers;

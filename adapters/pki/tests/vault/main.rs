//! One contract suite against a real Vault and the simulated one: what CKE and this crate ask has the same answers.
//!
//! scripts/set-up builds the real server (tests/vault). Without it these tests are skipped; in CI they fail.

mod contract;
mod leases;
mod servers;

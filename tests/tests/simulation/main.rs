//! Scenarios in the simulation (`verification/simulation`), and the alerts of a simulated deployment.

#![allow(unreachable_pub, reason = "a test binary has no public face")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails where it cannot go on, and prints its report"
)]

mod alerts;
mod operations;
mod scenarios;
mod vault;

//! Tests of the etcd client against a real etcd, and against the embedded store on simulated time.
//!
//! Without etcd, a test that needs it fails if `CI` is set; otherwise it prints that it is skipped.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests: clippy.toml's exceptions do not reach their helpers"
)]

mod campaign;
mod embedded;
mod etcd;
mod objects;
mod proxy;
mod security;
mod together;
mod transactions;
mod watch;

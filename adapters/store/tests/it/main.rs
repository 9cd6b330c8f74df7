//! The store's client against a real etcd, and against the embedded one on simulated time.
//!
//! A test that needs etcd fails without it where `CI` is set, and says why it is skipped elsewhere.

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

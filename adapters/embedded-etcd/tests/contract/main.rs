//! The contract of the embedded store: it answers as etcd does, and keeps acknowledged writes.
//!
//! A test that needs a missing etcd or etcdctl fails in CI; elsewhere it prints that it was skipped.
#![allow(
    clippy::print_stdout,
    reason = "a failing sequence, a skipped test and the child's acknowledgements are printed"
)]

mod connections;
mod contents;
mod crash;
mod disk;
mod edges;
mod etcdctl;
mod faults;
mod generate;
mod offline;
mod outcome;
mod peers;
mod sequences;
mod time;
mod watchers;
mod wire;

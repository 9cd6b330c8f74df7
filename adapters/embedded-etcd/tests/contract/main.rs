//! The contract of the embedded store: that it answers as etcd does, and that it keeps what it acknowledged.
//!
//! Where a real etcd or etcdctl is missing, a test that needs it fails in CI and says elsewhere that it was skipped.
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

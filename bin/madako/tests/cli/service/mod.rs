//! Tests of the whole service as real processes: `madako serve`, etcd, a registry over HTTP, and an operator.
//!
//! Kills, stops, cuts and errors are real: signals, sockets, files. Each test waits for states with a deadline;
//! processes are ended by their ids, also when a test fails.

mod actors;
mod drain;
pub(crate) mod embedded;
mod etcd;
mod keys;
mod kills;
mod krakectl;
mod leaders;
mod lost_store;
mod machines;
mod own_lease;
mod page;
mod partition;
mod placement;
mod procedure;
mod proxy;
mod registry;
mod rehearse;
mod removal;
mod repair;
mod security;
pub(crate) mod site;
pub(crate) mod stage;
mod starting;
mod stopping;
mod stuck;
mod traces;

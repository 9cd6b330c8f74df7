//! Tests of the built program `madako` from outside: command lines, output, exit codes, and its writes to a real etcd.
//!
//! Without an installed etcd the tests that need one are skipped with a printed reason; in CI they fail.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests: clippy.toml's exceptions do not reach their helpers"
)]

mod authorities;
mod auto_repair;
mod backup;
mod bootstrap;
mod configuration;
mod delete;
mod demo;
mod doctor;
mod examples;
mod images;
mod krakectl;
mod kube;
mod machine_list;
mod monitor;
mod nodes;
mod operate;
mod ops;
mod package;
mod planning;
mod program;
mod reboot_forecast;
mod reboot_queue;
mod repair_queue;
mod resource;
mod restore;
mod running;
mod service;
mod shows;
mod store;
mod terminal;
mod vault;
mod watching;

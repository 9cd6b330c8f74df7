//! The shell, on paused time, with a leader that judges and compares, a host and a Kubernetes that do as they are told.

mod commands;
mod drains;
mod gauges;
mod properties;
mod reboots;
mod requests;
mod traces;
mod world;

//! The shell, on paused time, with a leader that judges and compares, a host and a Kubernetes that do as they are told.

mod commands;
mod drains;
mod properties;
mod requests;
mod world;

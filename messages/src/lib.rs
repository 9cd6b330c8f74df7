//! The vocabulary of Madako: domain types, every actor's messages, and the ports to the outside.
//!
//! Nothing here does I/O, reads a clock or draws a number. Every other crate of the workspace may
//! depend on this one; it depends on none of them.

pub mod actors;
pub mod canary;
pub mod cluster;
pub mod constraints;
pub mod duration;
pub mod event;
pub mod feed;
pub mod found;
pub mod gate;
pub mod go;
pub mod guard;
pub mod host;
pub mod input;
pub mod invariants;
pub mod keys;
pub mod kubernetes;
pub mod latest;
pub mod machine;
pub mod mailbox;
pub mod observation;
pub mod permit;
pub mod placement;
pub mod plan;
pub mod ports;
pub mod reboot;
pub mod record;
pub mod repair;
mod rules;
pub mod state;
pub mod status;
pub mod store;
pub mod strict;
pub mod template;

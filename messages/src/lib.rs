//! The vocabulary of Madako: domain types, every actor's messages, and the ports to the outside.
//!
//! Nothing here does I/O, reads a clock or draws a number. Every other crate of the workspace may
//! depend on this one; it depends on none of them.

pub mod cluster;
pub mod constraints;
pub mod input;
pub mod keys;
pub mod machine;
pub mod plan;
pub mod ports;
pub mod store;
pub mod template;

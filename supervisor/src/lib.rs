//! The supervisor: the tree, restart policy, configuration and wiring of one instance.

pub mod config;
pub mod instance;
pub mod journal;
pub mod tree;

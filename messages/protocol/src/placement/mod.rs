//! Ports and feeds of placement.

pub mod explainer;
pub mod follow;
pub mod objects;
pub mod providers;

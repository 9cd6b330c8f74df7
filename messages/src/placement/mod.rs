//! Placement: where applications and clusters run (seed 004).

pub mod constraint;
pub mod kind;
pub mod metrics;

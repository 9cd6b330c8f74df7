//! The ports and feeds of placement: resources, metrics providers, explanations.

pub mod explainer;
pub mod follow;
pub mod objects;
pub mod providers;

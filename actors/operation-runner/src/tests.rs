//! Examples and properties of the brain.

mod boot;
mod fleet;
mod maintenance;
mod model;
mod properties;
mod renewal;
mod restart;
mod restore;
mod rows;

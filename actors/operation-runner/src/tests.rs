//! Examples and properties of the brain.

mod authorities;
mod boot;
mod cke;
mod fleet;
mod maintenance;
mod model;
mod properties;
mod renewal;
mod restart;
mod restore;
mod rows;

//! Examples and properties of the brain.

mod authorities;
mod boot;
mod cke;
mod difference;
mod fleet;
mod kubernetes;
mod maintenance;
mod model;
mod outdated;
mod properties;
mod renewal;
mod restart;
mod restore;
mod rows;
mod stories;

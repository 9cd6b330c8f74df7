//! Tests of the decision about operations: examples, and properties over random histories.

mod authorities;
mod boot;
mod cke;
mod difference;
mod fleet;
mod kubernetes;
mod maintenance;
mod minor_upgrade;
mod model;
mod outdated;
mod plan;
mod properties;
mod renewal;
mod restart;
mod restore;
mod rollout;
mod rows;
mod stories;

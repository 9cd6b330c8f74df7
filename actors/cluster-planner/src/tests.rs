//! Tests of the planner: examples of every rule, unusual inputs, properties over random histories, and scenarios with
//! golden output.

mod control_plane;
mod initialize;
mod odd;
mod properties;
mod reasons;
mod regenerate;
mod scenarios;
mod workers;

//! Tests of the repair queue's actor on paused time, with a leader that checks and compares, and scripted fakes of host
//! and Kubernetes.

mod commands;
mod drains;
mod gauges;
mod properties;
mod reboots;
mod requests;
mod traces;
mod world;

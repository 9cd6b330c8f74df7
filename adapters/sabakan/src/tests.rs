//! Tests of the sabakan client: requests, decoding of answers, and every failure.

mod faults;
mod reading;
mod sending;

use std::sync::Arc;

use madako_datacenter_sim::{Datacenter, DatacenterConfig, SimulatedRegistry};
use madako_protocol::ports::Clock;
use time::OffsetDateTime;
use time::macros::datetime;

const START: OffsetDateTime = datetime!(2026-01-01 00:00 UTC);

struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> OffsetDateTime {
        START
    }
}

/// A registry without events, with this many compute machines and a boot machine in each of its 2 racks.
fn registry(machines: u32) -> SimulatedRegistry {
    let config = DatacenterConfig::new(1, START, 2, &[("compute", machines)]);
    SimulatedRegistry::new(Datacenter::new(config).unwrap(), Arc::new(Stopped))
}

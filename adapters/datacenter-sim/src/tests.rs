//! Tests of the simulated data center: its history, and the registry over HTTP in memory.

mod history;
mod host;
mod http;

use std::sync::{Arc, Mutex};

use madako_protocol::ports::Clock;
use time::OffsetDateTime;
use time::macros::datetime;

use crate::{Datacenter, DatacenterConfig, SimulatedRegistry};

pub(crate) const START: OffsetDateTime = datetime!(2026-01-01 00:00 UTC);

/// A clock that a test sets.
#[derive(Debug, Clone)]
pub(crate) struct HandClock(Arc<Mutex<OffsetDateTime>>);

impl HandClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(START)))
    }

    pub(crate) fn pass(&self, seconds: i64) {
        *self.0.lock().unwrap() += time::Duration::seconds(seconds);
    }
}

impl Clock for HandClock {
    fn now(&self) -> OffsetDateTime {
        *self.0.lock().unwrap()
    }
}

/// A registry without events and with two racks: six compute machines and the boot machines.
pub(crate) fn quiet() -> (SimulatedRegistry, HandClock) {
    let config = DatacenterConfig::new(1, START, 2, &[("compute", 6)]);
    let clock = HandClock::new();
    let datacenter = Datacenter::new(config).unwrap();
    (SimulatedRegistry::new(datacenter, Arc::new(clock.clone())), clock)
}

//! A running registry: a data center, the clock that drives it, and its faults.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use madako_domain::machine::{Machine, MachineLabel, MachineState, QueryVariables};
use madako_protocol::ports::Clock;
use std::net::Ipv4Addr;
use time::OffsetDateTime;

use crate::controls::ControlError;
use crate::datacenter::{Datacenter, DatacenterEvent, Record};
use crate::faults::{Fault, FaultSwitch};
use crate::transitions::SetStateError;

/// Called with each search for machines, before it is answered.
pub type SearchListener = Box<dyn Fn(&QueryVariables) + Send + Sync>;

/// A registry that serves sabakan's GraphQL API over a simulated data center. Clones share the same registry.
///
/// Each read and each action first advances the data center to the clock's time, so no background task is needed.
#[derive(Clone)]
pub struct SimulatedRegistry {
    datacenter: Arc<Mutex<Datacenter>>,
    clock: Arc<dyn Clock>,
    faults: FaultSwitch,
    listener: Arc<OnceLock<SearchListener>>,
}

impl std::fmt::Debug for SimulatedRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedRegistry")
            .field("faults", &self.faults.present_faults())
            .finish_non_exhaustive()
    }
}

impl SimulatedRegistry {
    #[must_use]
    pub fn new(datacenter: Datacenter, clock: Arc<dyn Clock>) -> Self {
        Self {
            datacenter: Arc::new(Mutex::new(datacenter)),
            clock,
            faults: FaultSwitch::new(),
            listener: Arc::default(),
        }
    }

    #[must_use]
    pub fn faults(&self) -> &FaultSwitch {
        &self.faults
    }

    /// Registers the listener of searches. The first listener stays; later ones are ignored.
    pub fn subscribe_searches(&self, listener: SearchListener) {
        self.listener.get_or_init(|| listener);
    }

    pub(crate) fn note_search(&self, variables: &QueryVariables) {
        if let Some(listener) = self.listener.get() {
            listener(variables);
        }
    }

    /// Advances the data center to the present, then reads or changes it.
    pub fn with_datacenter<R>(&self, act: impl FnOnce(&mut Datacenter) -> R) -> R {
        let mut datacenter = self.lock();
        datacenter.advance(self.clock.now());
        act(&mut datacenter)
    }

    /// All machines as they are now, ordered by serial; faults of the registry have no effect on this list.
    #[must_use]
    pub fn list_machines(&self) -> Vec<Machine> {
        self.with_datacenter(|datacenter| datacenter.machines())
    }

    /// The events since the previous call, oldest first.
    #[must_use]
    pub fn take_journal(&self) -> Vec<DatacenterEvent> {
        self.with_datacenter(Datacenter::take_journal)
    }

    pub fn set_state(&self, serial: &str, state: MachineState) -> Result<(), SetStateError> {
        self.with_datacenter(|datacenter| datacenter.set_state(serial, state))
    }

    pub fn remove(&self, serial: &str) -> Result<(), ControlError> {
        self.with_datacenter(|datacenter| datacenter.remove(serial))
    }

    pub fn add(&self, rack: u32, role: &str) -> Result<String, ControlError> {
        self.with_datacenter(|datacenter| datacenter.add(rack, role))
    }

    pub fn kill_rack(&self, rack: u32) -> Result<(), ControlError> {
        self.with_datacenter(|datacenter| datacenter.kill_rack(rack))
    }

    pub fn power_on(&self, rack: u32) -> Result<(), ControlError> {
        self.with_datacenter(|datacenter| datacenter.power_on(rack))
    }

    pub fn set_retire_date(&self, serial: &str, date: OffsetDateTime) -> Result<(), ControlError> {
        self.with_datacenter(|datacenter| datacenter.set_retire_date(serial, date))
    }

    pub fn set_labels(&self, serial: &str, labels: Vec<MachineLabel>) -> Result<(), ControlError> {
        self.with_datacenter(|datacenter| datacenter.set_labels(serial, labels))
    }

    pub fn set_addresses(&self, serial: &str, addresses: &[Ipv4Addr]) -> Result<(), ControlError> {
        self.with_datacenter(|datacenter| datacenter.set_addresses(serial, addresses))
    }

    /// The machines as the faulty registry shows them, and the time of the answer.
    pub(crate) fn list_records(&self) -> (Vec<Record>, OffsetDateTime) {
        let (mut records, now) = self.with_datacenter(|datacenter| (datacenter.records(), datacenter.now()));
        for fault in self.faults.present_faults() {
            spoil_records(&mut records, &fault);
        }
        (records, now)
    }

    pub(crate) fn record(&self, serial: &str) -> Option<Record> {
        self.with_datacenter(|datacenter| datacenter.record(serial))
    }

    fn lock(&self) -> MutexGuard<'_, Datacenter> {
        // Only a caller's closure in a test can panic while the lock is held.
        self.datacenter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn spoil_records(records: &mut Vec<Record>, fault: &Fault) {
    match fault {
        Fault::EmptyList => records.clear(),
        Fault::ShrinkList(percent) => {
            let gone = (records.len() * usize::from(*percent.min(&100))).div_ceil(100);
            records.drain(..gone);
        }
        Fault::DuplicateAddresses(machines) => {
            for first in 0..(*machines).min(records.len().saturating_sub(1)) {
                let next = records[first + 1].machine.spec.ipv4.clone();
                records[first].machine.spec.ipv4 = next;
            }
        }
        Fault::WithoutAddress(machines) => {
            for record in records.iter_mut().take(*machines) {
                record.machine.spec.ipv4.clear();
            }
        }
        Fault::FalseReports(percent) => {
            let count = (records.len() * usize::from(*percent.min(&100))).div_ceil(100);
            for record in records.iter_mut().rev().take(count) {
                let status = &mut record.machine.status;
                if status.state == MachineState::Healthy {
                    status.state = MachineState::Unreachable;
                }
            }
        }
        Fault::ClockSet(seconds) => {
            for record in records {
                record.machine.status.duration += f64::from(*seconds);
                record.since -= time::Duration::seconds(i64::from(*seconds));
            }
        }
        Fault::RefuseConnections
        | Fault::Hang
        | Fault::Slow(_)
        | Fault::Status(_)
        | Fault::Redirect(_)
        | Fault::GraphQlError
        | Fault::PartialData
        | Fault::TruncateBody
        | Fault::MalformedJson
        | Fault::WrongTypes
        | Fault::EndlessBody
        | Fault::NullList => {}
    }
}

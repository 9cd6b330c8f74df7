//! Test support: machines of the registry, reports and times.

use madako_domain::machine::{
    Bmc, Machine, MachineLabel, MachineSpec, MachineState, MachineStatus, parse_date,
};
use madako_domain::repair::hold::{HoldSettings, Holds};
use time::OffsetDateTime;

use crate::hold::holds_after;
use crate::hold::times::Times;

/// Arrival of the registry's answer.
pub(crate) fn now() -> OffsetDateTime {
    parse_date("2026-11-21T12:00:00Z").unwrap()
}

pub(crate) fn later(seconds: f64) -> OffsetDateTime {
    now() + time::Duration::seconds_f64(seconds)
}

/// An unreachable machine whose serial and address derive from `id`.
pub(crate) fn machine(id: u8, rack: i64, duration: f64) -> Machine {
    Machine {
        spec: MachineSpec {
            serial: format!("s{id}"),
            labels: vec![MachineLabel { name: "feed".to_owned(), value: format!("f{}", rack % 2) }],
            rack,
            index_in_rack: i64::from(id),
            role: "compute".to_owned(),
            ipv4: vec![format!("10.0.0.{id}")],
            register_date: now(),
            retire_date: now(),
            bmc: Bmc { bmc_type: "iDRAC".to_owned() },
        },
        status: MachineStatus { state: MachineState::Unreachable, duration },
    }
}

pub(crate) fn machines_aged_by(machines: &[Machine], seconds: f64) -> Vec<Machine> {
    let mut machines = machines.to_vec();
    for machine in &mut machines {
        machine.status.duration += seconds;
    }
    machines
}

/// Holds computed without remembered answers, from stored holds alone.
pub(crate) fn holds_at(
    reports: &[Machine],
    settings: Option<&HoldSettings>,
    kept: &Holds,
    at: OffsetDateTime,
) -> Holds {
    let times = Times::from_answer(reports, (at, None), settings, kept, &Times::default());
    holds_after(reports, &times, settings, kept, at)
}

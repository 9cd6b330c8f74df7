//! Requests to the registry and its answers on the wire, read without the service's own client.

use madako_domain::machine::MachineState;
use serde_json::Value;

use crate::fact::{FactTime, MachineReport, RegistryQuestion};

/// A search that selects states asks for reports.
#[must_use]
pub fn question_of_request(request: &Value) -> RegistryQuestion {
    if request["variables"]["having"]["states"].is_array() {
        RegistryQuestion::Reports
    } else {
        RegistryQuestion::Machines
    }
}

/// The machines with an address in an answer given at the time `now`; `None`: the answer has no list of machines.
#[must_use]
pub fn machines_in_answer(answer: &Value, now: FactTime) -> Option<Vec<MachineReport>> {
    let machines = answer["data"]["searchMachines"].as_array()?;
    let state = |name: &str| MachineState::ALL.iter().copied().find(|state| state.name() == name);
    let reported_machine = |machine: &Value| {
        let status = &machine["status"];
        let since = now.as_secs_f64() - status["duration"].as_f64()?;
        Some(MachineReport {
            address: machine["spec"]["ipv4"][0].as_str()?.to_owned(),
            state: state(status["state"].as_str()?)?,
            since: FactTime::try_from_secs_f64(since).unwrap_or_default(),
        })
    };
    Some(machines.iter().filter_map(reported_machine).collect())
}

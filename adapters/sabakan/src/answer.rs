//! Decodes an answer of sabakan into machines, or into a single error.

use madako_domain::machine::{
    Bmc, Machine, MachineLabel, MachineSpec, MachineState, MachineStatus, parse_date,
};
use madako_protocol::ports::RegistryError;
use serde::Deserialize;
use time::OffsetDateTime;
use time::macros::datetime;

use crate::limits::{MAX_MESSAGES, MAX_TEXT};
use crate::query::wire;

/// Go's zero time; sabakan's API writes it as `null`.
pub(crate) const ZERO_DATE: OffsetDateTime = datetime!(0001-01-01 00:00 UTC);

/// The data of an answer. The generated type would treat a missing list as `null`, that is as no machines.
#[derive(Deserialize)]
struct AnswerData {
    #[serde(rename = "searchMachines", deserialize_with = "Option::deserialize")]
    machines: Option<Vec<wire::CkeSearchSearchMachines>>,
}

/// Reads the answer to the query.
///
/// # Errors
/// [`RegistryError::GraphQl`] if it contains errors, even beside data; [`RegistryError::Malformed`] if it is not JSON
/// or does not match the query.
pub(crate) fn read_answer(body: &[u8]) -> Result<Vec<Machine>, RegistryError> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let response: graphql_client::Response<AnswerData> = serde_path_to_error::deserialize(&mut deserializer)
        .map_err(|error| malformed_answer(describe_place(&error)))?;
    deserializer.end().map_err(|error| malformed_answer(error.to_string()))?;
    if let Some(errors) = response.errors.filter(|errors| !errors.is_empty()) {
        let mut messages: Vec<String> =
            errors.iter().take(MAX_MESSAGES).map(|error| shorten_text(&error.message)).collect();
        if errors.len() > MAX_MESSAGES {
            messages.push(format!("and {} more", errors.len() - MAX_MESSAGES));
        }
        return Err(RegistryError::GraphQl { messages });
    }
    let Some(data) = response.data else {
        return Err(malformed_answer("neither data nor errors; expected data.searchMachines".to_owned()));
    };
    // Go writes a nil slice as `null`.
    data.machines.unwrap_or_default().into_iter().map(read_machine).collect()
}

fn read_machine(wire: wire::CkeSearchSearchMachines) -> Result<Machine, RegistryError> {
    let wire::CkeSearchSearchMachines { spec, status } = wire;
    let serial = spec.serial;
    let date = |field: &str, text: Option<String>| match text {
        None => Ok(ZERO_DATE),
        Some(text) => parse_date(&text).ok_or_else(|| {
            malformed_answer(format!(
                "{field} of machine {} is {:?}; expected an RFC 3339 date",
                shorten_text(&serial),
                shorten_text(&text)
            ))
        }),
    };
    let register_date = date("registerDate", spec.register_date)?;
    let retire_date = date("retireDate", spec.retire_date)?;
    let state = read_state(status.state).map_err(|other| {
        malformed_answer(format!(
            "state of machine {} is {:?}; expected one of {}",
            shorten_text(&serial),
            shorten_text(&other),
            MachineState::NAMES.join(", ")
        ))
    })?;
    Ok(Machine {
        spec: MachineSpec {
            serial,
            labels: spec
                .labels
                .unwrap_or_default()
                .into_iter()
                .map(|label| MachineLabel { name: label.name, value: label.value })
                .collect(),
            rack: spec.rack,
            index_in_rack: spec.index_in_rack,
            role: spec.role,
            ipv4: spec.ipv4.unwrap_or_default(),
            register_date,
            retire_date,
            bmc: Bmc { bmc_type: spec.bmc.bmc_type },
        },
        status: MachineStatus { state, duration: status.duration },
    })
}

fn read_state(wire: wire::MachineState) -> Result<MachineState, String> {
    Ok(match wire {
        wire::MachineState::UNINITIALIZED => MachineState::Uninitialized,
        wire::MachineState::HEALTHY => MachineState::Healthy,
        wire::MachineState::UNHEALTHY => MachineState::Unhealthy,
        wire::MachineState::UNREACHABLE => MachineState::Unreachable,
        wire::MachineState::UPDATING => MachineState::Updating,
        wire::MachineState::RETIRING => MachineState::Retiring,
        wire::MachineState::RETIRED => MachineState::Retired,
        wire::MachineState::Other(other) => return Err(other),
    })
}

/// serde's error in terms of the answer, with the path of the member if there is one.
fn describe_place(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let mut problem = shorten_text(&error.inner().to_string());
    // Replace Rust type names from serde by JSON terms.
    for rust in [
        " struct Response with 3 elements",
        " struct CkeSearchSearchMachinesSpec",
        " struct CkeSearchSearchMachinesStatus",
        " struct CkeSearchSearchMachines",
    ] {
        problem = problem.replace(rust, " an object");
    }
    problem =
        problem.replace("expected i64", "expected an integer").replace("expected f64", "expected a number");
    match error.path().to_string().as_str() {
        "." => problem,
        path => format!("{path}: {problem}"),
    }
}

fn malformed_answer(why: String) -> RegistryError {
    RegistryError::Malformed { why }
}

/// The beginning of an external text, on one line and without control characters.
pub(crate) fn shorten_text(text: &str) -> String {
    let mut out: String = text.chars().take(MAX_TEXT).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(MAX_TEXT).is_some() {
        out.push('…');
    }
    out
}

//! The door through which a data center is made to fail, and looked at.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use madako_datacenter_sim::{Fault, SimulatedRegistry};
use madako_messages::machine::MachineState;
use serde::{Deserialize, Serialize};

use super::journal::{JournalError, What};
use super::tap::Tap;

/// The power of a rack.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Powered {
    /// The rack.
    pub rack: u32,
    /// Whether it has power.
    pub on: bool,
}

/// The state of a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Stated {
    /// Its serial, or one of its addresses.
    pub machine: String,
    /// The state.
    pub state: MachineState,
}

/// Whether answers are wrong.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Corrupted {
    /// What the ways are drawn from; `null`: they are right.
    pub seed: Option<u64>,
}

/// The registry's clock.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Clocked {
    /// Seconds that it is ahead.
    pub seconds: i32,
}

/// A machine as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its serial.
    pub serial: String,
    /// The address that the service knows it by.
    pub address: Option<String>,
    /// Its rack.
    pub rack: u32,
    /// Its state.
    pub state: MachineState,
}

#[derive(Clone)]
struct Door {
    registry: SimulatedRegistry,
    tap: Arc<Tap>,
}

pub(super) fn router(registry: SimulatedRegistry, tap: Arc<Tap>) -> Router {
    Router::new()
        .route("/health", get(async || StatusCode::OK))
        .route("/machines", get(machines))
        .route("/power", post(power))
        .route("/state", post(state))
        .route("/corrupt", post(corrupt))
        .route("/clock", post(clock))
        .with_state(Door { registry, tap })
}

/// Why something was not done: 409 for what the data center refuses, 500 for the journal.
enum Undone {
    Refused(String),
    Journal(JournalError),
}

impl From<JournalError> for Undone {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl IntoResponse for Undone {
    fn into_response(self) -> Response {
        match self {
            Self::Refused(why) => (StatusCode::CONFLICT, why).into_response(),
            Self::Journal(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    }
}

async fn machines(State(door): State<Door>) -> Json<Vec<Listed>> {
    let listed = |machine: madako_messages::machine::Machine| Listed {
        address: machine.address().map(str::to_owned),
        rack: u32::try_from(machine.spec.rack).unwrap_or(u32::MAX),
        state: machine.status.state,
        serial: machine.spec.serial,
    };
    Json(door.registry.machines().into_iter().map(listed).collect())
}

async fn power(State(door): State<Door>, Json(powered): Json<Powered>) -> Result<StatusCode, Undone> {
    let Powered { rack, on } = powered;
    let done = if on { door.registry.power_on(rack) } else { door.registry.kill_rack(rack) };
    done.map_err(|error| Undone::Refused(error.to_string()))?;
    door.tap.journal.write(What::Power { rack, on })?;
    Ok(StatusCode::NO_CONTENT)
}

async fn state(State(door): State<Door>, Json(stated): Json<Stated>) -> Result<StatusCode, Undone> {
    let Stated { machine, state } = stated;
    let found = door
        .registry
        .machines()
        .into_iter()
        .find(|known| known.spec.serial == machine || known.spec.ipv4.contains(&machine));
    let serial = found.map_or(machine, |found| found.spec.serial);
    door.registry.set_state(&serial, state).map_err(|error| Undone::Refused(error.to_string()))?;
    door.tap.journal.write(What::State { serial, state })?;
    Ok(StatusCode::NO_CONTENT)
}

async fn corrupt(State(door): State<Door>, Json(corrupted): Json<Corrupted>) -> Result<StatusCode, Undone> {
    door.tap.corrupt(corrupted.seed)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn clock(State(door): State<Door>, Json(clocked): Json<Clocked>) -> Result<StatusCode, Undone> {
    let fault = Fault::ClockSet(clocked.seconds);
    if clocked.seconds == 0 {
        door.registry.faults().clear(&fault);
    } else {
        door.registry.faults().set(fault);
    }
    door.tap.journal.write(What::Clock { seconds: clocked.seconds })?;
    Ok(StatusCode::NO_CONTENT)
}

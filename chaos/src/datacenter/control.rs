//! The door through which a data center is made to fail, and looked at.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use madako_datacenter_sim::{Fault, SimulatedRegistry};
use madako_messages::machine::{Machine, MachineState};
use serde::{Deserialize, Serialize};

use super::journal::{JournalError, Line, What};
use super::tap::Tap;

/// What a reset takes: long enough for its leader to be lost meanwhile.
const RESET_TAKES: Duration = Duration::from_secs(2);
/// Of so many resets one does not help.
const HELPS_NOT_EVERY: u64 = 4;

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
    /// Whether it is taken away until it is given another state so: nothing that is done to it helps.
    #[serde(default)]
    pub held: bool,
}

/// A command of a repair.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Repaired {
    /// The machine's address.
    pub address: String,
    /// The instance that runs it; 0 if that is not known.
    pub instance: u32,
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
    held: Arc<Mutex<Held>>,
}

/// What outlives a restart only by the journal.
#[derive(Debug, Default)]
struct Held {
    serials: BTreeSet<String>,
    /// Repair commands so far.
    acts: u64,
}

impl Door {
    fn new(registry: SimulatedRegistry, tap: Arc<Tap>, journal: &[Line]) -> Self {
        let mut held = Held::default();
        for line in journal {
            match &line.what {
                What::State { serial, held: true, .. } => drop(held.serials.insert(serial.clone())),
                What::State { serial, .. } => drop(held.serials.remove(serial)),
                What::Acts { number, .. } => held.acts = held.acts.max(number + 1),
                _ => {}
            }
        }
        Self { registry, tap, held: Arc::new(Mutex::new(held)) }
    }

    fn find(&self, machine: &str) -> Option<Machine> {
        self.registry.machines().into_iter().find(|known| {
            known.spec.serial == machine || known.spec.ipv4.iter().any(|address| address == machine)
        })
    }

    // Nothing panics while it holds the lock.
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn router(registry: SimulatedRegistry, tap: Arc<Tap>, journal: &[Line]) -> Router {
    Router::new()
        .route("/health", get(async || StatusCode::OK))
        .route("/machines", get(machines))
        .route("/power", post(power))
        .route("/state", post(state))
        .route("/corrupt", post(corrupt))
        .route("/clock", post(clock))
        .route("/repair", post(repair))
        .route("/healthy", post(healthy))
        .with_state(Door::new(registry, tap, journal))
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
    let listed = |machine: Machine| Listed {
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
    let Stated { machine, state, held } = stated;
    let serial = door.find(&machine).map_or(machine, |found| found.spec.serial);
    door.registry.set_state(&serial, state).map_err(|error| Undone::Refused(error.to_string()))?;
    if held {
        door.held().serials.insert(serial.clone());
    } else {
        door.held().serials.remove(&serial);
    }
    door.tap.journal.write(What::State { serial, state, held })?;
    Ok(StatusCode::NO_CONTENT)
}

/// Writes down that a command ended, however it does: one whose process is killed closes its connection.
struct Acting {
    door: Door,
    number: u64,
    whole: bool,
}

impl Drop for Acting {
    fn drop(&mut self) {
        let written = self.door.tap.journal.write(What::Acted { number: self.number, whole: self.whole });
        if let Err(error) = written {
            tracing::error!(error = &error as &dyn std::error::Error, "the journal cannot be written");
        }
    }
}

/// Resets a machine, which heals it most times: not one that has no power.
async fn repair(State(door): State<Door>, Json(repaired): Json<Repaired>) -> Result<StatusCode, Undone> {
    let Repaired { address, instance } = repaired;
    let number = {
        let mut held = door.held();
        held.acts += 1;
        held.acts - 1
    };
    door.tap.journal.write(What::Acts { number, instance, address: address.clone() })?;
    let mut acting = Acting { door: door.clone(), number, whole: false };
    tokio::time::sleep(RESET_TAKES).await;
    acting.whole = true;
    let Some(machine) = door.find(&address) else { return Ok(StatusCode::NO_CONTENT) };
    let rack = u32::try_from(machine.spec.rack).unwrap_or(u32::MAX);
    let serial = machine.spec.serial;
    let dark =
        door.registry.with(|datacenter| datacenter.is_dark(rack)) || door.held().serials.contains(&serial);
    let helps = !dark && number % HELPS_NOT_EVERY != HELPS_NOT_EVERY - 1;
    if helps && door.registry.set_state(&serial, MachineState::Healthy).is_ok() {
        door.tap.journal.write(What::State { serial, state: MachineState::Healthy, held: false })?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// What a health check prints.
async fn healthy(State(door): State<Door>, Json(repaired): Json<Repaired>) -> String {
    let healthy = door.find(&repaired.address).is_some_and(|it| it.status.state == MachineState::Healthy);
    healthy.to_string()
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

//! The control API of a simulated data center: injects faults and shows the state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::connect_info::IntoMakeServiceWithConnectInfo;
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use madako_datacenter_sim::{Fault, SimulatedRegistry};
use madako_domain::machine::{Machine, MachineState};
use serde::{Deserialize, Serialize};

use super::caller::{Caller, monotonic_nanoseconds};
use super::journal::{JournalError, Line, LineContent};
use super::tap::AnswerTap;

/// Duration of a reset: long enough to lose its leader meanwhile.
const RESET_TAKES: Duration = Duration::from_secs(2);
/// One in this many resets does not help.
const HELPS_NOT_EVERY: u64 = 4;

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct PowerState {
    pub rack: u32,
    pub on: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StateRequest {
    /// Serial, or one of the addresses.
    pub machine: String,
    pub state: MachineState,
    /// True if repairs have no effect on the machine until another state is set through this API.
    #[serde(default)]
    pub held: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RepairRequest {
    pub address: String,
    /// The instance that runs it; 0: unknown.
    pub instance: u32,
    /// Start of its process, in microseconds of the system's monotonic clock; 0: now.
    #[serde(default)]
    pub began: u64,
}

impl RepairRequest {
    /// Microseconds since the start of the process.
    fn microseconds_waited(&self) -> u64 {
        if self.began == 0 { 0 } else { monotonic_nanoseconds().saturating_sub(self.began) }
    }
}

/// True if answers are corrupted.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct CorruptionSwitch {
    /// Seed of the corruptions; `null`: answers are correct.
    pub seed: Option<u64>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ClockChange {
    /// Seconds that the registry's clock is ahead.
    pub seconds: i32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedMachine {
    pub serial: String,
    /// The address under which the service knows the machine.
    pub address: Option<String>,
    pub rack: u32,
    pub state: MachineState,
}

#[derive(Clone)]
struct ControlState {
    registry: SimulatedRegistry,
    tap: Arc<AnswerTap>,
    held: Arc<Mutex<CommandState>>,
}

/// State outside the registry. Running commands end with this process; the rest is restored from the journal.
#[derive(Debug, Default)]
struct CommandState {
    serials: BTreeSet<String>,
    /// Number of repair commands so far.
    acts: u64,
    acting: BTreeMap<u64, Caller>,
}

impl ControlState {
    fn new(registry: SimulatedRegistry, tap: Arc<AnswerTap>, journal: &[Line]) -> Self {
        let mut held = CommandState::default();
        for line in journal {
            match &line.what {
                LineContent::State { serial, held: true, .. } => drop(held.serials.insert(serial.clone())),
                LineContent::State { serial, .. } => drop(held.serials.remove(serial)),
                LineContent::Acts { number, .. } => held.acts = held.acts.max(number + 1),
                _ => {}
            }
        }
        Self { registry, tap, held: Arc::new(Mutex::new(held)) }
    }

    fn find(&self, machine: &str) -> Option<Machine> {
        self.registry.list_machines().into_iter().find(|known| {
            known.spec.serial == machine || known.spec.ipv4.iter().any(|address| address == machine)
        })
    }

    // No panic happens under the lock.
    fn lock_state(&self) -> MutexGuard<'_, CommandState> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn make_router(
    registry: SimulatedRegistry,
    tap: Arc<AnswerTap>,
    journal: &[Line],
) -> IntoMakeServiceWithConnectInfo<Router, Caller> {
    Router::new()
        .route("/health", get(async || StatusCode::OK))
        .route("/machines", get(list_machines))
        .route("/power", post(set_power))
        .route("/state", post(set_machine_state))
        .route("/corrupt", post(switch_corruption))
        .route("/clock", post(set_clock))
        .route("/repair", post(repair_machine))
        .route("/healthy", post(answer_health))
        .with_state(ControlState::new(registry, tap, journal))
        .into_make_service_with_connect_info()
}

/// Reasons for a refusal: status 409 if the data center refuses, 500 if the journal fails.
enum ControlRefusal {
    Refused(String),
    Journal(JournalError),
}

impl From<JournalError> for ControlRefusal {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl IntoResponse for ControlRefusal {
    fn into_response(self) -> Response {
        match self {
            Self::Refused(why) => (StatusCode::CONFLICT, why).into_response(),
            Self::Journal(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    }
}

async fn list_machines(State(control): State<ControlState>) -> Json<Vec<ListedMachine>> {
    let listed = |machine: Machine| ListedMachine {
        address: machine.address().map(str::to_owned),
        rack: u32::try_from(machine.spec.rack).unwrap_or(u32::MAX),
        state: machine.status.state,
        serial: machine.spec.serial,
    };
    Json(control.registry.list_machines().into_iter().map(listed).collect())
}

async fn set_power(
    State(control): State<ControlState>,
    Json(powered): Json<PowerState>,
) -> Result<StatusCode, ControlRefusal> {
    let PowerState { rack, on } = powered;
    let done = if on { control.registry.power_on(rack) } else { control.registry.kill_rack(rack) };
    done.map_err(|error| ControlRefusal::Refused(error.to_string()))?;
    control.tap.journal.write(LineContent::Power { rack, on })?;
    Ok(StatusCode::NO_CONTENT)
}

async fn set_machine_state(
    State(control): State<ControlState>,
    Json(stated): Json<StateRequest>,
) -> Result<StatusCode, ControlRefusal> {
    let StateRequest { machine, state, held } = stated;
    let serial = control.find(&machine).map_or(machine, |found| found.spec.serial);
    control.registry.set_state(&serial, state).map_err(|error| ControlRefusal::Refused(error.to_string()))?;
    if held {
        control.lock_state().serials.insert(serial.clone());
    } else {
        control.lock_state().serials.remove(&serial);
    }
    control.tap.journal.write(LineContent::State { serial, state, held })?;
    Ok(StatusCode::NO_CONTENT)
}

/// A running command. Its drop records the end, also of a command whose process is killed and so closes its connection.
struct RunningCommand {
    control: ControlState,
    number: u64,
    caller: Caller,
    whole: bool,
}

impl RunningCommand {
    /// Records the beginning of a command, and which commands run at this moment.
    fn begin(control: ControlState, repaired: RepairRequest, caller: Caller) -> Result<Self, JournalError> {
        let number = {
            let mut held = control.lock_state();
            let number = held.acts;
            held.acts += 1;
            // The clock is read before the peers are checked: a peer that runs at the check also ran at this time,
            // however long this process is stopped in between.
            let now = control.tap.journal.now();
            let waited = repaired.microseconds_waited();
            let gone = !caller.is_there();
            let there = |(number, caller): (&u64, &Caller)| caller.is_there().then_some(*number);
            let beside = held.acting.iter().filter_map(there).collect();
            let RepairRequest { address, instance, .. } = repaired;
            let acts = LineContent::Acts { number, instance, address, waited, gone, beside };
            control.tap.journal.write_as_of(now, acts)?;
            held.acting.insert(number, caller.clone());
            number
        };
        Ok(Self { control, number, caller, whole: false })
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let mut held = self.control.lock_state();
        held.acting.remove(&self.number);
        let now = self.control.tap.journal.now();
        let (number, whole, ran) = (self.number, self.whole, self.caller.is_there());
        let written = self.control.tap.journal.write_as_of(now, LineContent::Acted { number, whole, ran });
        if let Err(error) = written {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot write the journal");
        }
    }
}

/// Resets a machine. Most resets heal it, unless it has no power.
async fn repair_machine(
    State(control): State<ControlState>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Json(repaired): Json<RepairRequest>,
) -> Result<StatusCode, ControlRefusal> {
    let address = repaired.address.clone();
    let mut acting = RunningCommand::begin(control.clone(), repaired, caller)?;
    let number = acting.number;
    tokio::time::sleep(RESET_TAKES).await;
    // The caller may have ended while this process was stopped: then nothing acts for it any more.
    if !acting.caller.is_there() {
        return Ok(StatusCode::NO_CONTENT);
    }
    acting.whole = true;
    let Some(machine) = control.find(&address) else { return Ok(StatusCode::NO_CONTENT) };
    let rack = u32::try_from(machine.spec.rack).unwrap_or(u32::MAX);
    let serial = machine.spec.serial;
    let dark = control.registry.with_datacenter(|datacenter| datacenter.is_without_power(rack))
        || control.lock_state().serials.contains(&serial);
    let helps = !dark && number % HELPS_NOT_EVERY != HELPS_NOT_EVERY - 1;
    if helps && control.registry.set_state(&serial, MachineState::Healthy).is_ok() {
        control.tap.journal.write(LineContent::State {
            serial,
            state: MachineState::Healthy,
            held: false,
        })?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Answers with the output of the health check.
async fn answer_health(
    State(control): State<ControlState>,
    Json(repaired): Json<RepairRequest>,
) -> Result<String, ControlRefusal> {
    let waited = repaired.microseconds_waited();
    let RepairRequest { address, instance, .. } = repaired;
    let healthy = control.find(&address).is_some_and(|it| it.status.state == MachineState::Healthy);
    control.tap.journal.write(LineContent::Checked { instance, address, waited, healthy })?;
    Ok(healthy.to_string())
}

async fn switch_corruption(
    State(control): State<ControlState>,
    Json(corrupted): Json<CorruptionSwitch>,
) -> Result<StatusCode, ControlRefusal> {
    control.tap.set_corruption(corrupted.seed)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn set_clock(
    State(control): State<ControlState>,
    Json(clocked): Json<ClockChange>,
) -> Result<StatusCode, ControlRefusal> {
    let fault = Fault::ClockSet(clocked.seconds);
    if clocked.seconds == 0 {
        control.registry.faults().clear(&fault);
    } else {
        control.registry.faults().set(fault);
    }
    control.tap.journal.write(LineContent::Clock { seconds: clocked.seconds })?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{SocketAddr, TcpStream};
    use std::path::PathBuf;

    use madako_datacenter_sim::{Datacenter, DatacenterConfig};
    use madako_domain::invariants::Id;
    use madako_protocol::ports::Clock;
    use serde_json::json;
    use time::OffsetDateTime;
    use tokio::net::TcpListener;
    use tokio::time::{Instant, sleep};

    use super::super::journal::{Journal, read_journal};
    use super::*;
    use crate::check::Verdicts;
    use crate::check::effects;

    /// Time limit for an action that is immediate.
    const WITHIN: Duration = Duration::from_secs(30);

    struct ElapsedClock(Instant);

    impl Clock for ElapsedClock {
        fn now(&self) -> OffsetDateTime {
            OffsetDateTime::UNIX_EPOCH + self.0.elapsed()
        }
    }

    /// A control API on the same thread as its test: it runs only while the test waits.
    struct Opened {
        at: SocketAddr,
        journal: PathBuf,
        _files: tempfile::TempDir,
    }

    impl Opened {
        async fn new() -> Self {
            let files = tempfile::tempdir().unwrap();
            let journal = files.path().join("journal.jsonl");
            let clock: Arc<dyn Clock> = Arc::new(ElapsedClock(Instant::now()));
            let config = DatacenterConfig::new(1, OffsetDateTime::UNIX_EPOCH, 2, &[("compute", 6)]);
            let datacenter = Datacenter::new(config).unwrap();
            let registry = SimulatedRegistry::new(datacenter, Arc::clone(&clock));
            let tap = Arc::new(AnswerTap::new(Journal::open(&journal, clock).unwrap()));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let at = listener.local_addr().unwrap();
            let control = make_router(registry, tap, &[]);
            tokio::spawn(async move { axum::serve(listener, control).await });
            Self { at, journal, _files: files }
        }

        /// Sends a command of an instance; dropping the stream ends it.
        fn command(&self, instance: u32) -> TcpStream {
            let body = json!({"address": "10.0.0.4", "instance": instance, "began": monotonic_nanoseconds()})
                .to_string();
            let mut stream = TcpStream::connect(self.at).unwrap();
            let head = "POST /repair HTTP/1.1\r\nhost: control\r\ncontent-type: application/json\r\n";
            let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(request.as_bytes()).unwrap();
            stream
        }

        /// The journal once it contains the command of an instance.
        async fn journal_with(&self, instance: u32) -> Vec<Line> {
            let began = Instant::now();
            loop {
                let lines = read_journal(&self.journal).unwrap();
                let is_there = |line: &Line| matches!(&line.what, LineContent::Acts { instance: its, .. } if *its == instance);
                if lines.iter().any(is_there) {
                    return lines;
                }
                assert!(began.elapsed() < WITHIN, "{lines:?}");
                sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Number of concurrent commands for one machine, regardless of the leader.
    fn beside(lines: &[Line]) -> u64 {
        let mut verdicts = Verdicts::default();
        let acts = effects::commands_of(lines, OffsetDateTime::UNIX_EPOCH);
        effects::judge_effects(&acts, &[], &BTreeMap::new(), &mut verdicts);
        assert_eq!(verdicts.verdict_of(Id::I10.name()).broken, 0, "there is one machine");
        verdicts.verdict_of(Id::I7.name()).broken
    }

    #[tokio::test]
    async fn commands_observed_late_by_a_stopped_control_api_do_not_overlap() {
        let control = Opened::new().await;
        let first = control.command(1);
        assert_eq!(beside(&control.journal_with(1).await), 0);
        // The test does not wait here, so the control API does not run.
        drop(first);
        drop(control.command(2));
        let third = control.command(3);
        let lines = control.journal_with(3).await;
        assert_eq!(beside(&lines), 0, "{lines:?}");
        let took_up = |line: &&Line| matches!(&line.what, LineContent::Acts { instance: 2, gone: false, .. });
        assert_eq!(lines.iter().find(took_up), None, "it had ended by then");
        let _fourth = control.command(4);
        let lines = control.journal_with(4).await;
        assert_eq!(beside(&lines), 1, "{lines:?}");
        drop(third);
    }
}

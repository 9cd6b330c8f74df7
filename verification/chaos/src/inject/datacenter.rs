//! Injects faults into the simulated data center through its control API.

use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use madako_domain::machine::MachineState;
use madako_faults::{CLOCK_JUMP, Injection, Target};
use madako_judges::player::ImpossibleFault;
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{Injector, count_cause, impossible_because, impossible_fault};
use crate::datacenter::{ClockChange, CorruptionSwitch, PowerState, StateRequest};
use crate::network::Node;
use crate::web::{self, WebRequest};
use crate::world::World;

/// Time limit of a request to a control API.
const DONE_WITHIN: Duration = Duration::from_secs(5);
/// Time for a server of the data center to open its port.
const STARTED_WITHIN: Duration = Duration::from_secs(10);
/// Interval of attempts at a port that is not open yet.
const GLANCE: Duration = Duration::from_millis(20);

impl Injector {
    /// Sends the current faults to a server of the data center, if it runs.
    pub(super) async fn send_faults(
        &mut self,
        world: &mut World,
        node: &Node,
    ) -> Result<(), ImpossibleFault> {
        let spoiled = self.spoiled.get(node).copied().unwrap_or_default();
        let server = match node {
            Node::Provider(_) => world.provider.as_ref(),
            _ => Some(&world.registry),
        };
        let server = server.ok_or_else(|| impossible_fault(format_args!("there is no {node}")))?;
        // A server that is down or stopped gets them when it runs again.
        if server.process.is_down() || server.process.is_stopped() {
            return Ok(());
        }
        let corrupted = CorruptionSwitch { seed: (spoiled.corrupt > 0).then_some(self.seed) };
        let ahead = i32::try_from(CLOCK_JUMP.as_secs()).unwrap_or(i32::MAX);
        let clocked = ClockChange { seconds: if spoiled.clock > 0 { ahead } else { 0 } };
        send_control_request(server.control, "/corrupt", &corrupted).await?;
        send_control_request(server.control, "/clock", &clocked).await
    }

    /// Kills or cuts off the machines of a rack, or one machine.
    pub(super) async fn switch_machines(
        &mut self,
        world: &World,
        injection: &Injection,
        begins: bool,
    ) -> Result<String, ImpossibleFault> {
        count_cause(self.dark.entry(injection.target.clone()).or_default(), begins);
        self.cut_power(world).await?;
        Ok(injection.target.to_string())
    }

    /// Makes the registry show exactly the machines that are gone as unreachable, if it runs.
    pub(super) async fn cut_power(&mut self, world: &World) -> Result<(), ImpossibleFault> {
        let registry = &world.registry;
        // A registry that is down or stopped gets this when it runs again.
        if registry.process.is_down() || registry.process.is_stopped() {
            return Ok(());
        }
        for (target, dark) in &self.dark {
            let gone = *dark > 0;
            if self.sent_states.get(target).copied().unwrap_or_default() == gone {
                continue;
            }
            match target {
                Target::Rack(rack) => {
                    send_control_request(registry.control, "/power", &PowerState { rack: *rack, on: !gone })
                        .await?;
                }
                target => {
                    let Target::Address(address) = target else {
                        return Err(impossible_fault("the fault needs a rack or a machine"));
                    };
                    let state = if gone { MachineState::Unreachable } else { MachineState::Healthy };
                    let stated = StateRequest { machine: address.to_string(), state, held: gone };
                    send_control_request(registry.control, "/state", &stated).await?;
                }
            }
            self.sent_states.insert(target.clone(), gone);
        }
        Ok(())
    }
}

/// Sends a request to a control API, repeatedly until a server that was just started listens.
async fn send_control_request(
    at: SocketAddr,
    path: &str,
    body: &(impl Serialize + Sync),
) -> Result<(), ImpossibleFault> {
    let body = json!(body);
    let began = Instant::now();
    let answer = loop {
        match web::send_request(at, WebRequest::send(&Method::POST, path, &body, DONE_WITHIN)).await {
            Err(web::RequestError::NotSent(..)) if began.elapsed() < STARTED_WITHIN => sleep(GLANCE).await,
            answer => break answer.map_err(|error| impossible_because(&error))?,
        }
    };
    if answer.status.is_success() {
        return Ok(());
    }
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    Err(impossible_fault(format_args!("the control API said {}: {body}", answer.status)))
}

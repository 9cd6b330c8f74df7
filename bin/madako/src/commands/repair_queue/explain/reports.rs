//! `madako repair-queue explain`: the machines that the registry reports now, and whether each gets an entry of the
//! queue.

use std::sync::Arc;

use madako_domain::keys;
use madako_domain::machine::{Machine, QueryVariables};
use madako_domain::repair::hold::{HoldSettings, Holds};
use madako_domain::repair::report::default_variables;
use madako_domain::state::ClusterState;
use madako_http_client::ReqwestTransport;
use madako_protocol::ports::{Clock, Registry};
use madako_repair_queue::explain::reports::{Prospect, list_prospects};
use madako_repair_queue::hold::times::{Times, changed_at};
use madako_repair_queue::limiter::RemovedEntries;
use madako_repair_queue::racks::Racks;
use madako_repair_queue::requests::{RegistryAnswer, evaluate, first_unreadable_key, readable_holds};
use madako_sabakan::SabakanRegistry;
use serde::Serialize;
use time::OffsetDateTime;

use crate::commands::repair_queue::format_time;
use crate::failure::Failure;

#[derive(PartialEq, Serialize)]
pub(super) struct Report {
    pub(super) address: String,
    pub(super) serial: String,
    pub(super) state: &'static str,
    /// Time of the last change of the machine's state.
    pub(super) since: String,
    pub(super) next: &'static str,
    /// The next action as a sentence.
    pub(super) what: String,
    /// Time at which all obstacles end without action, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) obstacle: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) obstacles: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
}

pub(super) struct ReportsAnswer {
    /// The reasons for which reports are missing, or add nothing.
    pub(super) notes: Vec<String>,
    /// `None`: the registry was not asked or did not answer.
    pub(super) reports: Option<Vec<Report>>,
    /// The stored holds of racks, from the leader, which knows earlier answers too.
    pub(super) kept: Holds,
    /// The holds after this answer, if no leader knew another answer.
    pub(super) holds: Holds,
    /// Rack of each machine, by the registry's answer about machines to be repaired.
    pub(super) reported: Option<Racks>,
    /// Rack of each machine, by the registry's answer to the cluster's query.
    pub(super) observed: Option<Racks>,
}

/// Asks the registry and the limiters.
pub(super) async fn gather_reports(
    state: &ClusterState,
    hold: Option<&HoldSettings>,
    clock: &dyn Clock,
) -> Result<ReportsAnswer, Failure> {
    let kept = readable_holds(state);
    let holds = kept.clone();
    let mut found =
        ReportsAnswer { notes: Vec::new(), reports: None, kept, holds, reported: None, observed: None };
    if let Some(key) = first_unreadable_key(state) {
        let why = state.fault_of(key).unwrap_or_default();
        found.notes.push(format!("warning: nothing is added automatically: {key} cannot be used: {why}"));
    }
    if state.auto_repair_disabled {
        found.notes.push("auto-repair is switched off: nothing is added automatically".to_owned());
    }
    let transport = ReqwestTransport::new().map_err(|error| Failure::Failed(error.into()))?;
    let registry = SabakanRegistry::new(Arc::new(transport));
    if let Some(machines) = read_reports(state, &registry, &mut found.notes).await {
        let at = clock.now();
        // This command has no memory of earlier answers or removals: the answer is the first one.
        let times = Times::from_answer(&machines, (at, None), hold, &found.kept, &Times::default());
        let removed = RemovedEntries::default();
        let decision = evaluate(
            state,
            &RegistryAnswer { machines: &machines, at, times: &times, removed: &removed },
            hold,
        );
        let prospects = list_prospects(&machines, &decision, state);
        found.reports = Some(prospects.iter().map(|prospect| report(prospect, at)).collect());
        found.reported = hold.map(|hold| Racks::from_machines(&machines, &hold.label));
        found.holds = decision.holds;
    }
    // The leader learns the rack of a machine that is neither reported nor a node from the cluster's query.
    let held = found.kept.values().any(|kept| kept.is_held()) || state.unreadable_holds().next().is_some();
    if let Some(hold) = hold.filter(|_| held && !state.repair.entries.is_empty()) {
        let machines = read_observation(state, &registry, &mut found.notes).await;
        found.observed = machines.map(|machines| Racks::from_machines(&machines, &hold.label));
    }
    Ok(found)
}

/// Checks that a machine with this address exists: a node, or a machine of the registry in any state.
///
/// # Errors
/// No node has the address, and the registry has no such machine or cannot be asked.
pub(super) async fn require_known_address(state: &ClusterState, address: &str) -> Result<(), Failure> {
    let mut nodes = state.cluster.iter().flat_map(|cluster| &cluster.value.nodes);
    if nodes.any(|node| node.address == address) {
        return Ok(());
    }
    let none = format!("no node and no entry of the repair queue has the address {address}");
    let Some(url) = &state.url else {
        return Err(Failure::failed(format_args!(
            "{none}, and no URL of the registry is stored (madako sabakan set-url stores one)"
        )));
    };
    let transport = ReqwestTransport::for_url(&url.value).map_err(|error| Failure::Failed(error.into()))?;
    let registry = SabakanRegistry::new(Arc::new(transport));
    // Without conditions, for all machines.
    match registry.machines(&url.value, Some(&QueryVariables::default())).await {
        Ok(fetched) if fetched.machines.iter().any(|machine| machine.address() == Some(address)) => Ok(()),
        Ok(_) => {
            Err(Failure::failed(format_args!("{none}, and the registry has no machine with this address")))
        }
        Err(error) => {
            Err(Failure::failed(format_args!("{none}, and the registry gave no machines: {error}")))
        }
    }
}

async fn read_reports(
    state: &ClusterState,
    registry: &dyn Registry,
    notes: &mut Vec<String>,
) -> Option<Vec<Machine>> {
    if state.reports_query().is_none() {
        if !state.auto_repair_disabled {
            let missing = match state.url {
                None => "no URL of the registry is stored",
                Some(_) => "the stored variables of auto-repair cannot be used",
            };
            notes.push(format!("{missing}: nothing is added automatically"));
        }
        return None;
    }
    let url = &state.url.as_ref()?.value;
    let variables = match &state.auto_repair_variables {
        Some(variables) => (*variables.value).clone(),
        None => default_variables(),
    };
    match registry.machines(url, Some(&variables)).await {
        Ok(fetched) => Some([fetched.machines, fetched.left_out].concat()),
        Err(error) => {
            notes.push(format!("warning: the machines to repair are unknown: {error}"));
            None
        }
    }
}

/// The registry's answer to the planner's query, unless the integration is disabled.
async fn read_observation(
    state: &ClusterState,
    registry: &dyn Registry,
    notes: &mut Vec<String>,
) -> Option<Vec<Machine>> {
    let usable = state.revision_of(keys::SABAKAN_VARIABLES) == 0 || state.variables.is_some();
    let url = state.url.as_ref().filter(|_| usable && !state.disabled)?;
    let variables = state.variables.as_ref().map(|variables| &*variables.value);
    match registry.machines(&url.value, variables).await {
        Ok(fetched) => Some(fetched.machines),
        Err(error) => {
            notes.push(format!(
                "warning: the machines of a held rack are known from reports and nodes only: {error}"
            ));
            None
        }
    }
}

fn report(prospect: &Prospect<'_>, at: OffsetDateTime) -> Report {
    let machine = prospect.machine;
    let (next, what) = match prospect.adds {
        Some(entry) => (
            "add",
            format!("the leader adds {} for type {:?} at its next poll", entry.operation, entry.machine_type),
        ),
        None => ("nothing", "nothing is added for it".to_owned()),
    };
    let whys: Vec<&str> = prospect.reasons.iter().map(|(_, why)| why.as_str()).collect();
    Report {
        address: prospect.address.to_owned(),
        serial: machine.spec.serial.clone(),
        state: machine.status.state.name(),
        since: format_time(Some(changed_at(machine, at))),
        next,
        what,
        at: prospect.until.map(|until| format_time(Some(until))),
        obstacle: prospect.reasons.first().map(|(name, _)| *name),
        obstacles: prospect.reasons.iter().map(|(name, _)| *name).collect(),
        why: (!whys.is_empty()).then(|| whys.join("; ")),
    }
}

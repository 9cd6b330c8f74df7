//! What becomes of the machines that the registry reports in this moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_messages::keys;
use madako_messages::machine::Machine;
use madako_messages::ports::{Clock, Registry};
use madako_messages::repair::RepairQueueEntry;
use madako_messages::repair::hold::{HoldSettings, Holds};
use madako_messages::repair::refusal::Refusal;
use madako_messages::repair::report::default_variables;

use madako_messages::state::ClusterState;
use madako_repair_queue::hold::changed_at;
use madako_repair_queue::requests::{judge, unreadable};
use madako_sabakan::{ReqwestTransport, SabakanRegistry};
use serde::Serialize;
use time::OffsetDateTime;

use crate::commands::repair_queue::moment;
use crate::failure::Failure;
use crate::output::{note, warn};

/// A machine that is reported.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) address: String,
    pub(super) serial: String,
    pub(super) state: &'static str,
    /// When its state changed.
    pub(super) since: String,
    /// Name of what comes next.
    pub(super) next: &'static str,
    /// The same as a sentence.
    pub(super) what: String,
    /// When what stands in the way ends by itself, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) at: Option<String>,
    /// Name of what stands in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) obstacle: Option<&'static str>,
    /// The same as a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
}

/// What was found.
pub(super) struct Found {
    /// `None`: nothing is added, whoever is reported.
    pub(super) reports: Option<Vec<Report>>,
    /// What is kept of racks after it.
    pub(super) holds: Holds,
    /// The machines that are reported.
    pub(super) machines: Vec<Machine>,
}

/// Asks the registry and the limiters. `None`: it is not asked, or did not answer, which is told.
pub(super) async fn gather(
    state: &ClusterState,
    hold: Option<&HoldSettings>,
    clock: &dyn Clock,
) -> Result<Option<Found>, Failure> {
    if let Some(key) = unreadable(state) {
        let why = state.fault(key).unwrap_or_default();
        warn(format_args!("nothing is added automatically, as {key} cannot be used: {why}"));
        return Ok(None);
    }
    if state.auto_repair_disabled {
        note("auto-repair is switched off: nothing is added automatically");
    }
    if state.reports_query().is_none() {
        if state.auto_repair_disabled {
            return Ok(None);
        }
        note(if state.url.is_none() {
            "no URL of sabakan is stored: nothing is added automatically"
        } else {
            "the stored variables of auto-repair cannot be used: nothing is added automatically"
        });
        return Ok(None);
    }
    let url = state.url.as_ref().map(|url| url.value.as_str()).unwrap_or_default();
    let variables = match &state.auto_repair_variables {
        Some(variables) => (*variables.value).clone(),
        None => default_variables(),
    };
    let transport = ReqwestTransport::new().map_err(|error| Failure::Failed(error.into()))?;
    let registry = SabakanRegistry::new(Arc::new(transport));
    let fetched = match registry.machines(url, Some(&variables)).await {
        Ok(fetched) => fetched,
        Err(error) => {
            warn(format_args!("machines that should be repaired are not known: {error}"));
            return Ok(None);
        }
    };
    let at = clock.now();
    let mut machines = fetched.machines;
    machines.extend(fetched.left_out);
    let Some(decision) = judge(state, &machines, hold, at) else {
        warn(format_args!("nothing is added automatically, as {} cannot be used", keys::CONSTRAINTS));
        return Ok(None);
    };
    if state.auto_repair_disabled {
        // Racks are followed to their recovery all the same.
        return Ok(Some(Found { reports: None, holds: decision.holds, machines }));
    }
    let mut added: BTreeMap<&str, &RepairQueueEntry> =
        decision.add.iter().map(|entry| (entry.address.as_str(), entry)).collect();
    let mut refused = decision.refused.iter();
    let reports = machines.iter().filter_map(|machine| {
        // Of several reports with one address the first is added; the others are refused, in the order of the reports.
        let entry = machine.address().and_then(|address| added.remove(address));
        match entry {
            Some(entry) => Some(added_report(machine, entry, state, at)),
            None => refused.next().map(|refusal| refused_report(machine, refusal, at)),
        }
    });
    let reports = reports.collect();
    Ok(Some(Found { reports: Some(reports), holds: decision.holds, machines }))
}

fn added_report(
    machine: &Machine,
    entry: &RepairQueueEntry,
    state: &ClusterState,
    at: OffsetDateTime,
) -> Report {
    let missing = state.repair_config.as_ref().and_then(|config| config.of(entry).err());
    let RepairQueueEntry { operation, machine_type, .. } = entry;
    Report {
        what: format!("the leader adds {operation} for type {machine_type:?} at its next poll"),
        obstacle: missing.as_ref().map(|_| "missing"),
        why: missing.map(|missing| format!("{missing}: its entry will wait for that")),
        ..reported(machine, &entry.address, at)
    }
}

fn refused_report(machine: &Machine, refusal: &Refusal, at: OffsetDateTime) -> Report {
    Report {
        at: refusal.reason.until().map(|until| moment(Some(until))),
        obstacle: Some(refusal.reason.name()),
        why: Some(refusal.reason.to_string()),
        ..reported(machine, &refusal.address, at)
    }
}

fn reported(machine: &Machine, address: &str, at: OffsetDateTime) -> Report {
    Report {
        address: address.to_owned(),
        serial: machine.spec.serial.clone(),
        state: machine.status.state.name(),
        since: moment(Some(changed_at(machine, at))),
        next: "add",
        what: "it would be added".to_owned(),
        at: None,
        obstacle: None,
        why: None,
    }
}

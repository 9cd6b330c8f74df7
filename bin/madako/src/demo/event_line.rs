//! Describes events as lines of the demo's output.

use std::time::Duration;

use madako_domain::plan::{Change, ChangeKind};
use madako_protocol::event::Event;

use madako_domain::repair::refusal::{Reason, ReportNews};

use super::placement;

/// Changes named in one line.
const NAMED: usize = 6;

/// The line of an event; `None` for an event that happens all the time.
pub(crate) fn event_line(event: &Event) -> Option<String> {
    let seconds = |time: &Duration| format!("{:.1} s", time.as_secs_f64());
    Some(match event {
        Event::Observed { .. } | Event::Reported { .. } => return None,
        Event::Waiting { leader } => format!("waits as a candidate behind {leader}"),
        Event::Elected { epoch } => format!("leads (epoch {epoch})"),
        Event::Lost { epoch, why } => format!("leads no longer (epoch {epoch}): {why}"),
        Event::StoreInterrupted { why } => format!("the store cannot be reached: {why}"),
        Event::StoreBack => "the store answers again".to_owned(),
        Event::StateFaults { faults } => match faults.first() {
            None => "every stored value can be used again".to_owned(),
            Some(fault) => format!("cannot use {}: {}", fault.key, fault.why),
        },
        Event::RecordCancelled { id } => format!("cancelled the unfinished operation {id}"),
        Event::PlacementHeld { owner } => format!("makes no placement decisions: {owner} owns placement"),
        Event::PlacementOwned => "makes placement decisions".to_owned(),
        Event::Decided { application, decision } => {
            return placement::decision_line::decision_line(application, decision);
        }
        Event::SharedAddresses(shared) => match shared.first_key_value() {
            Some((address, _)) => format!("{address} is claimed by several machines"),
            None => "each address belongs to one machine again".to_owned(),
        },
        Event::PollFailed { why } => why.clone(),
        Event::ReportsFailed { why } => format!("reports for repair: {why}"),
        Event::Reports(news) => return describe_reports(news),
        Event::Held(guard) => {
            format!("removal guard: holds back the removal of {} nodes", guard.vanished.len())
        }
        Event::Released { why } => format!("removal guard: {why}"),
        Event::TaintsKnown { nodes } => {
            format!("the taints of the Kubernetes nodes are known; {nodes} nodes have some")
        }
        Event::TaintsUnknown { why, .. } => format!("plans ignore the taints of the Kubernetes nodes: {why}"),
        Event::Blocked(why) => format!("nothing is planned: {why}"),
        Event::Calm { .. } => "nothing to do".to_owned(),
        Event::Planned { plan, took } => format!(
            "planned {} in {:.1} ms: {}",
            plan.action.map_or("nothing", |action| action.name()),
            took.as_secs_f64() * 1e3,
            describe_changes(&plan.changes)
        ),
        Event::PlanFailed(error) => format!("no plan ({}): {}", error.kind.name(), error.message),
        // Placement decisions and steps of repairs have their own lines.
        Event::Committed { what, .. } if *what == "placement" || what.starts_with("repair") => return None,
        Event::Committed { what, revision, .. } => format!("committed {what} at revision {revision}"),
        Event::CommitFailed { what, why } => format!("the commit of {what} failed: {why}"),
        Event::Violated(violations) => match violations.first() {
            None => return None,
            Some(first) => format!("refused a change that breaks {first}"),
        },
        // The demo itself deletes entries, and its line names their number.
        Event::Repaired { operation: "repair-dequeue", .. } => return None,
        Event::Repaired { index, address, operation, what, .. } => {
            format!("repair {index} of {address}: {operation}: {what}")
        }
        Event::Operation { id, operation, what, .. } => format!("operation {id} ({operation}): {what}"),
        Event::EtcdBackup { file, .. } => format!("etcd has the new backup {file}"),
        Event::EtcdBackupFailed { why } => format!("a backup of etcd failed: {why}"),
        Event::OperationsHeld { held } if held.is_empty() => "no operation is held".to_owned(),
        Event::OperationsHeld { held } => format!("operations are held: {}", held.join("; ")),
        Event::RepairWaits { index, address, why, .. } => {
            // The reason alone: the next action follows from it in a moment, and the line is short.
            let why = why.split_once("; but ").map_or(why.clone(), |(_, why)| format!("waits: {why}"));
            format!("repair {index} of {address}: {why}")
        }
        Event::Rebooted { index, node, operation, what, .. } => {
            format!("reboot {index} of {node}: {operation}: {what}")
        }
        Event::RebootWaits { index, node, why, .. } => format!("reboot {index} of {node}: {why}"),
        Event::RepairTrouble { why } if why.is_empty() => {
            "Kubernetes requests of repairs succeed again".to_owned()
        }
        Event::RepairTrouble { why } => format!("a Kubernetes request of a repair failed: {why}"),
        Event::ActorFailed { actor, why, restart_in: Some(pause) } => {
            format!("{actor} {why}; back in {}", seconds(pause))
        }
        Event::ActorFailed { actor, why, restart_in: None } => format!("{actor} {why}"),
        Event::ActorRestarted { actor, restarts } => format!("{actor} runs again (restart {restarts})"),
        Event::Meltdown { pause } => {
            format!("the leader's actors failed too often: gives up leadership for {}", seconds(pause))
        }
    })
}

/// The most telling change of the reports for repair.
fn describe_reports(news: &ReportNews) -> Option<String> {
    if let Some((rack, machines)) = news.held.first_key_value() {
        return Some(format!("repairs wait in rack {rack}: {} machines failed together", machines.len()));
    }
    if let Some(rack) = news.released.first() {
        return Some(format!("repairs go on in rack {rack}"));
    }
    // A machine with an entry is under repair, and the entry has lines of its own.
    let has_entry = |reason: &Reason| matches!(reason, Reason::HasEntry { .. });
    let refused: Vec<_> = news.refused.iter().filter(|refusal| !has_entry(&refusal.reason)).collect();
    let refusal = refused.first()?;
    let more = match refused.len() {
        1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    let machine = if refusal.address.is_empty() { &refusal.serial } else { &refusal.address };
    Some(format!("no repair of {machine}: {}{more}", refusal.reason))
}

/// The most telling changes first, and the number of the others.
fn describe_changes(changes: &[Change]) -> String {
    let mut shown: Vec<&Change> =
        changes.iter().filter(|change| change.change != ChangeKind::Update).collect();
    if shown.is_empty() {
        shown = changes.iter().collect();
    }
    let named: Vec<String> = shown
        .iter()
        .take(NAMED)
        .map(|change| format!("{} {} ({})", change.change.name(), change.address, change.part.name()))
        .collect();
    let more = shown.len() - named.len();
    let updates = changes.len() - shown.len();
    let mut text = named.join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    if updates > 0 {
        let nodes = if updates == 1 { "node" } else { "nodes" };
        text.push_str(&format!(", other settings of {updates} {nodes}"));
    }
    text
}

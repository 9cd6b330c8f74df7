//! `madako repair-queue explain`: the next actions with their times and obstacles.

mod reports;

use madako_domain::repair::hold::{Hold, Holds};
use madako_domain::state::ClusterState;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_repair_queue::explain::{ExplainContext, explain};
use madako_repair_queue::next_action::Explained;
use madako_repair_queue::racks::{Answers, KeptRacks, held_back};
use madako_repair_queue::requests::{nodes, queried_machines};
use madako_supervisor::config::Config;
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use self::reports::Report;
use crate::cli::Global;
use crate::commands::node::format_age;
use crate::failure::Failure;
use crate::limits::REGISTRY_PAUSE;
use crate::list::{Cell, List, Surface, watch};
use crate::output::{Format, print_note, show_value};

/// Shows the next step for each machine that is reported or has an entry, its time, and its obstacles.
///
/// The command reads the store and asks sabakan once for the machines to repair, unless that is switched off. While a
/// rack is held, it also asks for the machines of the cluster's query, to find the machines of that rack. The command
/// also asks for an ADDRESS that is neither reported nor a node nor in the queue, and fails if sabakan has no such
/// machine. It changes nothing. The output omits machines that are not reported and have no entry. Only the leader
/// knows whether a machine is healthy: NEXT applies to an unhealthy machine; the entry of a healthy one succeeds. The
/// configuration file of this command determines whether Kubernetes is reached.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  madako repair-queue explain\n  madako repair-queue explain 10.0.1.7 -o json"
)]
pub(crate) struct Args {
    /// Address of one machine, which must be a node, have an entry, or be in sabakan [default: all]
    address: Option<String>,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Shows the explanation again after each change, as a table; on a terminal in place
    #[arg(short, long, conflicts_with = "output")]
    watch: bool,
}

#[derive(PartialEq, Serialize)]
struct Explanation {
    /// The reasons for which reports are missing, or add nothing.
    #[serde(skip)]
    notes: Vec<String>,
    /// `None`: the registry was not asked or did not answer.
    reports: Option<Vec<Report>>,
    held: Vec<HeldRack>,
    entries: Vec<Explained>,
}

/// A rack on hold.
#[derive(PartialEq, Serialize)]
struct HeldRack {
    rack: String,
    label: String,
    since: Option<String>,
    machines: Vec<String>,
    /// There is no stored hold yet: the registry's present answer would cause one, if the leader knew no other answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    expected: bool,
    /// The stored hold is unreadable: the rack counts as held.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unreadable: bool,
}

pub(super) async fn run(
    args: &Args,
    global: &Global,
    store: &dyn Store,
    clock: &dyn Clock,
) -> Result<(), Failure> {
    let address = args.address.as_deref();
    let explanation = gather_explanation(address, global, store, clock).await?;
    if args.watch {
        let read = async || gather_explanation(address, global, store, clock).await;
        let render = |explanation: &Explanation| {
            let notes: String = explanation.notes.iter().map(|note| format!("{note}\n")).collect();
            Ok(notes + &format_table(explanation, clock.now()))
        };
        return watch(REGISTRY_PAUSE, Surface::for_output().is_terminal, explanation, read, render).await;
    }
    explanation.notes.iter().for_each(print_note);
    show_value(args.output, &explanation, |explanation| format_table(explanation, clock.now()))
}

async fn gather_explanation(
    address: Option<&str>,
    global: &Global,
    store: &dyn Store,
    clock: &dyn Clock,
) -> Result<Explanation, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let kubernetes = config.reaches_kubernetes();
    let settings = config.repair.hold;
    let snapshot = store.list("").await?;
    let state = ClusterState::decode(snapshot.revision, &snapshot.entries, None);
    let found = reports::gather_reports(&state, settings.as_ref(), clock).await?;
    let reports = found.reports.map(|mut reports| {
        reports.retain(|report| address.is_none_or(|address| report.address == address));
        reports
    });
    let holds = found.kept.iter().map(|(rack, hold)| (rack.as_str(), &**hold));
    let kept = KeptRacks { holds: holds.collect(), unreadable: state.unreadable_holds().collect() };
    let answers = Answers { reported: found.reported.as_ref(), observed: found.observed.as_ref() };
    let beside = ExplainContext {
        held: held_back(queried_machines(&state), &kept, answers, nodes(&state), settings.as_ref()),
        kubernetes,
    };
    let entries = explain(&state, &beside, address, clock.now());
    let is_reported = reports.as_ref().is_some_and(|reports| !reports.is_empty());
    if let Some(address) = address.filter(|_| !is_reported && entries.is_empty()) {
        reports::require_known_address(&state, address).await?;
    }
    let held = racks_still_held(&kept, &found.holds);
    Ok(Explanation { reports, held, entries, notes: found.notes })
}

/// The racks on hold, and those that the present answer would hold. A hold that this answer ends lasts until the leader
/// has the answer.
fn racks_still_held(kept: &KeptRacks<'_>, after: &Holds) -> Vec<HeldRack> {
    let held = |rack: &str, hold: &Hold, expected| HeldRack {
        rack: rack.to_owned(),
        label: hold.label.to_string(),
        since: hold.held_since().map(|since| super::format_time(Some(since))),
        machines: hold.serials(),
        expected,
        unreadable: false,
    };
    let is_kept = |rack: &str| kept.holds.iter().any(|(kept, hold)| *kept == rack && hold.is_held());
    let now =
        kept.holds.iter().filter(|(_, hold)| hold.is_held()).map(|(rack, hold)| held(rack, hold, false));
    let next = after.iter().filter(|(rack, hold)| hold.is_held() && !is_kept(rack));
    let held = now.chain(next.map(|(rack, hold)| held(rack, hold, true)));
    let unreadable = kept.unreadable.iter().map(|rack| HeldRack {
        rack: (*rack).to_owned(),
        label: String::new(),
        since: None,
        machines: Vec::new(),
        expected: false,
        unreadable: true,
    });
    held.chain(unreadable).collect()
}

/// The age of a time in RFC 3339, as all tables show times.
fn age_in_table(since: &str, now: OffsetDateTime) -> String {
    OffsetDateTime::parse(since, &Rfc3339).map_or_else(|_| since.to_owned(), |since| format_age(now - since))
}

fn format_table(explanation: &Explanation, now: OffsetDateTime) -> String {
    let surface = Surface::for_output();
    let mut parts = Vec::new();
    if !explanation.held.is_empty() {
        let mut list = List::new(&["HELD", "LABEL", "SINCE", "MACHINES"], &[]).with_whole_reasons();
        for held in &explanation.held {
            let since = held.since.as_ref().map(|since| age_in_table(since, now)).unwrap_or_default();
            let machines = match held {
                HeldRack { unreadable: true, .. } => "not readable".to_owned(),
                // The leader knows earlier answers, and may treat the same reports as old ones.
                HeldRack { expected: true, .. } => {
                    format!("{} (from this answer of sabakan; not held yet)", held.machines.join(","))
                }
                _ => held.machines.join(","),
            };
            list.add([held.rack.clone(), held.label.clone(), since, machines].map(Cell::new).to_vec());
        }
        parts.push(list.to_text(false, surface));
    }
    let reports = explanation.reports.as_deref().unwrap_or_default();
    if !reports.is_empty() {
        let columns = ["REPORTED", "SERIAL", "STATE", "SINCE", "NEXT", "IN THE WAY"];
        let mut list = List::new(&columns, &[]).with_whole_reasons();
        for report in reports {
            let cells = [
                report.address.clone(),
                report.serial.clone(),
                report.state.to_owned(),
                age_in_table(&report.since, now),
                report.what.clone(),
                report.why.clone().unwrap_or_default(),
            ];
            list.add(cells.map(Cell::new).to_vec());
        }
        parts.push(list.to_text(false, surface));
    }
    if !explanation.entries.is_empty() {
        let columns = ["ENTRY", "ADDRESS", "HEALTH", "NEXT", "IN THE WAY"];
        let mut list = List::new(&columns, &[]).with_whole_reasons();
        for entry in &explanation.entries {
            let why = entry.why.clone().unwrap_or_default();
            let health = entry.health.unwrap_or_default().to_owned();
            let cells = [entry.index.to_string(), entry.address.clone(), health, entry.what.clone(), why];
            list.add(cells.map(Cell::new).to_vec());
        }
        parts.push(list.to_text(false, surface));
    }
    if parts.is_empty() { "No machine needs a repair.\n".to_owned() } else { parts.join("\n") }
}

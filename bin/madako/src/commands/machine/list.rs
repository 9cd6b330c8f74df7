//! `madako machine list`: prints one line for each machine of the registry.

use madako_domain::machine::{Machine, MachineState};
use madako_protocol::ports::Clock as _;
use madako_protocol::store::Store;
use madako_supervisor::clock::SystemClock;
use serde::Serialize;
use time::OffsetDateTime;

use super::known::{KnownMachine, KnownMachines, MISSING, read_known_machines};
use crate::commands::node::list::age_cell;
use crate::commands::repair_queue::describe_step;
use crate::failure::Failure;
use crate::input::STDIN;
use crate::limits::REGISTRY_PAUSE;
use crate::list::{AsList, Cell, List, ListArgs, Tone};
use crate::output::{print_bytes, print_note};

/// Shows one line for each machine: rack, role, state and since when, part in the cluster, repair, and why it has that part.
///
/// NEXT is the change that the next plan makes, WHY the reason of that plan, of the plan that gave the node its part, or
/// the reason why the machine is not chosen. DECIDED, of the wide form, is the age of a reason of an earlier plan; the other
/// reasons hold now. A node whose machine is not in the registry has the state MISSING. A terminal has one line for each
/// machine: a narrow one leaves the role out and cuts reasons, which the wide form and machine show have.
///
/// Exit codes: 0: shown; 1: the store or the registry does not answer.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako machine list\n  \
                        madako machine list --rack 3 --state UNREACHABLE -o wide\n  \
                        madako machine list --part none --sort-by since\n  \
                        madako machine list --export machines.json")]
pub(crate) struct Args {
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    filter: MachineFilter,
    /// Also boot servers and retired machines, and all others that the query of the cluster excludes
    #[arg(long)]
    all: bool,
    /// Writes the shown machines to a file (- is standard output) for madako plan --machines, and shows no list
    #[arg(long, value_name = "FILE", conflicts_with_all = ["output", "sort_by", "watch"])]
    export: Option<String>,
}

/// Machines must match one value of each option that is given.
#[derive(Debug, clap::Args)]
struct MachineFilter {
    /// Only machines of this rack; may be given several times
    #[arg(long, value_name = "NUMBER")]
    rack: Vec<i64>,
    /// Only machines of this role; may be given several times
    #[arg(long, value_name = "ROLE")]
    role: Vec<String>,
    /// Only machines in this state, as sabakan spells it, or MISSING; may be given several times
    #[arg(long, value_name = "STATE", value_parser = parse_state)]
    state: Vec<String>,
    /// Only machines with this part in the cluster; may be given several times
    #[arg(long, value_name = "PART", value_enum)]
    part: Vec<PartFilter>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PartFilter {
    ControlPlane,
    Worker,
    /// Outside the cluster
    None,
}

fn parse_state(text: &str) -> Result<String, String> {
    let state = text.to_uppercase();
    let known = MachineState::NAMES.contains(&state.as_str()) || state == MISSING;
    known
        .then_some(state)
        .ok_or_else(|| format!("expected one of {}, {MISSING}", MachineState::NAMES.join(", ")))
}

impl MachineFilter {
    fn includes_machine(&self, machine: &KnownMachine) -> bool {
        fn admits<T: PartialEq>(wanted: &[T], value: Option<T>) -> bool {
            wanted.is_empty() || value.is_some_and(|value| wanted.contains(&value))
        }
        let part = match machine.part {
            Some("control-plane") => PartFilter::ControlPlane,
            Some(_) => PartFilter::Worker,
            None => PartFilter::None,
        };
        admits(&self.rack, machine.rack)
            && admits(&self.role, machine.role.clone())
            && admits(&self.state, Some(machine.state.to_owned()))
            && admits(&self.part, Some(part))
    }
}

pub(super) async fn run(args: &Args, store: &dyn Store) -> Result<(), Failure> {
    if let Some(file) = &args.export {
        return export(file, args, read_known_machines(args.all, store, SystemClock.now()).await?);
    }
    let mut shown_remarks = Vec::new();
    let shown = async || {
        let KnownMachines { mut machines, remarks, .. } =
            read_known_machines(args.all, store, SystemClock.now()).await?;
        if !args.list.is_for_people() && remarks != shown_remarks {
            remarks.iter().for_each(print_note);
            shown_remarks.clone_from(&remarks);
        }
        machines.retain(|machine| args.filter.includes_machine(machine));
        Ok(ShownMachines { machines, remarks })
    };
    args.list.show(list_columns(), &SystemClock, REGISTRY_PAUSE, shown).await
}

/// Writes the machines as the registry describes them.
fn export(file: &str, args: &Args, known: KnownMachines) -> Result<(), Failure> {
    let kept: Vec<&str> = known
        .machines
        .iter()
        .filter(|machine| args.filter.includes_machine(machine))
        .filter_map(|machine| machine.serial.as_deref())
        .collect();
    let kept = std::collections::BTreeSet::from_iter(kept);
    let machines: Vec<&Machine> =
        known.registered.iter().filter(|machine| kept.contains(machine.spec.serial.as_str())).collect();
    let mut text = serde_json::to_vec_pretty(&machines)?;
    text.push(b'\n');
    if file == STDIN {
        return print_bytes(&text);
    }
    std::fs::write(file, &text)
        .map_err(|error| Failure::failed(format_args!("cannot write the machines to {file}: {error}")))?;
    print_note(format_args!("wrote {} machines to {file}", machines.len()));
    Ok(())
}

pub(crate) fn list_columns() -> List {
    let columns = ["ADDRESS", "RACK", "ROLE", "STATE", "SINCE", "PART", "REPAIR", "NEXT", "WHY"];
    List::new(&columns, &["SERIAL", "NODE", "TAINTS", "BMC", "RETIRE DATE", "DECIDED"])
        .with_rows_of_one_line(&["ROLE"])
}

/// The machines that match, with remarks, which only people see in the list.
#[derive(PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct ShownMachines {
    machines: Vec<KnownMachine>,
    #[serde(skip)]
    remarks: Vec<String>,
}

impl AsList for ShownMachines {
    fn list(&self, now: OffsetDateTime) -> List {
        let mut list = list_columns();
        for machine in &self.machines {
            list.add(machine_line(machine, now));
        }
        list
    }

    fn summary(&self) -> String {
        self.remarks.iter().map(|remark| format!("{remark}\n")).collect()
    }
}

fn machine_line(machine: &KnownMachine, now: OffsetDateTime) -> Vec<Cell> {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let rack = machine.rack;
    let repair = machine.repair.as_ref();
    let is_open = repair.is_some_and(|entry| !entry.is_finished());
    let taints = machine.taints.iter().map(|taint| format!("{}={}:{}", taint.key, taint.value, taint.effect));
    let retires = machine.retire_date.map(|date| date.date().to_string());
    vec![
        Cell::new(text(&machine.address)).with_order(address_order(machine.address.as_deref())),
        Cell::new(rack.map_or_else(|| "-".to_owned(), |rack| rack.to_string()))
            .with_order(rack.unwrap_or(i64::MAX)),
        text(&machine.role).into(),
        Cell::new(machine.state).with_tone(state_tone(machine.state)),
        age_cell(machine.since, now),
        machine.part.unwrap_or("-").into(),
        Cell::new(repair.map_or_else(|| "-".to_owned(), describe_step))
            .with_tone(if is_open { Tone::Notice } else { Tone::Plain })
            .with_order(repair.map_or(i64::MAX, |entry| entry.index)),
        machine.next.unwrap_or("-").into(),
        machine.why.clone().unwrap_or_default().into(),
        text(&machine.serial).into(),
        text(&machine.node).into(),
        taints.collect::<Vec<_>>().join(",").into(),
        text(&machine.bmc_type).into(),
        retires.unwrap_or_default().into(),
        age_cell(machine.decided, now),
    ]
}

/// Addresses in numeric order, then machines without one.
pub(crate) fn address_order(address: Option<&str>) -> i64 {
    let ipv4 = address.and_then(|address| address.parse::<std::net::Ipv4Addr>().ok());
    ipv4.map_or(i64::MAX, |ipv4| i64::from(ipv4.to_bits()))
}

pub(super) fn state_tone(state: &str) -> Tone {
    match state {
        "HEALTHY" => Tone::Good,
        "UNHEALTHY" | "UNREACHABLE" | MISSING => Tone::Bad,
        _ => Tone::Notice,
    }
}

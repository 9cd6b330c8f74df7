//! `madako machine show`: shows the facts of the registry and of etcd about one machine.

use std::fmt::Write as _;

use madako_console::push_wrapped;
use madako_domain::repair::RepairQueueEntry;
use madako_protocol::ports::Clock as _;
use madako_protocol::store::Store;
use madako_supervisor::clock::SystemClock;
use serde::Serialize;
use time::OffsetDateTime;

use super::known::{KnownMachine, read_known_machines};
use crate::commands::node::age_of;
use crate::commands::queue;
use crate::commands::repair_queue::describe_step;
use crate::failure::Failure;
use crate::list::Surface;
use crate::output::{Format, Table, escape_unprintable, show_value};

/// Shows a machine: rack, role, state, part in the cluster and why, taints, the change in the next plan, and its repairs.
///
/// Exit codes: 0: shown; 1: the store or the registry does not answer; 2: no machine has the serial or address.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako machine show 10.0.1.7\n  madako machine show 1234abcd -o json")]
pub(crate) struct Args {
    /// Serial or address of the machine
    machine: String,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Serialize)]
struct ShownMachine {
    #[serde(flatten)]
    machine: KnownMachine,
    /// All its entries of the repair queue.
    repairs: Vec<RepairQueueEntry>,
}

pub(super) async fn run(args: &Args, store: &dyn Store) -> Result<(), Failure> {
    let named = args.machine.as_str();
    // Of the query of the cluster first, since only its machines have a next plan.
    let mut found = find_machine(named, read_known_machines(false, store, SystemClock.now()).await?.machines);
    if found.is_none() {
        found = find_machine(named, read_known_machines(true, store, SystemClock.now()).await?.machines);
    }
    let machine = found.ok_or_else(|| {
        Failure::bad_input(format_args!(
            "no machine of the registry has the serial or address {named}: madako machine list --all shows all machines"
        ))
    })?;
    let mut repairs: Vec<RepairQueueEntry> = queue::queue_entries(store).await?;
    repairs.retain(|entry| Some(&entry.address) == machine.address.as_ref());
    let shown = ShownMachine { machine, repairs };
    show_value(args.output, &shown, |shown| machine_text(shown, SystemClock.now()))
}

fn find_machine(named: &str, machines: Vec<KnownMachine>) -> Option<KnownMachine> {
    let names = |machine: &KnownMachine| [machine.serial.clone(), machine.address.clone()];
    machines.into_iter().find(|machine| names(machine).iter().flatten().any(|name| name == named))
}

fn machine_text(shown: &ShownMachine, now: OffsetDateTime) -> String {
    let machine = &shown.machine;
    let rack = machine.rack.zip(machine.index_in_rack).map(|(rack, index)| format!("{rack}, place {index}"));
    let part = machine.part.map(|part| match &machine.node {
        Some(node) => format!("{part}, node {node}"),
        None => part.to_owned(),
    });
    let mut lines = vec![
        ("Serial", machine.serial.clone()),
        ("Address", machine.address.clone()),
        ("Rack", rack),
        ("Role", machine.role.clone()),
        ("BMC", machine.bmc_type.clone()),
        ("State", Some(format!("{} for {}", machine.state, age_of(machine.since, now)))),
        ("Retires", machine.retire_date.map(|date| date.date().to_string())),
        ("Part", Some(part.unwrap_or_else(|| "none".to_owned()))),
    ];
    for taint in &machine.taints {
        lines.push(("Taint", Some(format!("{}={}:{}", taint.key, taint.value, taint.effect))));
    }
    lines.push(("Next plan", Some(machine.next.unwrap_or("no change").to_owned())));
    lines.push(("Why", machine.why.clone()));
    let decided = machine.decided.map(|at| format!("{} ago, by an earlier plan", age_of(Some(at), now)));
    lines.push(("Decided", decided));
    let width = Surface::for_output().width.unwrap_or(usize::MAX);
    let mut text = String::new();
    for (name, value) in lines {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            let first = format!("{name:<9} ");
            push_wrapped(&mut text, &first, &escape_unprintable(&value), first.len(), width);
        }
    }
    if !shown.repairs.is_empty() {
        let mut table = Table::new(["REPAIR", "OPERATION", "TYPE", "SINCE"]);
        for entry in &shown.repairs {
            let since = age_of(entry.last_transition_time, now);
            table.add_row([describe_step(entry), entry.operation.clone(), entry.machine_type.clone(), since]);
        }
        let _ = write!(text, "\n{}", table.to_text());
    }
    text
}

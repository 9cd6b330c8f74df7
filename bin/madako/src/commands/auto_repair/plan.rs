//! `madako auto-repair plan`: the machines of a file that would be repaired, and for each other machine the reason
//! against a repair. Opens no connection and changes nothing.

use madako_domain::constraints::Constraints;
use madako_domain::machine::Machine;
use madako_domain::repair::RepairQueueEntry;
use madako_domain::repair::hold::{HoldSettings, Holds};
use madako_domain::repair::refusal::Refusal;
use madako_json::input::Problems;
use madako_protocol::ports::Clock;
use madako_repair_queue::hold::times::Times;
use madako_repair_queue::limiter::{Decision, LimiterInput, RemovedEntries, limit};
use madako_sabakan::parse_machines;
use madako_supervisor::config::Config;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::cli::Global;
use crate::failure::Failure;
use crate::input::{STDIN, input_file_failure, read_input, read_text};
use crate::limits::MAX_PROBLEMS;
use crate::output::{Format, Table, show_value};

/// Shows the machines of a file that would be repaired, and why the others would not; opens no connection and changes
/// nothing.
///
/// Every machine of the file counts as reported, independent of its state: the query of auto-repair selects the
/// machines.
///
/// The result also lists refused machines, each with the first applicable reason of no-address, duplicate-address,
/// has-entry, rebooting, out-of-cluster, rack-held and too-many.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako auto-repair plan --machines machines.json --hold-racks\n  \
                        madako auto-repair plan --machines machines.json --entries entries.json -o json")]
pub(crate) struct Args {
    /// Machines in JSON, as sabakan's GraphQL returns them: the array, or the whole response
    #[arg(long, value_name = "FILE")]
    machines: String,
    /// Entries of the repair queue in JSON, as ckecli repair-queue list shows them [default: none]
    #[arg(long, value_name = "FILE")]
    entries: Option<String>,
    /// Entries of the reboot queue in JSON, as ckecli reboot-queue list shows them [default: none]
    #[arg(long, value_name = "FILE")]
    reboots: Option<String>,
    /// Addresses of the cluster's nodes, a list in JSON [default: none]
    #[arg(long, value_name = "FILE")]
    nodes: Option<String>,
    /// Constraints in YAML or JSON [default: CKE's, which allow no entries]
    #[arg(long, value_name = "FILE")]
    constraints: Option<String>,
    /// Holds a rack whose machines failed together: three within 10 minutes, or as repair.hold of the configuration
    /// file defines
    #[arg(long)]
    hold_racks: bool,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

pub(super) fn run(args: &Args, global: &Global, clock: &dyn Clock) -> Result<(), Failure> {
    let named = [&args.entries, &args.reboots, &args.nodes, &args.constraints].into_iter().flatten();
    if named.chain([&args.machines]).filter(|name| *name == STDIN).count() > 1 {
        return Err(Failure::bad_input(
            "only one of --machines, --entries, --reboots, --nodes and --constraints can be - (standard input)",
        ));
    }
    let reports = read_machines(&args.machines)?;
    let entries: Vec<RepairQueueEntry> = read_list(args.entries.as_deref(), "list of repair queue entries")?;
    let reboots = read_list(args.reboots.as_deref(), "list of reboot queue entries")?;
    let nodes: Vec<String> = read_list(args.nodes.as_deref(), "list of node addresses")?;
    let constraints = read_constraints(args.constraints.as_deref())?;
    let hold = hold_settings(args, global)?;
    let (at, kept) = (clock.now(), Holds::new());
    let decision = limit(&LimiterInput {
        reports: &reports,
        at,
        times: &Times::from_answer(&reports, (at, None), hold.as_ref(), &kept, &Times::default()),
        entries: &entries.iter().collect::<Vec<_>>(),
        reboots: &reboots.iter().collect::<Vec<_>>(),
        nodes: &nodes.iter().map(String::as_str).collect::<Vec<_>>(),
        constraints: &constraints,
        removed: &RemovedEntries::default(),
        hold: hold.as_ref(),
        holds: &kept,
    });
    show_value(args.output, &Answer::new(&decision, &reports), Answer::format_table)
}

/// The limits from which failures of a rack are one event, as in the service. `--hold-racks` enables them also where the
/// service's configuration disables them.
fn hold_settings(args: &Args, global: &Global) -> Result<Option<HoldSettings>, Failure> {
    if !args.hold_racks {
        return Ok(None);
    }
    Ok(Some(Config::load(global.config.as_deref())?.repair.settings))
}

#[derive(Serialize)]
struct Answer<'a> {
    add: Vec<AddedEntry<'a>>,
    refused: Vec<Refusal>,
}

#[derive(Serialize)]
struct AddedEntry<'a> {
    address: &'a str,
    machine_type: &'a str,
    operation: &'a str,
}

impl<'a> Answer<'a> {
    fn new(decision: &'a Decision, reports: &[Machine]) -> Self {
        let added = |entry: &'a RepairQueueEntry| AddedEntry {
            address: &entry.address,
            machine_type: &entry.machine_type,
            operation: &entry.operation,
        };
        let refused = decision.refused.iter().map(|refused| refused.refusal(reports)).collect();
        Self { add: decision.add.iter().map(added).collect(), refused }
    }
}

impl Answer<'_> {
    fn format_table(&self) -> String {
        let mut added = Table::new(["ADD", "MACHINE TYPE", "OPERATION"]);
        for entry in &self.add {
            added.add_row([
                entry.address.to_owned(),
                entry.machine_type.to_owned(),
                entry.operation.to_owned(),
            ]);
        }
        let mut refused = Table::new(["REFUSED", "SERIAL", "REASON"]);
        for refusal in &self.refused {
            refused.add_row([refusal.address.clone(), refusal.serial.clone(), refusal.reason.to_string()]);
        }
        let parts = [(self.add.len(), added), (self.refused.len(), refused)];
        let shown: Vec<String> =
            parts.iter().filter(|(rows, _)| *rows > 0).map(|(_, table)| table.to_text()).collect();
        if shown.is_empty() { "No machine is reported.\n".to_owned() } else { shown.join("\n") }
    }
}

fn read_machines(name: &str) -> Result<Vec<Machine>, Failure> {
    let bytes = read_input(name)?;
    // Go writes an empty list as null.
    if bytes.trim_ascii() == b"null" {
        return Ok(Vec::new());
    }
    parse_machines(&bytes).map_err(|error| input_file_failure(name, error))
}

fn read_constraints(name: Option<&str>) -> Result<Constraints, Failure> {
    let Some(name) = name else { return Ok(Constraints::default()) };
    let text = read_text(name)?;
    if text.trim() == "null" {
        return Ok(Constraints::default());
    }
    Constraints::from_yaml(&text).map_err(|error| input_file_failure(name, error))
}

/// A JSON list; empty without a file, and for `null`.
fn read_list<T: DeserializeOwned>(name: Option<&str>, subject: &str) -> Result<Vec<T>, Failure> {
    let Some(name) = name else { return Ok(Vec::new()) };
    let text = read_text(name)?;
    let mut problems = Problems::default();
    let items: Vec<&RawValue> = match serde_json::from_str::<Option<Vec<&RawValue>>>(&text) {
        Ok(items) => items.unwrap_or_default(),
        Err(error) => {
            problems.add("", error.to_string(), format!("a {subject} in JSON"));
            Vec::new()
        }
    };
    let mut read = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        match serde_json::from_str(item.get()) {
            Ok(item) => read.push(item),
            Err(error) if problems.len() < MAX_PROBLEMS => {
                problems.add(format!("[{index}]"), error.to_string(), "an entry as CKE stores it");
            }
            Err(_) => break,
        }
    }
    problems.finish(subject).map_err(|error| input_file_failure(name, error))?;
    Ok(read)
}

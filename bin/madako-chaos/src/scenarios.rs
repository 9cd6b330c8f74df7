//! `madako-chaos scenarios`: lists the scenarios that ship, and checks a scenario of the user.

use madako_console::{Format, Table, display_name, read_text, show_value};
use madako_faults::{Count, Fault, MAX_BYTES, SHIPPED, Scenario, ShippedScenario};
use madako_json::input::InputError;
use serde::Serialize;

use crate::cli::Failure;

/// Lists the shipped scenarios, or checks a scenario file.
///
/// For an invalid file, the command prints every error with its line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako-chaos scenarios --list\n  \
                        madako-chaos scenarios --check power-loss.yml -o json")]
pub(crate) struct ScenariosArgs {
    #[command(flatten)]
    what: ScenariosAction,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct ScenariosAction {
    /// Shows the shipped scenarios with their purpose
    #[arg(long)]
    list: bool,
    /// Checks a scenario and shows its interpretation; - is standard input
    #[arg(long, value_name = "FILE")]
    check: Option<String>,
}

pub(crate) fn run(args: &ScenariosArgs) -> Result<(), Failure> {
    match &args.what.check {
        Some(file) => Ok(show_value(args.output, &check_file(file)?, scenario_overview)?),
        None => Ok(show_value(args.output, &list_shipped()?, list_as_text)?),
    }
}

fn check_file(file: &str) -> Result<Scenario, Failure> {
    let text = read_text(file, MAX_BYTES).map_err(Failure::BadInput)?;
    let named = |error| Failure::BadInput(anyhow::Error::new(error).context(display_name(file).to_owned()));
    Scenario::parse(&text).map_err(named)
}

/// The scenario that ships under this name or is in this file, with additional faults in their one-line form.
pub(crate) fn with_faults(named: &str, faults: &[String]) -> Result<Scenario, Failure> {
    let mut scenario = match madako_faults::find_shipped(named) {
        Some(shipped) => shipped.parse_scenario().map_err(|error| Failure::BadInput(error.into()))?,
        None => check_file(named)?,
    };
    for line in faults {
        let bad = |error: InputError| Failure::BadInput(error.into());
        scenario.add(Fault::parse(line).map_err(bad)?).map_err(bad)?;
    }
    Ok(scenario)
}

#[derive(Debug, Serialize)]
struct ListedScenario {
    name: &'static str,
    shows: String,
    scenario: Scenario,
}

fn list_shipped() -> Result<Vec<ListedScenario>, Failure> {
    let listed = |shipped: &ShippedScenario| -> Result<ListedScenario, Failure> {
        let scenario = shipped.parse_scenario().map_err(|error| Failure::BadInput(error.into()))?;
        Ok(ListedScenario { name: shipped.name, shows: shipped.purpose_text(), scenario })
    };
    SHIPPED.iter().map(listed).collect()
}

fn list_as_text(scenarios: &Vec<ListedScenario>) -> String {
    let mut table = Table::new(["NAME", "FAULTS", "SHOWS"]);
    for ListedScenario { name, shows, scenario } in scenarios {
        table.add_row([(*name).to_owned(), scenario.faults.len().to_string(), shows.clone()]);
    }
    table.to_text()
}

/// A scenario as text, with its defaults filled in.
fn scenario_overview(scenario: &Scenario) -> String {
    let Scenario { name, world, clients, faults, expect } = scenario;
    let mut table = Table::new(["PART", "IS"]);
    let mut row = |part: &str, is: String| table.add_row([part.to_owned(), is]);
    row("name", name.clone());
    row("world.instances", world.instances.to_string());
    row("world.machines", format!("{} in {} racks", world.machines, world.racks));
    row("world.applications", format!("{} for {} clusters", world.applications, world.clusters));
    row("world.store", format!("{}, members: {}", world.store, world.store.members()));
    for (index, client) in clients.iter().enumerate() {
        row(
            &format!("clients[{index}]"),
            format!("{}, {} requests a second", client.kind, client.rate.per_second()),
        );
    }
    for (index, fault) in faults.iter().enumerate() {
        row(&format!("faults[{index}]"), fault.to_string());
    }
    let calm = expect.calm_within.map_or_else(|| "as the settings allow".to_owned(), |span| span.to_string());
    row("expect.calm_within", calm);
    for count in Count::ALL.iter().filter(|count| expect.at_least.count_of(**count) > 0) {
        row(&format!("expect.at_least.{count}"), expect.at_least.count_of(*count).to_string());
    }
    table.to_text()
}

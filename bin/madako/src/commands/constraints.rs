//! `madako constraints`: the conditions that a cluster must satisfy.

use std::collections::BTreeMap;

use clap::Subcommand;
use madako_domain::constraints::Constraints;
use madako_domain::keys;
use madako_domain::store::Entry;
use madako_protocol::store::Store;
use serde_json::value::RawValue;

use crate::access::{decode, get_entry, modify_entry};
use crate::failure::Failure;
use crate::output::{Format, OutputArgs, Table, describe_change, print_text, print_warning, show_value};

/// Shows or sets constraints.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    /// Shows the stored constraints.
    #[command(after_help = "Example:\n  madako constraints show -o table")]
    Show(OutputArgs),
    /// Sets one constraint, and prints its old and its new value.
    #[command(
        long_about = describe_set_command(),
        after_help = "Example:\n  madako constraints set minimum-workers 18"
    )]
    Set {
        /// Name of the constraint
        name: String,
        /// Value of the constraint, a whole number
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
}

fn describe_set_command() -> String {
    let names: Vec<&str> = Constraints::names().collect();
    format!(
        "Sets one constraint, and prints its old and its new value.\n\nThe names are {}. maximum-workers=0 means that the \
         number of workers has no maximum.",
        names.join(", ")
    )
}

pub(crate) async fn run(command: Command, store: &dyn Store) -> Result<(), Failure> {
    match command {
        Command::Show(args) => {
            let entry = get_entry(store, keys::CONSTRAINTS)
                .await?
                .ok_or_else(|| Failure::failed("no constraints are stored, so the defaults apply"))?;
            let constraints: Constraints = decode(keys::CONSTRAINTS, &entry)?;
            show_value(args.output.unwrap_or(Format::Json), &constraints, format_table)
        }
        Command::Set { name, value } => {
            // The argument is validated before the first connection.
            Constraints::default().set(&name, &value).or_else(defer_contradictions(&name))?;
            let (changed, warnings) = modify_entry(store, keys::CONSTRAINTS, |stored| {
                let (mut constraints, old) =
                    match stored.map(|entry| (entry, decode(keys::CONSTRAINTS, entry))) {
                        None => with_shown_value(Constraints::default(), &name),
                        Some((_, Ok(constraints))) => with_shown_value(constraints, &name),
                        Some((entry, Err(_))) => (decode_without(&name, entry)?, UNREADABLE.to_owned()),
                    };
                constraints.set(&name, &value)?;
                let bytes = serde_json::to_vec(&constraints)?;
                let changed = describe_change(&name, &old, &shown_value(&constraints, &name));
                Ok((bytes, (changed, constraints.warnings())))
            })
            .await?;
            print_text(&changed)?;
            for warning in warnings.into_iter().filter(|warning| warning.field == name) {
                print_warning(warning);
            }
            Ok(())
        }
    }
}

/// The old value of a constraint that cannot be read.
const UNREADABLE: &str = "unreadable";

fn with_shown_value(constraints: Constraints, name: &str) -> (Constraints, String) {
    let value = shown_value(&constraints, name);
    (constraints, value)
}

fn shown_value(constraints: &Constraints, name: &str) -> String {
    serde_json::to_value(constraints).unwrap_or_default()[name].to_string()
}

/// The stored constraints without one, which is about to be set: its stored value may be unreadable.
fn decode_without(name: &str, entry: &Entry) -> Result<Constraints, Failure> {
    let mut fields: BTreeMap<String, Box<RawValue>> = decode(keys::CONSTRAINTS, entry)?;
    fields.retain(|field, _| !field.eq_ignore_ascii_case(name));
    let others = Entry { value: serde_json::to_vec(&fields)?.into(), ..entry.clone() };
    decode(keys::CONSTRAINTS, &others)
}

/// A contradiction with another constraint depends on the stored ones; other errors are reported at once.
fn defer_contradictions(
    name: &str,
) -> impl FnOnce(madako_json::input::InputError) -> Result<(), madako_json::input::InputError> {
    let depends = matches!(name, "minimum-workers" | "maximum-workers");
    move |error| if depends { Ok(()) } else { Err(error) }
}

fn format_table(constraints: &Constraints) -> String {
    let mut table = Table::new(["CONSTRAINT", "VALUE"]);
    for name in Constraints::names() {
        table.add_row([name.to_owned(), shown_value(constraints, name)]);
    }
    table.to_text()
}

//! Inputs of a plan from files.

use madako_messages::constraints::Constraints;
use madako_messages::found::{cluster_from_yaml, node_taints_from_yaml};
use madako_messages::input::InputError;
use madako_messages::template::Template;
use madako_sabakan::{leave_out_without_address, parse_machines};

use super::{InputArgs, Inputs};
use crate::failure::Failure;
use crate::input::{STDIN, read, read_text};
use crate::output::{note, warn};

/// Reads and checks the files.
pub(super) fn gather(args: &InputArgs, template: &str, machines: &str) -> Result<Inputs, Failure> {
    let named = [
        Some(template),
        Some(machines),
        args.constraints.as_deref(),
        args.current.as_deref(),
        args.node_taints.as_deref(),
    ];
    if named.into_iter().flatten().filter(|name| *name == STDIN).count() > 1 {
        return Err(Failure::bad_input("only one file can come from standard input"));
    }
    let template = parse(template, Template::from_yaml)?;
    for warning in template.warnings() {
        warn(warning);
    }
    let fetched = leave_out_without_address(
        parse_machines(&read(machines)?).map_err(|error| in_file(machines, error))?,
    );
    note_left_out(&fetched.left_out);
    Ok(Inputs {
        template,
        constraints: optional(args.constraints.as_deref(), Constraints::from_yaml)?.unwrap_or_default(),
        machines: fetched.machines,
        current: optional(args.current.as_deref(), cluster_from_yaml)?,
        node_taints: optional(args.node_taints.as_deref(), node_taints_from_yaml)?.unwrap_or_default(),
        template_changed: args.template_changed,
    })
}

/// Serials of machines without an address that are named; the rest are counted.
const MAX_NAMED: usize = 5;

/// Tells of machines that cannot be nodes.
pub(super) fn note_left_out(serials: &[String]) {
    if serials.is_empty() {
        return;
    }
    let named: Vec<&str> = serials.iter().take(MAX_NAMED).map(String::as_str).collect();
    let more = if serials.len() > MAX_NAMED { ", ..." } else { "" };
    note(format_args!(
        "left out {} without an IPv4 address: {}{more}",
        if serials.len() == 1 { "1 machine".to_owned() } else { format!("{} machines", serials.len()) },
        named.join(", ")
    ));
}

fn optional<T>(name: Option<&str>, read: fn(&str) -> Result<T, InputError>) -> Result<Option<T>, Failure> {
    name.map(|name| parse(name, read)).transpose()
}

fn parse<T>(name: &str, parse: fn(&str) -> Result<T, InputError>) -> Result<T, Failure> {
    parse(&read_text(name)?).map_err(|error| in_file(name, error))
}

/// The error, with the file that it is about.
fn in_file(name: &str, error: InputError) -> Failure {
    Failure::BadInput(anyhow::Error::from(error).context(name.to_owned()))
}

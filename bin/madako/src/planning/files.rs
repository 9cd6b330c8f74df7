//! Reads the inputs of `madako plan` and `madako what-if` from files.

use std::collections::BTreeSet;

use madako_cluster_planner::DEFAULT_RETIRE_WAIT;
use madako_domain::constraints::Constraints;
use madako_domain::found::{cluster_from_yaml, node_taints_from_yaml};
use madako_domain::machine::Machine;
use madako_domain::template::Template;
use madako_json::input::InputError;
use madako_sabakan::{leave_out_without_address, parse_machines};

use super::{InputArgs, Inputs};
use crate::failure::Failure;
use crate::input::{STDIN, input_file_failure, read_input, read_text};
use crate::limits::MAX_FILES_NAMED;
use crate::output::{print_note, print_warning};

/// Reads and checks the files.
pub(super) fn gather_from_files(args: &InputArgs, template: &str, machines: &str) -> Result<Inputs, Failure> {
    let named = [
        Some(template),
        Some(machines),
        args.constraints.as_deref(),
        args.current.as_deref(),
        args.node_taints.as_deref(),
    ];
    if named.into_iter().flatten().filter(|name| *name == STDIN).count() > 1 {
        return Err(Failure::bad_input(
            "only one of --template, --machines, --constraints, --current and --node-taints can be - (standard \
             input)",
        ));
    }
    let template = parse(template, Template::from_yaml)?;
    for warning in template.warnings() {
        print_warning(warning);
    }
    let fetched = leave_out_without_address(
        parse_machines(&read_input(machines)?).map_err(|error| input_file_failure(machines, error))?,
    );
    note_left_out(&fetched.left_out_serials());
    let inputs = Inputs {
        template,
        constraints: read_optional(args.constraints.as_deref(), Constraints::from_yaml)?.unwrap_or_default(),
        machines: fetched.machines,
        current: read_optional(args.current.as_deref(), cluster_from_yaml)?,
        node_taints: read_optional(args.node_taints.as_deref(), node_taints_from_yaml)?.unwrap_or_default(),
        // Files contain no repairs.
        under_repair: BTreeSet::new(),
        template_changed: args.template_changed,
        retire_wait: args.retire_wait.unwrap_or(DEFAULT_RETIRE_WAIT),
    };
    warn_of_unknown_addresses(&inputs);
    Ok(inputs)
}

/// Warns of taints of unknown addresses: they have no effect, and are probably typing errors.
fn warn_of_unknown_addresses(inputs: &Inputs) {
    if inputs.node_taints.is_empty() {
        return;
    }
    let nodes = inputs.current.iter().flat_map(|cluster| &cluster.nodes);
    let known: BTreeSet<&str> = inputs
        .machines
        .iter()
        .filter_map(Machine::address)
        .chain(nodes.map(|node| node.address.as_str()))
        .collect();
    let strangers: Vec<&str> =
        inputs.node_taints.keys().map(String::as_str).filter(|address| !known.contains(address)).collect();
    if strangers.is_empty() {
        return;
    }
    let named = strangers.iter().take(MAX_FILES_NAMED).copied().collect::<Vec<_>>().join(", ");
    let more = if strangers.len() > MAX_FILES_NAMED { ", ..." } else { "" };
    print_warning(format_args!(
        "taints are given for {named}{more}: no machine and no node of the cluster has such an address"
    ));
}

/// Lists machines that cannot be nodes.
pub(super) fn note_left_out(serials: &[String]) {
    if serials.is_empty() {
        return;
    }
    let named: Vec<&str> = serials.iter().take(MAX_FILES_NAMED).map(String::as_str).collect();
    let more = if serials.len() > MAX_FILES_NAMED { ", ..." } else { "" };
    print_note(format_args!(
        "left out {} without an IPv4 address: {}{more}",
        if serials.len() == 1 { "1 machine".to_owned() } else { format!("{} machines", serials.len()) },
        named.join(", ")
    ));
}

fn read_optional<T>(
    name: Option<&str>,
    read: fn(&str) -> Result<T, InputError>,
) -> Result<Option<T>, Failure> {
    name.map(|name| parse(name, read)).transpose()
}

fn parse<T>(name: &str, parse: fn(&str) -> Result<T, InputError>) -> Result<T, Failure> {
    parse(&read_text(name)?).map_err(|error| input_file_failure(name, error))
}

//! `madako ops`: operations on nodes.

use std::collections::BTreeSet;

use clap::Subcommand;
use madako_domain::containers::ContainerOptions;
use madako_domain::found::cluster_from_yaml;
use madako_domain::node_status::status_from_yaml;
use madako_operation_runner::limits::MAX_CONCURRENT_UPDATES;
use madako_operation_runner::{Decision, Input, Settings, decide};

use crate::failure::Failure;
use crate::input::{STDIN, in_file, read_text};
use crate::limits::MAX_FILES_NAMED;
use crate::output::{Format, Table, show, warn};
use crate::serve_args::parse_updates;

/// Shows operations on nodes.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    Plan(PlanArgs),
}

/// Shows the operations of the next round for a given state of the nodes, and the operations that are held, with the
/// reasons. Changes nothing and opens no connection.
///
/// The status is an object in JSON or YAML: {"config_version": "2", "nodes": {ADDRESS: {"reachable": true, "containers":
/// {NAME: {"running": true, "image": IMAGE, "builtin": PARAMETERS, "extra": PARAMETERS}}, "etcd_data": true, "etcd_mark":
/// true}}, "etcd": {"healthy": true, "members": [{"id": "1", "name": ADDRESS, "peer_urls": [URL], "learner": false,
/// "in_sync": true}]}, "bootstrap": {"status": "completed", "targets": [ADDRESS]}}. PARAMETERS are those of the label
/// com.cybozu.cke: {"extra_args": [], "extra_binds": [], "extra_env": {}}. Lists and maps may be null; "etcd" is null
/// if etcd does not answer, and "bootstrap" if there is no record of a bootstrap. Optional fields are "foreign" of a
/// container, "etcd_empty" and "etcd_other_volume" of a node, "version" of a member, and "etcd_image_version".
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  madako ops plan --cluster cluster.yml --status status.json -o json")]
pub(crate) struct PlanArgs {
    /// Cluster configuration in YAML or JSON
    #[arg(long, value_name = "FILE")]
    cluster: String,
    /// State of the nodes and of etcd in JSON or YAML
    #[arg(long, value_name = "FILE")]
    status: String,
    /// Nodes on which one operation starts or restarts rivers
    #[arg(long, value_name = "NUMBER", value_parser = parse_updates, default_value_t = MAX_CONCURRENT_UPDATES)]
    max_concurrent_updates: usize,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    let Command::Plan(args) = command;
    plan(args)
}

fn plan(args: &PlanArgs) -> Result<(), Failure> {
    if args.cluster == STDIN && args.status == STDIN {
        return Err(Failure::bad_input("only one file can come from standard input"));
    }
    let cluster =
        cluster_from_yaml(&read_text(&args.cluster)?).map_err(|error| in_file(&args.cluster, error))?;
    let options = ContainerOptions::read(&cluster.options).map_err(|error| {
        Failure::bad_input(format_args!("{}: the field `options` cannot be read: {error}", args.cluster))
    })?;
    let status = status_from_yaml(&read_text(&args.status)?).map_err(|error| in_file(&args.status, error))?;
    let known: BTreeSet<&str> = cluster.nodes.iter().map(|node| node.address.as_str()).collect();
    let reported: BTreeSet<&str> = status.nodes.keys().map(String::as_str).collect();
    warn_of("the cluster has no node", reported.difference(&known).copied());
    warn_of("the status lacks nodes, which count as unreachable:", known.difference(&reported).copied());
    let settings = Settings { max_concurrent_updates: args.max_concurrent_updates, ..Settings::default() };
    let decision = decide(&Input {
        cluster: &cluster,
        options: &options,
        status: &status,
        backing_off: &BTreeSet::new(),
        settings: &settings,
    });
    show(args.output, &decision, table)
}

fn warn_of<'a>(what: &str, addresses: impl Iterator<Item = &'a str>) {
    let addresses: Vec<&str> = addresses.collect();
    if !addresses.is_empty() {
        warn(format_args!("{what} {}", named(&addresses)));
    }
}

/// Addresses for one line.
fn named(addresses: &[impl AsRef<str>]) -> String {
    let shown: Vec<&str> = addresses.iter().take(MAX_FILES_NAMED).map(AsRef::as_ref).collect();
    let more = addresses.len().saturating_sub(MAX_FILES_NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{more}", shown.join(", "))
}

fn table(decision: &Decision) -> String {
    let mut text = format!("Phase  {}\n", decision.phase);
    if !decision.operations.is_empty() {
        let mut table = Table::new(["OPERATION", "TARGETS", "COMMAND", "OF"]);
        for operation in &decision.operations {
            let mut first = [operation.name.to_string(), named(&operation.targets)];
            for command in &operation.commands {
                let [name, targets] = std::mem::take(&mut first);
                table.row([name, targets, command.name().to_owned(), command.target()]);
            }
        }
        text.push('\n');
        text.push_str(&table.text());
    }
    if !decision.held.is_empty() {
        let mut table = Table::new(["HELD", "REASON", "TARGETS", "WHY"]);
        for held in &decision.held {
            let reason = held.reason.name().to_owned();
            table.row([held.what.to_string(), reason, named(&held.targets), held.reason.to_string()]);
        }
        text.push('\n');
        text.push_str(&table.text());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn a_long_list_is_shortened() {
        assert_eq!(named(&["a", "b"]), "a, b");
        assert_eq!(named(&["a", "b", "c", "d", "e", "f", "g"]), "a, b, c, d, e and 2 more");
        assert_eq!(named(&[""; 0]), "");
    }
}

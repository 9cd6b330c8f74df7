//! The command line: commands and options. The commands themselves are in the modules that define their arguments.
//!
//! The words are ckecli's, for placement krakectl's, and `serve` has the flags of `cke`. As in those programs, the last
//! occurrence of an option counts.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::{
    auto_repair, bootstrap, ca, cluster, completion, config, constraints, doctor, etcd, history, images,
    leader, machine, man, node, ops, placement, reboot_queue, repair_queue, resource, sabakan, ssh, status,
    store, vault,
};
use crate::demo_args::DemoArgs;
use crate::failure::EXIT_CODES;
use crate::limits::MAX_GROUP_EXAMPLES;
use crate::log::LogArgs;
use crate::planning::{PlanArgs, WhatIfArgs};
use crate::rehearse::RehearseArgs;
use crate::serve_args::ServeArgs;

/// Keeps Kubernetes clusters on bare metal in order.
///
/// `madako serve` runs the service. The other commands are for operators. These commands use the store of the service
/// (etcd, or the embedded one), which the configuration file names, with the keys and values of ckecli. The placement
/// commands (kube, infra, os, core) are krakectl's and use the API of the service.
#[derive(Debug, Parser)]
#[command(
    name = "madako",
    version,
    args_override_self = true,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = exit_codes()
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

fn exit_codes() -> String {
    madako_console::exit_codes(&EXIT_CODES)
}

/// Options of every command.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Global {
    /// Configuration file, CKE's [default: /etc/cke/config.yml]
    ///
    /// The default file may be missing: then the commands use the embedded store on 127.0.0.1:2379.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(ServeArgs),
    Demo(DemoArgs),
    Plan(PlanArgs),
    WhatIf(WhatIfArgs),
    Rehearse(RehearseArgs),
    #[command(subcommand)]
    Cluster(cluster::Command),
    #[command(subcommand)]
    Constraints(constraints::Command),
    #[command(subcommand)]
    Sabakan(sabakan::Command),
    #[command(subcommand)]
    RepairQueue(repair_queue::Command),
    #[command(subcommand, visible_alias = "rq")]
    RebootQueue(reboot_queue::Command),
    #[command(subcommand)]
    Resource(resource::Command),
    #[command(subcommand)]
    AutoRepair(auto_repair::Command),
    Ops(ops::Args),
    #[command(subcommand)]
    Machine(machine::Command),
    #[command(subcommand)]
    Node(node::Command),
    #[command(subcommand)]
    Ca(ca::Command),
    #[command(subcommand)]
    Etcd(etcd::Command),
    Images(images::Args),
    #[command(subcommand)]
    Vault(vault::Command),
    Ssh(ssh::Args),
    Scp(ssh::ScpArgs),
    Leader(leader::Args),
    Status(status::Args),
    Doctor(doctor::Args),
    History(history::Args),
    #[command(flatten)]
    Placement(placement::Command),
    #[command(subcommand)]
    Store(store::Command),
    Bootstrap(bootstrap::Args),
    #[command(subcommand)]
    Config(config::Command),
    #[command(subcommand)]
    Template(config::TemplateCommand),
    Completion(completion::Args),
    Man(man::Args),
}

impl Cli {
    /// Parses a command line that begins with the program's name.
    ///
    /// # Errors
    /// clap's error, or the requested help.
    pub(crate) fn read(
        line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        let mut words = with_examples_of_groups(accept_negative_values(Self::command()));
        let mut matches = words.try_get_matches_from_mut(line)?;
        Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut words))
    }
}

/// Takes an argument with a leading dash as the value where a number or a time is expected, so that the error names the
/// problem of the value; by default clap calls it an unexpected argument. Options with several values are excluded:
/// there the next argument may be an option.
fn accept_negative_values(command: clap::Command) -> clap::Command {
    const TIMES: [&str; 2] = ["DURATION", "SECONDS"];
    let takes_dashes = |arg: clap::Arg| {
        let is_time =
            arg.get_value_names().unwrap_or_default().iter().any(|name| TIMES.contains(&name.as_str()));
        let is_one = arg.get_num_args().is_none_or(|values| values.max_values() <= 1);
        match (arg.get_action().takes_values(), is_time && is_one) {
            (true, true) => arg.allow_hyphen_values(true),
            (true, false) => arg.allow_negative_numbers(true),
            (false, _) => arg,
        }
    };
    command.mut_args(takes_dashes).mut_subcommands(accept_negative_values)
}

/// Gives the help of each group of commands an example of each of its first commands.
fn with_examples_of_groups(command: clap::Command) -> clap::Command {
    command.mut_subcommands(|group| {
        if !group.has_subcommands() || group.get_after_help().is_some() {
            return group;
        }
        let mut examples = Vec::new();
        collect_examples(&group, &mut examples);
        examples.truncate(MAX_GROUP_EXAMPLES);
        group.after_help(format!("Examples:\n{}", examples.join("\n")))
    })
}

/// The first example of each command of a group, in the order of the commands.
fn collect_examples(group: &clap::Command, examples: &mut Vec<String>) {
    for command in group.get_subcommands() {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        examples.extend(help.lines().find(|line| line.starts_with("  ")).map(str::to_owned));
        collect_examples(command, examples);
    }
}

/// Parses a whole number within a range.
///
/// # Errors
/// The expected form.
pub(crate) fn whole_number(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
}

#[cfg(test)]
mod tests;

//! The command line: words and options of every command. What they do is in the modules they are from.
//!
//! The words are ckecli's, and `serve` has the flags of `cke`. As with those programs, the last one counts
//! when an option is given twice.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::commands::{cluster, completion, constraints, history, leader, sabakan, status};
use crate::demo_args::DemoArgs;
use crate::failure::EXIT_CODES;
use crate::log::LogArgs;
use crate::planning::{PlanArgs, WhatIfArgs};
use crate::serve_args::ServeArgs;

/// Keeps Kubernetes clusters on bare metal in order.
///
/// `madako serve` is the service. The other commands are the operator's: they reach the service through
/// its store (etcd, or the embedded one), which the configuration file names, and read and write what
/// ckecli does.
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
    let lines = EXIT_CODES.map(|(code, meaning)| format!("  {code}  {meaning}\n"));
    format!("Exit codes:\n{}", lines.concat())
}

/// Options of every command.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Global {
    /// Configuration file, CKE's [default: /etc/cke/config.yml]
    ///
    /// The one at the default place may be missing: then the embedded store on 127.0.0.1:2379 is meant.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(ServeArgs),
    Demo(DemoArgs),
    Plan(PlanArgs),
    WhatIf(WhatIfArgs),
    #[command(subcommand)]
    Cluster(cluster::Command),
    #[command(subcommand)]
    Constraints(constraints::Command),
    #[command(subcommand)]
    Sabakan(sabakan::Command),
    Leader(leader::Args),
    Status(status::Args),
    History(history::Args),
    Completion(completion::Args),
}

#[cfg(test)]
mod tests;

//! `madako config` and `madako template`: examples of input files, and their check.

use std::path::Path;

use clap::{Subcommand, ValueEnum};
use madako_supervisor::config::{Config, StoreChoice};

use crate::failure::Failure;
use crate::output::{print_text, print_warning};

const SINGLE: &str = include_str!("config/single.yml");
const ETCD: &str = include_str!("config/etcd.yml");
const PLACEMENT: &str = include_str!("config/placement.yml");
const REPAIR: &str = include_str!("config/repair.yml");
const TEMPLATE: &str = include_str!("config/template.yml");
const REPAIR_TEMPLATE: &str = include_str!("config/repair-template.yml");
const SIMULATED_TEMPLATE: &str = include_str!("config/simulated-template.yml");

/// Prints and checks configuration files.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    /// Prints a commented configuration file, which is valid as it is.
    #[command(after_help = "Examples:\n  madako config example > /etc/cke/config.yml\n  \
                            madako config example --for placement")]
    Example {
        /// The purpose of the file
        #[arg(long = "for", value_name = "PURPOSE", value_enum, default_value_t = CheckPurpose::Single)]
        purpose: CheckPurpose,
    },
    /// Checks a configuration file as the service does at its start, with the files that it names; connects to nothing.
    ///
    /// The command names every problem of the file at once. Unwise settings are warnings.
    ///
    /// Exit codes: 0: the service accepts the file; 2: it refuses the file.
    #[command(after_help = "Example:\n  madako config check /etc/cke/config.yml")]
    Check {
        /// Configuration file to check
        file: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckPurpose {
    /// One machine, with the state in a file
    Single,
    /// Several instances, with the state in an etcd
    Etcd,
    /// Applications on clusters, by Krake's API
    Placement,
    /// Repairs of machines
    Repair,
}

/// Prints templates of clusters.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum TemplateCommand {
    /// Prints a commented template, which is valid as it is, for `madako sabakan set-template`.
    #[command(after_help = "Examples:\n  madako template example > template.yml\n  \
                            madako template example --for repair\n  \
                            madako template example --for simulated")]
    Example {
        /// The purpose of the template
        #[arg(long = "for", value_name = "PURPOSE", value_enum, default_value_t = TemplatePurpose::Cluster)]
        purpose: TemplatePurpose,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TemplatePurpose {
    /// A control plane and two kinds of workers
    Cluster,
    /// A control plane and two kinds of workers, with a procedure for repairs
    Repair,
    /// For madako serve --simulated: with repairs and reboots of the simulated machines
    Simulated,
}

pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Example { purpose } => print_text(match purpose {
            CheckPurpose::Single => SINGLE,
            CheckPurpose::Etcd => ETCD,
            CheckPurpose::Placement => PLACEMENT,
            CheckPurpose::Repair => REPAIR,
        }),
        Command::Check { file } => check_file(file),
    }
}

pub(crate) fn run_template(command: &TemplateCommand) -> Result<(), Failure> {
    let TemplateCommand::Example { purpose } = command;
    match purpose {
        TemplatePurpose::Cluster => print_text(TEMPLATE),
        TemplatePurpose::Repair => print_text(&format!("{TEMPLATE}{REPAIR_TEMPLATE}")),
        TemplatePurpose::Simulated => print_text(&format!("{TEMPLATE}{SIMULATED_TEMPLATE}")),
    }
}

fn check_file(file: &str) -> Result<(), Failure> {
    let config = Config::load(Some(Path::new(file)))?;
    config.warnings.iter().for_each(print_warning);
    let store = match &config.store {
        StoreChoice::Embedded(embedded) => format!("embedded, in {}", embedded.data_dir.display()),
        StoreChoice::External => format!("etcd at {}", config.clients.endpoints.join(", ")),
    };
    let placement = if config.placement.is_some() { "on" } else { "off" };
    let kubernetes = match &config.kubernetes {
        Some(access) => access.server(),
        None if config.reaches_kubernetes() => "those of the control plane",
        None => "none",
    };
    let operations: &str = config.operations.mode.map_or("off", Into::into);
    print_text(&format!(
        "{file} is valid.\nStore       {store}\nOperations  {operations}\nPlacement   {placement}\nAPI server  {kubernetes}\n"
    ))
}

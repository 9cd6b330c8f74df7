//! `madako`: the service, its demo, and the operator's commands.

mod access;
mod cli;
mod commands;
mod complete;
mod demo;
mod demo_args;
mod failure;
mod host;
mod input;
mod last_plan;
mod limits;
mod list;
mod log;
mod notify;
mod output;
mod planning;
mod recorder;
mod rehearse;
mod running_settings;
mod serve;
mod serve_args;
mod signals;
mod traces;

use std::process::ExitCode;
use std::sync::Arc;

use madako_supervisor::clock::SystemClock;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::cli::{Cli, Command, Global};
use crate::commands::{
    auto_repair, bootstrap, ca, cluster, completion, config, constraints, doctor, etcd, history, images,
    kubernetes, leader, machine, man, node, ops, placement, reboot_queue, repair_queue, resource, sabakan,
    ssh, status, store, vault,
};
use crate::failure::Failure;
use crate::log::{CkeLog, LogFile, Severity};
use crate::traces::Traces;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn main() -> ExitCode {
    // First of all: this process may have been started to guard a command on a host.
    if let Some(code) = madako_host::watcher_main(std::env::args_os()) {
        return code;
    }
    complete::answer_completion();
    let Cli { global, command } = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return madako_console::print_clap_error(output::PROGRAM, &error),
    };
    forbid_core_dumps();
    match run(command, &global) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                output::print_note(message);
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// A core dump would contain the private keys and tokens in use. Commands on the host inherit the limit.
fn forbid_core_dumps() {
    // Less than a page, so that there is no file. A program that takes dumps from a pipe gets none only with 1 (core(5)).
    let limit = Rlimit { current: Some(1), maximum: Some(1) };
    if let Err(error) = setrlimit(Resource::Core, limit) {
        output::print_note(format!(
            "cannot forbid core dumps, which would contain private keys and tokens: {error}"
        ));
    }
}

fn run(command: Command, global: &Global) -> Result<(), Failure> {
    let default = match command {
        Command::Serve(_) => Severity::Info,
        // The demo shows all events on its screen, where warnings about killed actors would interfere.
        Command::Demo(_) => Severity::Error,
        _ => Severity::Warning,
    };
    // The service has many concurrent tasks, a command one.
    let mut builder = match command {
        Command::Serve(_) | Command::Demo(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder.enable_all().build()?;
    let traces = match &command {
        Command::Serve(args) => {
            let _entered = runtime.enter();
            let start = |collector| Traces::start(collector, &host::host_name()).map_err(Failure::Failed);
            args.collector().map(start).transpose()?
        }
        _ => None,
    };
    let log_file = start_log(global, default, traces.as_ref())?;
    if let Command::Completion(args) = &command {
        return completion::run(args);
    }
    if let Command::Rehearse(args) = command {
        return rehearse::run(&args, global, &SystemClock, &runtime);
    }
    let done = runtime.block_on(async {
        if let Some(file) = log_file {
            tokio::spawn(async move {
                if let Err(error) = file.reopen_at_signals().await {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "SIGUSR1 will not reopen the log file"
                    );
                }
            });
        }
        Box::pin(run_command(command, global)).await
    });
    if let Some(traces) = traces {
        traces.end();
    }
    done
}

/// Starts the log at the destination of the flags.
fn start_log(
    global: &Global,
    default: Severity,
    traces: Option<&Traces>,
) -> Result<Option<Arc<LogFile>>, Failure> {
    let log = CkeLog::new(&global.log, default, Arc::new(SystemClock)).map_err(|error| {
        Failure::bad_input(format_args!("cannot open the log file of --logfile: {error}"))
    })?;
    let file = log.log_file();
    tracing::subscriber::set_global_default(log.into_subscriber(traces))
        .map_err(|error| Failure::Failed(error.into()))?;
    Ok(file)
}

async fn run_command(command: Command, global: &Global) -> Result<(), Failure> {
    let store = || access::open_store(global);
    match command {
        Command::Serve(args) => Box::pin(serve::run(args.into_options(global)?)).await,
        Command::Demo(args) => match Box::pin(demo::run(args.into_options(global))).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::failed(
                "the demo ended because an invariant was violated; its last lines name it",
            )),
            Err(error) => Err(Failure::Failed(error)),
        },
        Command::Plan(args) => planning::run_plan(args, global, &SystemClock).await,
        Command::WhatIf(args) => planning::run_what_if(args, global, &SystemClock).await,
        Command::Rehearse(_) => unreachable!("it has a runtime of its own, and is run before"),
        Command::Cluster(command) => cluster::run(command, &store()?).await,
        Command::Constraints(command) => constraints::run(command, &store()?).await,
        Command::Sabakan(command) => sabakan::run(command, &store()?).await,
        Command::RepairQueue(command) => repair_queue::run(command, global, &store()?, &SystemClock).await,
        Command::RebootQueue(command) => reboot_queue::run(command, global, &store()?, &SystemClock).await,
        Command::Resource(command) => resource::run(command, global).await,
        Command::AutoRepair(command) => auto_repair::run(command, global, store, &SystemClock).await,
        Command::Ops(args) => Box::pin(ops::run(&args, global)).await,
        Command::Machine(command) => Box::pin(machine::run(command, global)).await,
        Command::Node(command) => Box::pin(node::run(command, global)).await,
        Command::Ca(command) => ca::run(command, global).await,
        Command::Etcd(command) => Box::pin(etcd::run(command, global)).await,
        Command::Images(args) => Box::pin(images::run(&args, global)).await,
        Command::Vault(command) => Box::pin(vault::run(command, global)).await,
        Command::Ssh(args) => Box::pin(ssh::run(args, global)).await,
        Command::Scp(args) => Box::pin(ssh::run_scp(args, global)).await,
        Command::Leader(args) => leader::run(args, &store()?).await,
        Command::Status(args) => status::run(args, &store()?).await,
        Command::Doctor(args) => Box::pin(doctor::run(&args, global)).await,
        Command::History(args) => history::run(args, &store()?).await,
        Command::Placement(placement::Command::Issue(args)) => kubernetes::run(args, global).await,
        Command::Placement(placement::Command::Status(args)) => kubernetes::status::run(&args, global).await,
        Command::Placement(placement::Command::Plan(args)) => {
            Box::pin(kubernetes::plan::run(&args, global)).await
        }
        Command::Placement(placement::Command::Pause(_)) => kubernetes::rollout::pause(global).await,
        Command::Placement(placement::Command::Resume(_)) => kubernetes::rollout::resume(global).await,
        Command::Placement(placement::Command::Rotate(args)) => kubernetes::rotate::run(&args, global).await,
        Command::Placement(placement::Command::Resource(command)) => {
            Box::pin(placement::run(command, global.config.as_deref())).await
        }
        Command::Bootstrap(args) => {
            bootstrap::run(&args, &SystemClock, || Ok(access::open_store(global)?.with_absolute_keys())).await
        }
        Command::Store(command) => store::run(command, global).await,
        Command::Completion(args) => completion::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Config(command) => config::run(&command),
        Command::Template(command) => config::run_template(&command),
    }
}

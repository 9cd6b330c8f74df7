//! `madako plan` and `madako what-if`: the planner's next actions with their reasons. Changes nothing.

mod files;
mod running;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_cluster_planner::render::{error_table, plan_table};
use madako_cluster_planner::{
    DEFAULT_RETIRE_WAIT, LeaderStage, MachineSelector, PlanInput, WhatIf, WhatIfEnd, plan,
};
use madako_domain::cluster::{Cluster, Taint};
use madako_domain::constraints::Constraints;
use madako_domain::machine::{Machine, parse_date};
use madako_domain::settings::Settings;
use madako_domain::template::Template;
use madako_protocol::ports::Clock;
use time::OffsetDateTime;

use crate::cli::Global;
use crate::failure::Failure;
use crate::output::{Format, Table, show_value};

/// Shows the next plan of the cluster, with its reasons; changes nothing.
///
/// Without files, the command plans for the running system: it reads the store and polls the registry once. With
/// --template and --machines, it reads only files and opens no connection.
///
/// If no plan can be made, the command prints the obstacle and exits with 3; in JSON the obstacle is {"error": {"kind":
/// ..., "message": ...}}.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako plan\n  \
                        madako plan --template template.yml --machines machines.json --current cluster.yml -o json")]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    inputs: InputArgs,
}

/// Shows every plan that would follow if machines were lost or removed; changes nothing.
///
/// Each SELECTOR is an address, rack=NUMBER or role=ROLE. Each plan starts from the result of the previous one, until
/// nothing is left to do. If a plan cannot be made, the command exits with 3.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako what-if --lose rack=3 --remove 10.0.1.7\n  \
                        madako what-if --template template.yml --machines machines.json --lose role=storage -o json")]
pub(crate) struct WhatIfArgs {
    /// Machines that become unreachable; may be given several times
    #[arg(long, value_name = "SELECTOR")]
    lose: Vec<MachineSelector>,
    /// Machines that are removed from the list; may be given several times
    #[arg(long, value_name = "SELECTOR")]
    remove: Vec<MachineSelector>,
    #[command(flatten)]
    inputs: InputArgs,
}

/// Heading of the options for files in the help.
const FILES: &str = "Files instead of the running system";

/// The inputs of a plan.
#[derive(Debug, clap::Args)]
pub(crate) struct InputArgs {
    /// Template in YAML or JSON; with it the command opens no connection
    #[arg(long, value_name = "FILE", requires = "machines", help_heading = FILES)]
    template: Option<String>,
    /// Machines in JSON, as sabakan's GraphQL returns them: the array, or the whole response
    #[arg(long, value_name = "FILE", requires = "template", help_heading = FILES)]
    machines: Option<String>,
    /// Constraints in YAML or JSON [default: CKE's]
    #[arg(long, value_name = "FILE", requires = "template", help_heading = FILES)]
    constraints: Option<String>,
    /// Current cluster in YAML or JSON [default: none]
    #[arg(long, value_name = "FILE", requires = "template", help_heading = FILES)]
    current: Option<String>,
    /// Taints of Kubernetes nodes in YAML or JSON: addresses, each with a list of taints
    #[arg(long, value_name = "FILE", requires = "template", help_heading = FILES)]
    node_taints: Option<String>,
    /// The current cluster was made from another template
    #[arg(long, requires = "template", help_heading = FILES)]
    template_changed: bool,
    /// Time of the plan in RFC 3339 [default: now]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    now: Option<OffsetDateTime>,
    /// Seconds after which a worker with a retired machine is removed [default: as the running system has it, or 300]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    retire_wait: Option<Duration>,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// All inputs of a plan, from files or from the running system.
struct Inputs {
    template: Template,
    constraints: Constraints,
    machines: Vec<Machine>,
    current: Option<Cluster>,
    node_taints: BTreeMap<String, Vec<Taint>>,
    under_repair: BTreeSet<String>,
    template_changed: bool,
    retire_wait: Duration,
}

impl InputArgs {
    async fn gather(&self, global: &Global) -> Result<Inputs, Failure> {
        match (&self.template, &self.machines) {
            (Some(template), Some(machines)) => files::gather_from_files(self, template, machines),
            _ => running::gather_from_system(self, global).await,
        }
    }

    fn plan_input<'a>(&self, inputs: &'a Inputs, clock: &dyn Clock) -> PlanInput<'a> {
        PlanInput {
            template: &inputs.template,
            constraints: &inputs.constraints,
            machines: &inputs.machines,
            current: inputs.current.as_ref(),
            node_taints: &inputs.node_taints,
            under_repair: &inputs.under_repair,
            now: self.now.unwrap_or_else(|| clock.now()),
            retire_wait: inputs.retire_wait,
            template_changed: inputs.template_changed,
            moment: LeaderStage::Running,
        }
    }
}

fn lay_out_table(rows: Vec<Vec<String>>) -> String {
    Table::of_rows(rows).to_text()
}

pub(crate) async fn run_plan(args: PlanArgs, global: &Global, clock: &dyn Clock) -> Result<(), Failure> {
    let inputs = args.inputs.gather(global).await?;
    match plan(&args.inputs.plan_input(&inputs, clock)) {
        Ok(plan) => show_value(args.inputs.output, &plan, |plan| plan_table(plan, lay_out_table)),
        Err(error) => {
            show_value(args.inputs.output, &error, |error| error_table(error, lay_out_table))?;
            Err(Failure::NoPlan)
        }
    }
}

pub(crate) async fn run_what_if(args: WhatIfArgs, global: &Global, clock: &dyn Clock) -> Result<(), Failure> {
    let inputs = args.inputs.gather(global).await?;
    let input = args.inputs.plan_input(&inputs, clock);
    let mut answer = WhatIf::new(&input, &args.lose, &args.remove).map_err(Failure::bad_input)?;
    match steps::print_steps(args.inputs.output, &mut answer)? {
        WhatIfEnd::AtRest => Ok(()),
        WhatIfEnd::NoPlan(_) => Err(Failure::NoPlan),
        WhatIfEnd::NeverAtRest { plans } => Err(Failure::failed(format_args!(
            "the planner still changes the cluster after {plans} plans; this is a bug: report it"
        ))),
    }
}

fn parse_time(text: &str) -> Result<OffsetDateTime, String> {
    parse_date(text).ok_or_else(|| "expected a time such as 2026-01-31T12:00:00Z".to_owned())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "expected a number of seconds, 0 or more".to_owned())
}

const _: () = assert!(
    DEFAULT_RETIRE_WAIT.as_secs() == 300 && Settings::DEFAULT.retire_wait.as_secs() == 300,
    "the help of --retire-wait says so"
);

//! `madako ops diff`: the changes that the service would make on the nodes.

use madako_operation_runner::difference::{Difference, DueFiles, find_differences};
use madako_operation_runner::due_files;
use serde::Serialize;

use super::{collected, plan};
use crate::cli::Global;
use crate::failure::Failure;
use crate::output::{Format, Table, show_value};

/// Shows each container, file, certificate, volume, member of etcd and key that the service would change, with the reason;
/// says "nothing" when there is none. Changes nothing.
///
/// Use it before Madako takes a fleet over from CKE, and with `operations.mode: observe`. Without files, the command
/// reads the cluster from the store and collects the state itself, as `madako ops plan` does. The command needs neither
/// a leader nor an instance that observes. A node that does not answer is a difference: its state is unknown.
///
/// With --cluster and --status, the command reads only these files, and the names of the images in the file of --config
/// if that is given. The command then opens no connection. Of etcd's files, the output names only the certificates in
/// the status that end soon. `madako ops plan --help` shows the form of the status.
///
/// Exit codes: 0: nothing; 1: there are differences, or the state could not be read; 2: bad input.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  madako ops diff\n  madako ops diff -o json\n  madako ops diff --cluster cluster.yml \
                        --status status.json"
)]
pub(crate) struct Args {
    /// Cluster configuration in YAML or JSON
    #[arg(long, value_name = "FILE", requires = "status")]
    cluster: Option<String>,
    /// State of the nodes and of etcd in JSON or YAML
    #[arg(long, value_name = "FILE", requires = "cluster")]
    status: Option<String>,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Serialize)]
struct ShownDifference {
    differences: Vec<Difference>,
}

pub(super) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let differences = collect_differences(args, global).await?;
    let shown = ShownDifference { differences };
    show_value(args.output, &shown, difference_table)?;
    if shown.differences.is_empty() { Ok(()) } else { Err(Failure::Different) }
}

async fn collect_differences(args: &Args, global: &Global) -> Result<Vec<Difference>, Failure> {
    let (inputs, due) = match (&args.cluster, &args.status) {
        (Some(cluster), Some(status)) => (plan::from_files(cluster, status, global)?, DueFiles::new()),
        _ => {
            let gathered = collected::gather_states(global).await?;
            let (authorities, inputs) = (&*gathered.ports.runner.authorities, gathered.inputs);
            let due = due_files(authorities, &inputs.cluster, &inputs.status).await?;
            (inputs, due)
        }
    };
    Ok(find_differences(&inputs.as_input(&inputs.settings), &due))
}

fn difference_table(shown: &ShownDifference) -> String {
    if shown.differences.is_empty() {
        return "nothing\n".to_owned();
    }
    let mut table = Table::new(["NODE", "KIND", "NAME", "WHY"]);
    for Difference { node, kind, name, why } in &shown.differences {
        table.add_row([node.clone(), kind.to_string(), name.clone(), why.clone()]);
    }
    table.to_text()
}

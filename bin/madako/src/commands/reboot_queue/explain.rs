//! `madako reboot-queue explain`: the next action for each entry, its time, and its obstacle.

use madako_domain::state::ClusterState;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_reboot_queue::explain::{ExplainContext, explain};
use madako_reboot_queue::next_action::Explained;
use madako_supervisor::config::Config;

use crate::cli::Global;
use crate::failure::Failure;
use crate::output::{Format, Table, show_value};

/// Shows the next action for each entry, its time, and its obstacle, in the order of service.
///
/// The command reads the store alone, and changes nothing. Only the leader knows whether etcd is good, which nodes are
/// unreachable, and which pods a drain waits for: here etcd counts as good, and every node as reachable. The
/// configuration file of this command determines the time limit of a boot, and whether Kubernetes is reached. The exit
/// code is 1 if an entry waits for anything but its own drain or boot.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  madako reboot-queue explain\n  madako reboot-queue explain 10.0.1.7 -o json"
)]
pub(crate) struct Args {
    /// Address of one node, which must have an entry [default: all]
    address: Option<String>,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

pub(super) async fn run(
    args: &Args,
    global: &Global,
    store: &dyn Store,
    clock: &dyn Clock,
) -> Result<(), Failure> {
    let explained = find(args, global, store, clock).await.map_err(Failure::into_bad_input)?;
    show_value(args.output, &explained, |explained| format_table(explained))?;
    if explained.iter().any(|entry| entry.is_held) { Err(Failure::Different) } else { Ok(()) }
}

async fn find(
    args: &Args,
    global: &Global,
    store: &dyn Store,
    clock: &dyn Clock,
) -> Result<Vec<Explained>, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let snapshot = store.list("").await?;
    let state = ClusterState::decode(snapshot.revision, &snapshot.entries, None);
    let context = ExplainContext { settings: config.reboots, kubernetes: config.kubernetes.is_some() };
    let mut explained = explain(&state, &context, clock.now());
    if let Some(address) = &args.address {
        explained.retain(|entry| entry.node == *address);
        if explained.is_empty() {
            return Err(Failure::bad_input(format_args!("the reboot queue has no entry for {address}")));
        }
    }
    Ok(explained)
}

fn format_table(explained: &[Explained]) -> String {
    if explained.is_empty() {
        return "The reboot queue is empty.\n".to_owned();
    }
    let mut table = Table::new(["ENTRY", "NODE", "NEXT", "IN THE WAY"]);
    for entry in explained {
        let why = entry.why.clone().unwrap_or_default();
        table.add_row([entry.index.to_string(), entry.node.clone(), entry.what.clone(), why]);
    }
    table.to_text()
}

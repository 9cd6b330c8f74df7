//! `madako reboot-queue release`: lets the queue go on without the nodes that did not boot.

use std::collections::BTreeMap;

use madako_domain::keys;
use madako_domain::reboot::ReleasedReboots;
use madako_domain::state::ClusterState;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_reboot_queue::explain::overdue_workers;
use madako_supervisor::config::Config;
use serde::Serialize;

use crate::access::{concurrent_change_failure, put_if};
use crate::cli::Global;
use crate::failure::Failure;
use crate::limits::MAX_CHANGE_TRIES;
use crate::output::{Format, Table, show_value};

/// Releases the entries of workers that did not boot in time: they no longer hold the queue.
///
/// Three such workers hold all new drains. A released entry stays in the queue until its node boots or the entry is
/// cancelled. A control plane node that did not boot keeps the queue waiting: repair it, or cancel its entry. The
/// configuration file of this command determines the time limit of a boot.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  madako reboot-queue release")]
pub(crate) struct Args {
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Serialize)]
struct ReleasedNode {
    index: i64,
    node: String,
}

pub(super) async fn run(
    args: &Args,
    global: &Global,
    store: &dyn Store,
    clock: &dyn Clock,
) -> Result<(), Failure> {
    let settings = Config::load(global.config.as_deref())?.reboots;
    for _ in 0..MAX_CHANGE_TRIES {
        let snapshot = store.list("").await?;
        let state = ClusterState::decode(snapshot.revision, &snapshot.entries, None);
        let overdue = overdue_workers(&state, settings, clock.now());
        let reboots = &state.repair.reboots;
        // Entries that left the queue leave the key, too.
        let kept: BTreeMap<i64, i64> = state
            .repair
            .reboots_released
            .entries
            .iter()
            .filter(|(index, created)| reboots.get(index).is_some_and(|item| item.created == **created))
            .map(|(index, created)| (*index, *created))
            .collect();
        let new: Vec<i64> = overdue.into_iter().filter(|index| !kept.contains_key(index)).collect();
        if new.is_empty() {
            return Err(Failure::failed("no worker of the reboot queue is overdue, so none was released"));
        }
        let released = new
            .iter()
            .map(|index| ReleasedNode { index: *index, node: reboots[index].value.node.clone() })
            .collect::<Vec<_>>();
        let created = new.iter().map(|index| (*index, reboots[index].created));
        let value = ReleasedReboots { entries: kept.into_iter().chain(created).collect() };
        let conditions = vec![state.require_unchanged(keys::REBOOTS_RELEASED)];
        if put_if(store, keys::REBOOTS_RELEASED, serde_json::to_vec(&value)?, conditions).await? {
            return show_value(args.output, &released, |released| format_table(released));
        }
    }
    Err(concurrent_change_failure(keys::REBOOTS_RELEASED))
}

fn format_table(released: &[ReleasedNode]) -> String {
    let mut table = Table::new(["RELEASED", "NODE"]);
    for entry in released {
        table.add_row([entry.index.to_string(), entry.node.clone()]);
    }
    table.to_text()
}

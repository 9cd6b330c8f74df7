//! `madako leader`: shows the leader.

use madako_domain::keys;
use madako_protocol::store::Store;
use serde_json::json;

use crate::failure::Failure;
use crate::output::{OutputArgs, Table, print_text, show_value};

/// Shows the host name of the leader.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  madako leader")]
pub(crate) struct Args {
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: Args, store: &dyn Store) -> Result<(), Failure> {
    let candidates = store.list(keys::LEADER).await?.entries;
    let count = candidates.len();
    // The oldest candidate leads.
    let leader = candidates
        .into_values()
        .min_by_key(|entry| entry.create_revision)
        .ok_or_else(|| Failure::failed("no instance leads: madako serve starts one"))?;
    let name = String::from_utf8_lossy(&leader.value).into_owned();
    let Some(format) = args.output.output else { return print_text(&format!("{name}\n")) };
    let value = json!({ "leader": name, "epoch": leader.create_revision, "candidates": count });
    show_value(format, &value, |_| {
        let mut table = Table::new(["LEADER", "EPOCH", "CANDIDATES"]);
        table.add_row([name.clone(), leader.create_revision.to_string(), count.to_string()]);
        table.to_text()
    })
}

//! `madako status`: what the leader is doing.

use madako_messages::keys;
use madako_messages::status::ServerStatus;
use madako_messages::store::Store;
use time::format_description::well_known::Rfc3339;

use crate::access::{decode, get};
use crate::failure::Failure;
use crate::output::{OutputArgs, Table, print, show};

/// Shows what the leader is doing.
///
/// Exits with 4 while there is no status: no leader has got as far as to note one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  madako status")]
pub(crate) struct Args {
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
pub(crate) async fn run(args: Args, store: &dyn Store) -> Result<(), Failure> {
    let entry = get(store, keys::STATUS).await?.ok_or(Failure::NoStatus)?;
    let status: ServerStatus = decode(keys::STATUS, &entry)?;
    let Some(format) = args.output.output else {
        return print(&format!("{}\n", serde_json::to_string(&status)?));
    };
    show(format, &status, |status| {
        let mut table = Table::new(["PHASE", "SINCE"]);
        table.row([status.phase.to_string(), status.timestamp.format(&Rfc3339).unwrap_or_default()]);
        table.text()
    })
}

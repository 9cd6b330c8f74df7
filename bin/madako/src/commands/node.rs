//! `madako node`: the state of each node, from the leader's page `/nodes`.

pub(crate) mod list;
mod show;

use clap::Subcommand;
use madako_console::format_duration_in_words;
use madako_operation_runner::stories::NodeStories;
use madako_protocol::store::Store;
use time::{Duration, OffsetDateTime};

use crate::access::open_store;
use crate::cli::Global;
use crate::commands::ops::running::{fetch_page, unreadable_page};
use crate::failure::Failure;

/// Shows the nodes of the cluster, as the leader last saw them.
///
/// The commands ask the leader, whose address is in the store (madako/leader-url).
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    List(list::Args),
    Show(show::Args),
}

pub(crate) async fn run(command: Command, global: &Global) -> Result<(), Failure> {
    let store = open_store(global)?;
    match command {
        Command::List(args) => list::run(&args, &store).await,
        Command::Show(args) => show::run(&args, &store).await,
    }
}

/// The leader's page.
async fn read_stories(store: &dyn Store) -> Result<NodeStories, Failure> {
    let (url, body) = fetch_page("nodes", store).await?;
    serde_json::from_slice(&body).map_err(|error| unreadable_page(&url, &error))
}

/// The time between two times in its two largest units, such as `3d4h`; 0 if it is negative.
pub(crate) fn format_age(between: Duration) -> String {
    format_duration_in_words(u64::try_from(between.whole_seconds()).unwrap_or(0))
}

pub(crate) fn age_of(time: Option<OffsetDateTime>, now: OffsetDateTime) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format_age(now - time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_its_two_largest_units() {
        assert_eq!(format_age(Duration::seconds(3_660)), "1h1m");
        assert_eq!(format_age(Duration::seconds(-5)), "0s", "clocks differ");
    }
}

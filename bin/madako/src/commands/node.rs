//! `madako node`: the state of each node, from the leader's page `/nodes`.

pub(crate) mod list;
mod show;

use clap::Subcommand;
use madako_operation_runner::stories::Stories;
use madako_protocol::store::Store;
use time::{Duration, OffsetDateTime};

use crate::access::open;
use crate::cli::Global;
use crate::commands::ops::running::{page, unreadable};
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
    let store = open(global)?;
    match command {
        Command::List(args) => list::run(&args, &store).await,
        Command::Show(args) => show::run(&args, &store).await,
    }
}

/// The leader's page.
async fn stories(store: &dyn Store) -> Result<Stories, Failure> {
    let (url, body) = page("nodes", store).await?;
    serde_json::from_slice(&body).map_err(|error| unreadable(&url, &error))
}

/// The time between two times in its two largest units, such as `3d4h`.
pub(crate) fn age(between: Duration) -> String {
    let seconds = between.whole_seconds().max(0);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, ..) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}

pub(crate) fn age_of(time: Option<OffsetDateTime>, now: OffsetDateTime) -> String {
    time.map_or_else(|| "-".to_owned(), |time| age(now - time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_its_two_largest_units() {
        for (seconds, expected) in [
            (-5, "0s"),
            (59, "59s"),
            (61, "1m1s"),
            (3_660, "1h1m"),
            (90_000, "1d1h"),
            (86_400 * 400, "400d0h"),
        ] {
            assert_eq!(age(Duration::seconds(seconds)), expected);
        }
    }
}

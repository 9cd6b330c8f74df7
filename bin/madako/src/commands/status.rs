//! `madako status`: the running system on one screen, with its faults and their remedies.

mod attention;
mod facts;
mod observed;
mod reasons;
pub(crate) mod samples;
mod screen;

use madako_domain::keys;
use madako_domain::status::ServerStatus;
use madako_protocol::ports::Clock as _;
use madako_store::EtcdStore;
use madako_supervisor::clock::SystemClock;

use self::facts::read_facts;
use crate::access::{decode, get_entry};
use crate::failure::Failure;
use crate::limits::LIST_PAUSE;
use crate::list::{Surface, watch};
use crate::output::{Format, print_text, show_value};

/// Shows the running system: its faults, the leader, the last poll and plan, nodes, repairs, placement and the store.
///
/// Each fault has its rule, its duration, its reason and a remedy. Without an option and outside of a terminal, the command
/// prints only the phase, as ckecli does. The store and the pages of the leader (madako/leader-url) give the facts.
///
/// Exit codes: 4: no instance leads, and none has stored a status; with --check, 0: calm, 5: something needs attention.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  madako status\n  madako status --watch\n  madako status --check -o json"
)]
pub(crate) struct Args {
    /// Form of the output [default: a screen on a terminal, else as ckecli prints it]
    #[arg(short, long, value_name = "FORM", value_enum)]
    output: Option<Format>,
    /// Exits with 5 if something needs attention
    #[arg(long, conflicts_with = "watch")]
    check: bool,
    /// Shows the screen again after each change; on a terminal in place
    #[arg(short, long, conflicts_with = "output")]
    watch: bool,
}

pub(crate) async fn run(args: Args, store: &EtcdStore) -> Result<(), Failure> {
    let surface = Surface::for_output();
    if args.watch {
        let first = read_facts(store, SystemClock.now()).await?;
        let reading = async || read_facts(store, SystemClock.now()).await;
        return watch(LIST_PAUSE, surface.is_terminal, first, reading, |facts| {
            Ok(screen::draw_screen(facts, SystemClock.now(), Surface::for_output()))
        })
        .await;
    }
    let format = match args.output {
        Some(format) => format,
        None if args.check || surface.is_terminal => Format::Table,
        None => {
            let entry = get_entry(store, keys::STATUS).await?.ok_or(Failure::NoStatus)?;
            let status: ServerStatus = decode(keys::STATUS, &entry)?;
            return print_text(&format!("{}\n", serde_json::to_string(&status)?));
        }
    };
    let facts = read_facts(store, SystemClock.now()).await?;
    show_value(format, &facts, |facts| screen::draw_screen(facts, SystemClock.now(), surface))?;
    if args.check {
        // A missing leader needs attention, too.
        return if facts.calm { Ok(()) } else { Err(Failure::NeedsAttention) };
    }
    // A leader without a cluster has no phase.
    match facts.phase.is_some() || facts.leader.is_some() {
        true => Ok(()),
        false => Err(Failure::NoStatus),
    }
}

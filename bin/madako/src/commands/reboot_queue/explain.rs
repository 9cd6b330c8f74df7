//! `madako reboot-queue explain`: the next action for each entry, its time, and its obstacle.

use std::collections::BTreeMap;

use madako_domain::record::Record;
use madako_domain::state::ClusterState;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_reboot_queue::explain::{ExplainContext, add_abort_reasons, apply_leader_entries, explain};
use madako_reboot_queue::next_action::Explained;
use madako_reboot_queue::page::RebootsPage;
use madako_reboot_queue::transition::DRAIN_TIMEOUT;
use madako_supervisor::config::Config;
use time::OffsetDateTime;

use crate::access::read_records;
use crate::cli::Global;
use crate::commands::machine::list::address_order;
use crate::commands::ops::running::{fetch_page, unreadable_page};
use crate::failure::Failure;
use crate::limits::LIST_PAUSE;
use crate::list::{AsList, Cell, List, ListArgs, Tone};
use crate::output::print_note;

/// Shows the next action for each entry, its time, and its obstacle, in the order of service.
///
/// The command reads the entries from the store, asks the leader (madako/leader-url) for its decision on each, and changes
/// nothing. Only the leader knows whether etcd is good, which nodes are unreachable, which operations are due, and which
/// pods a drain waits for. If the leader does not answer, a note on standard error has the reason, and the store alone
/// decides: etcd counts as good, every node as reachable, and the configuration file of this command determines the time
/// limit of a boot, and whether Kubernetes is reached. Entries with negative numbers are drains of nodes whose kubelets get
/// another minor version (`kubernetes.minor_upgrade: drain`).
///
/// The JSON is a list of entries with these fields: index, node, next (name of the next action), what (the same in words), at
/// (the time at which the obstacle ends), obstacle (its name), why (the same in words), is_held (the obstacle is not part of
/// every reboot). Without an obstacle, at, obstacle and why are absent.
///
/// Exit codes: 0: no entry waits for anything but its own drain or boot, or the update of its kubelet; 1: an entry does, or the
/// store could not be read; 2: ADDRESS has no entry, or bad input.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  madako reboot-queue explain\n  madako reboot-queue explain 10.0.1.7 -o json"
)]
pub(crate) struct Args {
    /// Address of one node, which must have an entry [default: all]
    address: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

pub(super) async fn run(
    args: &Args,
    global: &Global,
    store: &dyn Store,
    clock: &dyn Clock,
) -> Result<(), Failure> {
    let mut is_held = false;
    let mut shown_error: Option<String> = None;
    let read = async || {
        let QueueExplanation { entries, leader_error } = find(args, global, store, clock).await?;
        // A watched list has the note once.
        if let Some(why) = leader_error.as_ref().filter(|_| leader_error != shown_error) {
            print_note(format_args!(
                "the leader did not answer, so that the health of etcd, unreachable nodes, due operations and the progress \
                 of drains are not known: {why}"
            ));
        }
        shown_error = leader_error;
        is_held = entries.iter().any(|entry| entry.is_held);
        Ok(entries)
    };
    args.list.show(list_columns(), clock, LIST_PAUSE, read).await?;
    if is_held { Err(Failure::Different) } else { Ok(()) }
}

async fn find(
    args: &Args,
    global: &Global,
    store: &dyn Store,
    clock: &dyn Clock,
) -> Result<QueueExplanation, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let snapshot = store.list("").await?;
    let state = ClusterState::decode(snapshot.revision, &snapshot.entries, None);
    let records = read_records(&snapshot);
    let mut explanation = explain_queue(&state, &records, &config, store, clock.now()).await;
    if let Some(address) = &args.address {
        explanation.entries.retain(|entry| entry.node == *address);
        if explanation.entries.is_empty() {
            return Err(Failure::bad_input(format_args!(
                "the reboot queue has no entry for {address}: madako reboot-queue list shows all entries"
            )));
        }
    }
    Ok(explanation)
}

/// The explained entries of the reboot queue.
pub(crate) struct QueueExplanation {
    pub(crate) entries: Vec<Explained>,
    /// The reason for which the leader's decisions are not part of them.
    pub(crate) leader_error: Option<String>,
}

/// Explains each entry as the leader decided, or from the store alone if the leader does not answer. Does not ask the
/// leader about an empty queue.
pub(crate) async fn explain_queue(
    state: &ClusterState,
    records: &[Record],
    config: &Config,
    store: &dyn Store,
    now: OffsetDateTime,
) -> QueueExplanation {
    let context = ExplainContext { settings: config.reboots, kubernetes: config.reaches_kubernetes() };
    let entries = explain(state, &context, now);
    if entries.is_empty() {
        return QueueExplanation { entries, leader_error: None };
    }
    merge_entries(entries, fetch_leader_entries(store).await, &read_aborts(records))
}

/// The decisions of the leader, from its page `/reboots`.
async fn fetch_leader_entries(store: &dyn Store) -> Result<Vec<Explained>, Failure> {
    let (url, body) = fetch_page("reboots", store).await?;
    let page: RebootsPage = serde_json::from_slice(&body).map_err(|error| unreadable_page(&url, &error))?;
    Ok(page.entries)
}

fn merge_entries(
    mut entries: Vec<Explained>,
    leader: Result<Vec<Explained>, Failure>,
    aborts: &BTreeMap<String, String>,
) -> QueueExplanation {
    let leader_error = match leader {
        Ok(leader) => {
            apply_leader_entries(&mut entries, leader);
            None
        }
        Err(failure) => failure.message(),
    };
    add_abort_reasons(&mut entries, aborts);
    QueueExplanation { entries, leader_error }
}

/// The reason for the end of the newest aborted drain of each node.
fn read_aborts(records: &[Record]) -> BTreeMap<String, String> {
    let aborts = records.iter().filter(|record| record.operation == DRAIN_TIMEOUT);
    aborts
        .flat_map(|Record { targets, info, .. }| targets.iter().map(move |it| (it.clone(), info.clone())))
        .collect()
}

pub(crate) fn list_columns() -> List {
    List::new(&["ENTRY", "NODE", "NEXT", "IN THE WAY"], &[]).with_whole_reasons()
}

impl AsList for Vec<Explained> {
    fn list(&self, _: OffsetDateTime) -> List {
        let mut list = list_columns();
        for entry in self {
            let tone = if entry.is_held { Tone::Notice } else { Tone::Plain };
            list.add(vec![
                Cell::new(entry.index.to_string()).with_order(entry.index),
                Cell::new(&entry.node).with_order(address_order(Some(&entry.node))),
                entry.what.as_str().into(),
                Cell::new(entry.why.clone().unwrap_or_default()).with_tone(tone),
            ]);
        }
        list
    }

    fn summary(&self) -> String {
        if self.is_empty() { "The reboot queue is empty.\n".to_owned() } else { String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(node: &str, obstacle: &str, is_held: bool) -> Explained {
        Explained {
            index: 1,
            node: node.to_owned(),
            next: "drain".to_owned(),
            what: "the node is drained".to_owned(),
            at: None,
            obstacle: Some(obstacle.to_owned()),
            why: Some("it waits".to_owned()),
            is_held,
        }
    }

    #[test]
    fn the_decision_of_the_leader_counts_where_the_leader_answers() {
        let aborts = BTreeMap::from([("w".to_owned(), "a job runs".to_owned())]);
        let from_store = || vec![entry("w", "same-node", false)];
        let merged = merge_entries(from_store(), Ok(vec![entry("w", "back-off", true)]), &aborts);
        assert_eq!(merged.leader_error, None);
        let why = Some("it waits; the last drain ended: a job runs".to_owned());
        assert_eq!(merged.entries, [Explained { why, ..entry("w", "back-off", true) }]);
        let alone = merge_entries(from_store(), Err(Failure::failed("silence")), &aborts);
        assert_eq!(alone.leader_error.as_deref(), Some("silence"));
        assert_eq!(alone.entries, from_store());
    }
}

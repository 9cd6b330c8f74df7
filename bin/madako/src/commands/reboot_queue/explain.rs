//! `madako reboot-queue explain`: the next action for each entry, its time, and its obstacle.

use std::collections::BTreeMap;

use madako_domain::record::Record;
use madako_domain::state::ClusterState;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_reboot_queue::explain::{ExplainContext, explain};
use madako_reboot_queue::next_action::Explained;
use madako_reboot_queue::transition::DRAIN_TIMEOUT;
use madako_supervisor::config::Config;
use time::OffsetDateTime;

use crate::access::read_records;
use crate::cli::Global;
use crate::commands::machine::list::address_order;
use crate::failure::Failure;
use crate::limits::LIST_PAUSE;
use crate::list::{AsList, Cell, List, ListArgs, Tone};

/// Shows the next action for each entry, its time, and its obstacle, in the order of service.
///
/// The command reads the store alone, and changes nothing. Only the leader knows whether etcd is good, which nodes are
/// unreachable, and which pods a drain waits for: here etcd counts as good, and every node as reachable. The
/// configuration file of this command determines the time limit of a boot, and whether Kubernetes is reached. Entries with
/// negative numbers are drains of nodes whose kubelets get another minor version (`kubernetes.minor_upgrade: drain`).
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
    let read = async || {
        let explained = find(args, global, store, clock).await?;
        is_held = explained.iter().any(|entry| entry.is_held);
        Ok(explained)
    };
    args.list.show(list_columns(), clock, LIST_PAUSE, read).await?;
    if is_held { Err(Failure::Different) } else { Ok(()) }
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
    let context = ExplainContext {
        settings: config.reboots,
        kubernetes: config.reaches_kubernetes(),
        aborts: read_aborts(&read_records(&snapshot)),
    };
    let mut explained = explain(&state, &context, clock.now());
    if let Some(address) = &args.address {
        explained.retain(|entry| entry.node == *address);
        if explained.is_empty() {
            return Err(Failure::bad_input(format_args!(
                "the reboot queue has no entry for {address}: madako reboot-queue list shows all entries"
            )));
        }
    }
    Ok(explained)
}

/// The reason for the end of the newest aborted drain of each node.
pub(crate) fn read_aborts(records: &[Record]) -> BTreeMap<String, String> {
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

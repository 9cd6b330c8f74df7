//! Clients of the kind `etcd-watch`: they watch the store below CKE's prefix, and write to it as `ckecli` does.
//!
//! Each watches one member through the network from the beginning of the run until it has received the last revision,
//! and resumes after a break at its last revision. The writers change the number of workers, add entries to the repair
//! queue, reset the back-off of drains, and remove finished entries.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, GetOptions, WatchOptions};
use madako_domain::cluster::Cluster;
use madako_domain::constraints::Constraints;
use madako_domain::keys;
use madako_domain::repair::RepairQueueEntry;
use madako_judges::workload::{GuardedPuts, ReadKey, add_repair, reset_back_off};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::history::{AcknowledgedWrite, Event, History};
use crate::observer::PREFIX;
use crate::pace::ClientPace;
use crate::registrar;

/// Time limit of one request, with a new connection.
pub(crate) const WITHIN: Duration = Duration::from_secs(5);
/// Pause before a broken watch resumes, or a write is repeated.
pub(crate) const AGAIN: Duration = Duration::from_millis(500);
/// A silent watch is renewed after this time: a dead connection may give no notice.
const SILENCE: Duration = Duration::from_secs(5);
/// Time limit of the last watch at the end of a run, without faults.
const LAST_WITHIN: Duration = Duration::from_secs(30);
/// With more entries in the repair queue none is added, and one is removed.
const MOST_ENTRIES: usize = 12;
/// Machine type with repair procedures.
const MACHINE_TYPE: &str = "IPMI-2.0";
/// Repair operations: the first drains the node at once, the second one if a command did not help.
const OPERATIONS: [&str; 2] = ["unhealthy", "unreachable"];

/// Watches a member until it has received the last revision, whose number arrives by `announced`, or had enough time for
/// that.
pub(crate) async fn run_watches(
    member: u32,
    at: SocketAddr,
    history: History,
    until: watch::Receiver<Option<i64>>,
) {
    let (mut last, mut announced) = (0, until.clone());
    let watching = async {
        loop {
            match follow_store(member, at, &history, &mut last, until.clone()).await {
                Ok(RequestState::Whole) => return,
                Ok(RequestState::Broken) => {}
                Err(error) => tracing::debug!(member, %error, "a watch broke"),
            }
            sleep(AGAIN).await;
        }
    };
    let enough = async {
        // The sender lives as long as the run.
        let _ = announced.wait_for(Option::is_some).await;
        sleep(LAST_WITHIN).await;
    };
    tokio::select! {
        biased;
        () = watching => {}
        () = enough => {}
    }
    let until = *until.borrow();
    if let Some(until) = until {
        history.note(Event::WatchEnds { member, until });
    }
}

/// Ends of a watch without an error.
enum RequestState {
    /// The last revision arrived.
    Whole,
    /// The watch must be renewed.
    Broken,
}

/// Follows the store from the revision after `last` on until an error or the last revision.
async fn follow_store(
    member: u32,
    at: SocketAddr,
    history: &History,
    last: &mut i64,
    mut until: watch::Receiver<Option<i64>>,
) -> Result<RequestState, etcd_client::Error> {
    let mut client = connect(at).await?;
    if *last == 0 {
        // The first watch begins at the present revision.
        let present = client.get("none", None).await?;
        *last = present.header().map_or(0, etcd_client::ResponseHeader::revision);
        history.note(Event::Watch { member, from: *last });
    }
    // A watch from the next revision on could miss a deletion there: it can be compacted away without notice (etcd
    // before 3.6, its issue 18089).
    let options = WatchOptions::new().with_start_revision((*last).max(1)).with_prefix();
    let mut stream = timeout(WITHIN, client.watch(PREFIX, Some(options))).await.map_err(deadline_error)??;
    loop {
        if until.borrow_and_update().is_some_and(|until| *last >= until) {
            return Ok(RequestState::Whole);
        }
        let answer = tokio::select! {
            biased;
            Ok(()) = until.changed() => continue,
            answer = timeout(SILENCE, stream.message()) => answer.map_err(deadline_error)??,
        };
        let Some(answer) = answer else { return Ok(RequestState::Broken) };
        if answer.canceled() {
            // The watch was too far behind: the missed revisions are compacted away.
            *last = answer.compact_revision().max(*last);
            history.note(Event::Missed { member, until: *last });
            return Ok(RequestState::Broken);
        }
        let mut revisions: BTreeMap<i64, u64> = BTreeMap::new();
        for kv in answer.events().iter().filter_map(etcd_client::Event::kv) {
            *revisions.entry(kv.mod_revision()).or_default() += 1;
        }
        for (revision, keys) in revisions.split_off(&(*last + 1)) {
            history.note(Event::Heard { member, revision, keys });
            *last = revision;
        }
    }
}

fn deadline_error(_: tokio::time::error::Elapsed) -> etcd_client::Error {
    etcd_client::Error::IoError(std::io::ErrorKind::TimedOut.into())
}

pub(crate) async fn connect(at: SocketAddr) -> Result<Client, etcd_client::Error> {
    let options = ConnectOptions::new().with_connect_timeout(WITHIN).with_timeout(WITHIN);
    timeout(WITHIN, Client::connect([format!("http://{at}")], Some(options))).await.map_err(deadline_error)?
}

/// Writes about `rate` times a second until `stop`. `registry` is the control API that shows broken machines.
pub(crate) async fn write_until_stopped(
    members: Vec<SocketAddr>,
    registry: SocketAddr,
    rate: f64,
    history: History,
    mut chance: ChaCha8Rng,
    stop: watch::Receiver<bool>,
) {
    let mut pace = ClientPace::new(rate, 1.0, stop);
    while pace.wait_for_next_call(&mut chance).await {
        let at = members[chance.random_range(0..members.len())];
        let what = chance.random_range(0..6_u32);
        let drawn = chance.random_range(0..u32::MAX);
        let acted = async {
            let mut client = connect(at).await?;
            match what {
                0..2 => ask_for_workers(&mut client, drawn).await,
                2 | 3 => add_entry(&mut client, registry, drawn).await,
                4 => reset_a_back_off(&mut client).await,
                _ => remove_finished(&mut client).await,
            }
        };
        match timeout(WITHIN, acted).await {
            Ok(Ok(written)) => history.note(Event::AcknowledgedWrite(AcknowledgedWrite { written })),
            Ok(Err(error)) => history.note(Event::Unwritten { why: error.to_string() }),
            Err(_) => history.note(Event::Unwritten { why: format!("no answer within {WITHIN:?}") }),
        }
    }
}

/// Keys below the root and revision of an acknowledged write; `None`: a concurrent change came first, or there was
/// nothing to do.
pub(crate) type OperatorWrite = Option<(i64, Vec<String>)>;

pub(crate) async fn commit_puts(
    client: &mut Client,
    write: GuardedPuts,
) -> Result<OperatorWrite, etcd_client::Error> {
    let keys = write.keys();
    let done = client.txn(write.into()).await?;
    let revision = done.header().map_or(0, etcd_client::ResponseHeader::revision);
    Ok(done.succeeded().then_some((revision, keys)))
}

pub(crate) async fn read_stored(client: &mut Client, key: &str) -> Result<ReadKey, etcd_client::Error> {
    let key = format!("{PREFIX}{key}");
    let answer = client.get(key.clone(), None).await?;
    Ok(ReadKey::of_answer(&key, &answer))
}

/// Demands one worker more or less, within what the machines allow.
async fn ask_for_workers(client: &mut Client, drawn: u32) -> Result<OperatorWrite, etcd_client::Error> {
    let stored = read_stored(client, keys::CONSTRAINTS).await?;
    let Ok(mut constraints) = serde_json::from_slice::<Constraints>(&stored.value) else { return Ok(None) };
    let most = constraints.maximum_workers.saturating_sub(2).max(2);
    constraints.minimum_workers = 1 + drawn % most;
    let Ok(value) = serde_json::to_vec(&constraints) else { return Ok(None) };
    commit_puts(client, stored.replace_with(value)).await
}

async fn list_queue_entries(
    client: &mut Client,
) -> Result<Vec<(ReadKey, RepairQueueEntry)>, etcd_client::Error> {
    let prefix = format!("{PREFIX}{}", keys::REPAIRS);
    let answer = client.get(prefix, Some(GetOptions::new().with_prefix())).await?;
    let read =
        |kv: &etcd_client::KeyValue| Some((ReadKey::from(kv), serde_json::from_slice(kv.value()).ok()?));
    Ok(answer.kvs().iter().filter_map(read).collect())
}

/// Adds a repair of a machine, unless there are too many entries.
pub(crate) async fn add_entry(
    client: &mut Client,
    registry: SocketAddr,
    drawn: u32,
) -> Result<OperatorWrite, etcd_client::Error> {
    let entries = list_queue_entries(client).await?;
    if entries.len() >= MOST_ENTRIES {
        return remove_finished(client).await;
    }
    let stored = read_stored(client, keys::CLUSTER).await?;
    let Ok(cluster) = serde_json::from_slice::<Cluster>(&stored.value) else { return Ok(None) };
    let unasked = |address: &String| entries.iter().all(|(_, entry)| entry.address != *address);
    let broken: Vec<String> =
        registrar::broken_machines(registry).await.into_iter().filter(unasked).collect();
    // Mostly a broken machine, if there is one.
    let addresses = match broken.is_empty() || drawn.is_multiple_of(4) {
        true => cluster.nodes.into_iter().map(|node| node.address).collect(),
        false => broken,
    };
    if addresses.is_empty() {
        return Ok(None);
    }
    let address = &addresses[(drawn / 4) as usize % addresses.len()];
    let operation = OPERATIONS[usize::from(drawn.is_multiple_of(2))];
    let counter = read_stored(client, keys::REPAIRS_WRITE_INDEX).await?;
    let entry = RepairQueueEntry::new(operation, MACHINE_TYPE, address);
    match add_repair(PREFIX, counter, entry) {
        Some((_, writes)) => commit_puts(client, writes).await,
        None => Ok(None),
    }
}

async fn reset_a_back_off(client: &mut Client) -> Result<OperatorWrite, etcd_client::Error> {
    let entries = list_queue_entries(client).await?;
    let waits = entries.into_iter().find(|(_, entry)| entry.drain_backoff_expire.is_some());
    let Some((stored, mut entry)) = waits else { return Ok(None) };
    reset_back_off(&mut entry);
    let Ok(value) = serde_json::to_vec(&entry) else { return Ok(None) };
    commit_puts(client, stored.replace_with(value)).await
}

/// Requests the removal of a finished entry.
async fn remove_finished(client: &mut Client) -> Result<OperatorWrite, etcd_client::Error> {
    let entries = list_queue_entries(client).await?;
    let finished = entries.into_iter().find(|(_, entry)| entry.is_finished() && !entry.deleted);
    let Some((stored, mut entry)) = finished else { return Ok(None) };
    entry.deleted = true;
    let Ok(value) = serde_json::to_vec(&entry) else { return Ok(None) };
    commit_puts(client, stored.replace_with(value)).await
}

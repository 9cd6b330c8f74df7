//! `madako etcd restore --dry-run`: the steps of a restore, and what would be lost.

use std::fmt::Write as _;
use std::sync::Arc;

use madako_domain::cluster::Cluster;
use madako_domain::node_status::FleetStatus;
use madako_domain::restore::RestoreRequest;
use madako_operation_runner::{Decision, plan_restore};
use madako_protocol::node::SnapshotContent;
use madako_protocol::ports::Clock as _;
use madako_supervisor::clock::SystemClock;
use madako_supervisor::nodes::target;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Args, check, request};
use crate::access;
use crate::cli::Global;
use crate::commands::node::age;
use crate::commands::ops::collected::{Gathered, gather};
use crate::failure::Failure;
use crate::output::{print, printable};

/// The key with the last backup: its time and revision.
const BACKUP: &str = "madako/etcd/backup";

/// The newest known data: their revision, its time, and the source of both.
struct Newest {
    revision: i64,
    at: Option<OffsetDateTime>,
    source: String,
}

pub(super) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let mut gathered = gather(global).await?;
    check(args, &gathered.inputs.cluster)?;
    let request = request(args);
    gathered.inputs.restore = Some((request.clone(), false));
    let settings = gathered.inputs.settings.clone();
    let decision = plan_restore(&gathered.inputs.input(&settings));
    let snapshot = look(&gathered, &request, &settings.images.etcd).await;
    let newest = newest(&gathered, global).await?;
    let is_refused = decision.operations.is_empty() || snapshot.is_err();
    let inputs = &gathered.inputs;
    let text =
        text((&inputs.cluster, &inputs.status), &decision, snapshot, newest.as_ref(), SystemClock.now());
    print(&text)?;
    if is_refused { Err(Failure::failed("the restore would be refused")) } else { Ok(()) }
}

async fn look(gathered: &Gathered, request: &RestoreRequest, image: &str) -> Result<SnapshotContent, String> {
    let Gathered { inputs, state, ports } = gathered;
    let node = inputs.cluster.nodes.iter().find(|node| node.address == request.address);
    let node = node.ok_or_else(|| "its node is no node of the cluster".to_owned())?;
    let connected = Arc::clone(&ports.driver);
    let connected = connected.connect(&target(node, ports.host_keys, &state.host_keys)).await;
    let connection = connected.map_err(|error| error.to_string())?;
    connection.snapshot(image, &request.path).await.map_err(|error| error.to_string())
}

/// The newest revision that a member without a majority still has; else the one of the last backup.
async fn newest(gathered: &Gathered, global: &Global) -> Result<Option<Newest>, Failure> {
    let members: Vec<String> =
        gathered.inputs.cluster.control_plane().map(|node| node.address.clone()).collect();
    let own = gathered.ports.runner.etcd.revisions(&members).await;
    if let Some((address, revision)) = own.into_iter().max_by_key(|(_, revision)| *revision) {
        let source = format!("the member on {address} has it");
        return Ok(Some(Newest { revision, at: None, source }));
    }
    let store = access::open(global)?;
    let backup = access::get(&store, BACKUP).await?;
    Ok(backup.and_then(|entry| {
        let backup: Value = serde_json::from_slice(&entry.value).ok()?;
        let at = backup["at"].as_str().and_then(|at| OffsetDateTime::parse(at, &Rfc3339).ok());
        let source = "the last backup, which is older than the loss".to_owned();
        Some(Newest { revision: backup["revision"].as_i64()?, at, source })
    }))
}

fn text(
    (cluster, status): (&Cluster, &FleetStatus),
    decision: &Decision,
    snapshot: Result<SnapshotContent, String>,
    newest: Option<&Newest>,
    now: OffsetDateTime,
) -> String {
    let mut text = String::new();
    // Writing to a text does not fail.
    let _ = match &snapshot {
        Ok(it) => writeln!(
            text,
            "Snapshot  revision {}, {} keys, {} bytes, written {} ago; its checksum is right",
            it.revision,
            it.keys,
            it.bytes,
            age(now - it.modified)
        ),
        Err(why) => writeln!(text, "Snapshot  unusable: {}", printable(why)),
    };
    let lost = lost(snapshot.ok().as_ref(), newest, now);
    let _ = writeln!(text, "Lost      {lost}");
    for held in &decision.held {
        let _ = writeln!(text, "Refused   {}", printable(&held.reason.to_string()));
    }
    let Some(operation) = decision.operations.first() else { return text };
    let _ = writeln!(text, "\nSteps on {}:", operation.targets.join(", "));
    for (command, number) in operation.commands.iter().zip(1..) {
        let _ = writeln!(text, "{number:>3}. {}", printable(&command.to_string()));
    }
    let others = cluster.control_plane().filter(|node| !operation.targets.contains(&node.address));
    let mut others = others.peekable();
    if others.peek().is_some() {
        text.push_str("\nThen, one after another:\n");
    }
    for node in others {
        let is_reachable = status.nodes.get(&node.address).is_some_and(|status| status.reachable);
        let what = if is_reachable {
            "its data are removed, and it is added anew"
        } else {
            "it does not answer: make sure that etcd does not run there. When it is back, its data are removed, and it is \
             added anew"
        };
        let _ = writeln!(text, "  {}: {what}", node.address);
    }
    text
}

fn lost(snapshot: Option<&SnapshotContent>, newest: Option<&Newest>, now: OffsetDateTime) -> String {
    let Some(snapshot) = snapshot else { return "unknown".to_owned() };
    let written = age(now - snapshot.modified);
    let Some(Newest { revision, at, source }) = newest else {
        return format!(
            "all writes of the last {written}; how many is unknown: no member and no backup tells a revision"
        );
    };
    let at = at.map_or_else(String::new, |at| format!(" of {} ago", age(now - at)));
    let count = revision.saturating_sub(snapshot.revision).max(0);
    format!("all writes of the last {written}: at least {count} revisions, up to {revision}{at} ({source})")
}

#[cfg(test)]
mod tests;

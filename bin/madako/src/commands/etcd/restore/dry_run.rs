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
use madako_supervisor::nodes::node_target;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Args, check_arguments, restore_request};
use crate::access;
use crate::cli::Global;
use crate::commands::node::format_age;
use crate::commands::ops::collected::{GatheredStates, gather_states};
use crate::failure::Failure;
use crate::output::{escape_unprintable, print_text};

/// The key with the last backup: its time and revision.
const BACKUP: &str = "madako/etcd/backup";

/// The newest known data: their revision, its time, and the source of both.
struct NewestSnapshot {
    revision: i64,
    at: Option<OffsetDateTime>,
    source: String,
}

pub(super) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let mut gathered = gather_states(global).await?;
    check_arguments(args, &gathered.inputs.cluster)?;
    let request = restore_request(args);
    gathered.inputs.restore = Some((request.clone(), false));
    let settings = gathered.inputs.settings.clone();
    let decision = plan_restore(&gathered.inputs.as_input(&settings));
    let snapshot = read_snapshot(&gathered, &request, &settings.images.etcd).await;
    let newest = newest_snapshot(&gathered, global).await?;
    let is_refused = decision.operations.is_empty() || snapshot.is_err();
    let inputs = &gathered.inputs;
    let text = dry_run_text(
        (&inputs.cluster, &inputs.status),
        &decision,
        snapshot,
        newest.as_ref(),
        SystemClock.now(),
    );
    print_text(&text)?;
    if is_refused {
        Err(Failure::failed("the leader would refuse to restore etcd, for the reasons above"))
    } else {
        Ok(())
    }
}

async fn read_snapshot(
    gathered: &GatheredStates,
    request: &RestoreRequest,
    image: &str,
) -> Result<SnapshotContent, String> {
    let GatheredStates { inputs, state, ports, .. } = gathered;
    let node = inputs.cluster.nodes.iter().find(|node| node.address == request.address);
    let node = node.ok_or_else(|| "its node is not a node of the cluster".to_owned())?;
    let connected = Arc::clone(&ports.driver);
    let connected = connected.connect(&node_target(node, ports.host_keys, &state.host_keys)).await;
    let connection = connected.map_err(|error| error.to_string())?;
    connection.snapshot(image, &request.path).await.map_err(|error| error.to_string())
}

/// The newest revision that a member without a majority still has; else the one of the last backup.
async fn newest_snapshot(
    gathered: &GatheredStates,
    global: &Global,
) -> Result<Option<NewestSnapshot>, Failure> {
    let members: Vec<String> =
        gathered.inputs.cluster.control_plane().map(|node| node.address.clone()).collect();
    let own = gathered.ports.runner.etcd.revisions(&members).await;
    if let Some((address, revision)) = own.into_iter().max_by_key(|(_, revision)| *revision) {
        let source = format!("the member on {address} has it");
        return Ok(Some(NewestSnapshot { revision, at: None, source }));
    }
    let store = access::open_store(global)?;
    let backup = access::get_entry(&store, BACKUP).await?;
    Ok(backup.and_then(|entry| {
        let backup: Value = serde_json::from_slice(&entry.value).ok()?;
        let at = backup["at"].as_str().and_then(|at| OffsetDateTime::parse(at, &Rfc3339).ok());
        let source = "the last backup, which is older than the loss".to_owned();
        Some(NewestSnapshot { revision: backup["revision"].as_i64()?, at, source })
    }))
}

fn dry_run_text(
    (cluster, status): (&Cluster, &FleetStatus),
    decision: &Decision,
    snapshot: Result<SnapshotContent, String>,
    newest: Option<&NewestSnapshot>,
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
            format_age(now - it.modified)
        ),
        Err(why) => writeln!(text, "Snapshot  unusable: {}", escape_unprintable(why)),
    };
    let lost = lost_data(snapshot.ok().as_ref(), newest, now);
    let _ = writeln!(text, "Lost      {lost}");
    for held in &decision.held {
        let _ = writeln!(text, "Refused   {}", escape_unprintable(&held.reason.to_string()));
    }
    let Some(operation) = decision.operations.first() else { return text };
    let _ = writeln!(text, "\nSteps on {}:", operation.targets.join(", "));
    for (command, number) in operation.commands.iter().zip(1..) {
        let _ = writeln!(text, "{number:>3}. {}", escape_unprintable(&command.to_string()));
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

fn lost_data(
    snapshot: Option<&SnapshotContent>,
    newest: Option<&NewestSnapshot>,
    now: OffsetDateTime,
) -> String {
    let Some(snapshot) = snapshot else { return "unknown".to_owned() };
    let written = format_age(now - snapshot.modified);
    let Some(NewestSnapshot { revision, at, source }) = newest else {
        return format!(
            "all writes of the last {written}; how many is unknown: no member and no backup tells a revision"
        );
    };
    let at = at.map_or_else(String::new, |at| format!(" of {} ago", format_age(now - at)));
    let count = revision.saturating_sub(snapshot.revision).max(0);
    format!("all writes of the last {written}: at least {count} revisions, up to {revision}{at} ({source})")
}

#[cfg(test)]
mod tests;

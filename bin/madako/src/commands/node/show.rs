//! `madako node show`: shows the state, operations and failures of one node.

use madako_console::push_wrapped;
use madako_domain::keys;
use madako_domain::record::Record;
use madako_operation_runner::stories::NodeStory;
use madako_protocol::ports::Clock as _;
use madako_protocol::store::Store;
use madako_supervisor::clock::SystemClock;
use serde::Serialize;
use time::OffsetDateTime;

use super::list::etcd_label;
use super::{age_of, format_age, read_stories};
use crate::access::{decode, list_entries};
use crate::failure::Failure;
use crate::limits::NODE_RECORDS;
use crate::list::Surface;
use crate::output::{Format, Table, escape_unprintable, show_value};

/// Shows what the leader knows of a node: since when it is reachable, its host key, its containers and why each is outdated,
/// its member of etcd, its certificates, its last operations, and what is held and why.
///
/// Exit codes: 0: shown; 1: no instance leads, or the store does not answer; 2: ADDRESS is not a node of the cluster.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako node show 10.0.0.11\n  madako node show 10.0.0.11 -o json")]
pub(crate) struct Args {
    /// Address of the node
    address: String,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Serialize)]
struct ShownNode<'a> {
    address: &'a str,
    #[serde(flatten)]
    story: NodeStory,
    /// The newest first.
    operations: Vec<Record>,
}

pub(super) async fn run(args: &Args, store: &dyn Store) -> Result<(), Failure> {
    let address = &args.address;
    let mut stories = read_stories(store).await?;
    let story = stories.remove(address);
    let story = story.ok_or_else(|| {
        Failure::bad_input(format_args!(
            "{address} is not a node of the cluster: madako node list shows all nodes"
        ))
    })?;
    let records = list_entries(store, keys::RECORDS).await?;
    let mut operations = Vec::new();
    for (key, entry) in records.iter().rev() {
        let record: Record = decode(key, entry)?;
        if record.targets.iter().any(|target| target == address) {
            operations.push(record);
        }
        if operations.len() == NODE_RECORDS {
            break;
        }
    }
    let shown = ShownNode { address, story, operations };
    show_value(args.output, &shown, |shown| node_text(shown, SystemClock.now()))
}

fn node_text(shown: &ShownNode<'_>, now: OffsetDateTime) -> String {
    let story = &shown.story;
    let mut lines: Vec<(&str, String)> = vec![("Address", shown.address.to_owned())];
    if !story.hostname.is_empty() {
        lines.push(("Host name", story.hostname.clone()));
    }
    lines.push(("Role", if story.control_plane { "control plane" } else { "worker" }.to_owned()));
    let state = if story.reachable { "reachable" } else { "unreachable" };
    lines.push(("State", format!("{state} for {}", age_of(story.since, now))));
    if let Some(error) = &story.error {
        lines.push(("Error", error.clone()));
    }
    let host_key = story.host_key.as_ref().map_or_else(
        || "not pinned".to_owned(),
        |pinned| {
            let age = pinned.pinned_at.map(|at| format!(", pinned {} ago", format_age(now - at)));
            format!("{}{}", pinned.fingerprint, age.unwrap_or_default())
        },
    );
    lines.push(("Host key", host_key));
    let member = story.etcd.as_ref().map_or_else(
        || etcd_label(story).to_owned(),
        |member| {
            let version = member.version.as_ref().map(|version| format!(", version {version}"));
            format!("member {}, {}{}", member.id, etcd_label(story), version.unwrap_or_default())
        },
    );
    lines.push(("etcd", if member == "-" { "no member".to_owned() } else { member }));
    let width = Surface::for_output().width.unwrap_or(usize::MAX);
    let mut text = String::new();
    for (name, value) in lines {
        let first = format!("{name:<10} ");
        push_wrapped(&mut text, &first, &escape_unprintable(&value), first.len(), width);
    }
    for table in [
        container_section(story, now),
        certificate_section(story, now),
        format_held_section(story),
        operation_section(shown, now),
    ] {
        text.push_str(&table.map(|table| format!("\n{table}")).unwrap_or_default());
    }
    text
}

fn container_section(story: &NodeStory, now: OffsetDateTime) -> Option<String> {
    let mut table = Table::new(["CONTAINER", "STATE", "AGE", "IMAGE", "OUTDATED"]);
    for (name, container) in &story.containers {
        let state = match (container.foreign, container.running) {
            (true, _) => "foreign",
            (false, true) => "runs",
            (false, false) => "stopped",
        };
        let mut first =
            [name.clone(), state.to_owned(), age_of(container.started_at, now), container.image.clone()];
        let outdated = container.outdated.iter().map(String::as_str);
        let mut reasons: Vec<&str> = outdated.collect();
        if reasons.is_empty() {
            reasons.push("-");
        }
        for reason in reasons {
            let [name, state, age, image] = std::mem::take(&mut first);
            table.add_row([name, state, age, image, reason.to_owned()]);
        }
    }
    (!story.containers.is_empty()).then(|| table.to_text())
}

fn certificate_section(story: &NodeStory, now: OffsetDateTime) -> Option<String> {
    let mut table = Table::new(["CERTIFICATE", "ENDS IN", "NOT AFTER"]);
    for (file, certificate) in &story.certificates {
        let left = certificate.not_after - now;
        let left = if left.is_negative() { "ended".to_owned() } else { format_age(left) };
        table.add_row([file.clone(), left, certificate.not_after.to_string()]);
    }
    for file in &story.unreadable_certificates {
        table.add_row([
            file.clone(),
            "unknown".to_owned(),
            "cannot be read, and is never renewed".to_owned(),
        ]);
    }
    (!story.certificates.is_empty() || !story.unreadable_certificates.is_empty()).then(|| table.to_text())
}

fn format_held_section(story: &NodeStory) -> Option<String> {
    let mut table = Table::new(["HELD", "REASON", "WHY"]);
    for held in &story.held {
        table.add_row([held.what.clone(), held.reason.clone(), held.why.clone()]);
    }
    (!story.held.is_empty()).then(|| table.to_text())
}

fn operation_section(shown: &ShownNode<'_>, now: OffsetDateTime) -> Option<String> {
    let mut table = Table::new(["RECORD", "OPERATION", "STATUS", "AGE", "COMMAND", "ERROR"]);
    for record in &shown.operations {
        table.add_row([
            record.id.to_string(),
            record.operation.clone(),
            record.status.to_string(),
            format_age(now - record.start_at),
            record.command.name.clone(),
            record.error.clone(),
        ]);
    }
    (!shown.operations.is_empty()).then(|| table.to_text())
}

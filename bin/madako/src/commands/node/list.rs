//! `madako node list`: one line a node.

use madako_json::go::to_yaml;
use madako_operation_runner::stories::{NodeStory, Stories};
use madako_protocol::ports::Clock as _;
use madako_protocol::store::Store;
use madako_supervisor::clock::SystemClock;
use time::OffsetDateTime;

use super::{age, age_of, stories};
use crate::failure::Failure;
use crate::limits::NODE_LIST_PAUSE;
use crate::output::{Table, print};

/// Shows one line for each node: its part, since when it is reachable, its containers, its member of etcd, the end of its
/// first certificate, and what is held on it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  madako node list\n  madako node list -o wide --sort-by certificates\n  \
                        madako node list --watch"
)]
pub(crate) struct Args {
    /// Form of the output; wide has more columns, json and yaml have all that the leader knows
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Form::Table)]
    output: Form,
    /// Column whose values order the lines
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = Column::Address)]
    sort_by: Column,
    /// Shows the list again after each change
    #[arg(short, long)]
    watch: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    Table,
    Wide,
    Json,
    Yaml,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Column {
    Address,
    /// Control plane nodes first
    Role,
    /// Unreachable nodes first
    State,
    /// The last change of the state first
    Since,
    /// Nodes with outdated or stopped containers first
    Containers,
    /// Unreadable certificates, then the first end first
    Certificates,
    /// Nodes with most held operations first
    Held,
}

pub(super) async fn run(args: &Args, store: &dyn Store) -> Result<(), Failure> {
    let mut shown = None;
    loop {
        let stories = stories(store).await?;
        if shown.as_ref() != Some(&stories) {
            print(&render(args, &stories, SystemClock.now())?)?;
        }
        if !args.watch {
            return Ok(());
        }
        shown = Some(stories);
        tokio::time::sleep(NODE_LIST_PAUSE).await;
    }
}

fn render(args: &Args, stories: &Stories, now: OffsetDateTime) -> Result<String, Failure> {
    match args.output {
        Form::Json => Ok(format!("{}\n", serde_json::to_string_pretty(stories)?)),
        Form::Yaml => Ok(to_yaml(stories)?),
        Form::Table => Ok(table(stories, args.sort_by, false, now)),
        Form::Wide => Ok(table(stories, args.sort_by, true, now)),
    }
}

fn table(stories: &Stories, by: Column, wide: bool, now: OffsetDateTime) -> String {
    let mut heading = vec!["ADDRESS", "ROLE", "STATE", "SINCE", "CONTAINERS", "ETCD", "CERTIFICATES", "HELD"];
    if wide {
        heading.extend(["HOSTNAME", "HOST KEY", "WHY"]);
    }
    let mut table = Table::of(heading.into_iter().map(str::to_owned).collect());
    for (address, story) in sorted(stories, by) {
        let mut line = vec![
            address.clone(),
            if story.control_plane { "control-plane" } else { "worker" }.to_owned(),
            state(story).to_owned(),
            age_of(story.since, now),
            containers(story),
            etcd(story).to_owned(),
            certificates(story, now),
            held(story),
        ];
        if wide {
            let host_key = story.host_key.as_ref().map(|pinned| pinned.fingerprint.clone());
            let why = story.held.first().map(|held| held.why.clone());
            line.push(story.hostname.clone());
            line.push(host_key.unwrap_or_else(|| "-".to_owned()));
            line.push(story.error.clone().or(why).unwrap_or_default());
        }
        table.add(line);
    }
    table.text()
}

/// The nodes in the order of a column, and of their addresses where that is equal.
fn sorted(stories: &Stories, by: Column) -> Vec<(&String, &NodeStory)> {
    let mut nodes: Vec<(&String, &NodeStory)> = stories.iter().collect();
    match by {
        Column::Address => {}
        Column::Role => nodes.sort_by_key(|(_, story)| !story.control_plane),
        Column::State => nodes.sort_by_key(|(_, story)| story.reachable),
        Column::Since => nodes.sort_by_key(|(_, story)| std::cmp::Reverse(story.since)),
        Column::Containers => nodes.sort_by_key(|(_, story)| std::cmp::Reverse(to_change(story))),
        Column::Certificates => nodes.sort_by_key(|(_, story)| {
            let is_readable = story.unreadable_certificates.is_empty();
            first_end(story).map_or((is_readable, true, None), |end| (is_readable, false, Some(end)))
        }),
        Column::Held => nodes.sort_by_key(|(_, story)| std::cmp::Reverse(story.held.len())),
    }
    nodes
}

fn state(story: &NodeStory) -> &'static str {
    match (story.reachable, story.backing_off) {
        (false, _) => "unreachable",
        (true, true) => "backs-off",
        (true, false) => "reachable",
    }
}

/// Number of containers that do not run or are outdated.
fn to_change(story: &NodeStory) -> usize {
    story.containers.values().filter(|it| !it.running || !it.outdated.is_empty()).count()
}

fn containers(story: &NodeStory) -> String {
    if !story.reachable {
        return "-".to_owned();
    }
    let runs = story.containers.values().filter(|it| it.running).count();
    let outdated = story.containers.values().filter(|it| !it.outdated.is_empty()).count();
    let text = if outdated == 0 { String::new() } else { format!(", {outdated} outdated") };
    format!("{runs}/{}{text}", story.containers.len())
}

pub(super) fn etcd(story: &NodeStory) -> &'static str {
    match &story.etcd {
        _ if story.stale => "stale",
        None => "-",
        Some(member) if member.learner => "learner",
        Some(member) => match member.in_sync {
            Some(true) => "in-sync",
            Some(false) => "out-of-sync",
            None => "unknown",
        },
    }
}

fn first_end(story: &NodeStory) -> Option<OffsetDateTime> {
    story.certificates.values().map(|certificate| certificate.not_after).min()
}

fn certificates(story: &NodeStory, now: OffsetDateTime) -> String {
    if !story.unreadable_certificates.is_empty() {
        return "UNKNOWN".to_owned();
    }
    first_end(story).map_or_else(|| "-".to_owned(), |end| age(end - now))
}

fn held(story: &NodeStory) -> String {
    match story.held.as_slice() {
        [] => "-".to_owned(),
        [one] => format!("{} {}", one.what, one.reason),
        [one, more @ ..] => format!("{} {} and {} more", one.what, one.reason, more.len()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use madako_operation_runner::stories::{CertificateStory, ContainerStory, HeldStory, MemberStory};
    use time::macros::datetime;

    use super::*;

    fn stories_of_two() -> Stories {
        let container = |outdated: &[&str]| ContainerStory {
            running: true,
            outdated: outdated.iter().map(|why| (*why).to_owned()).collect(),
            ..ContainerStory::default()
        };
        let (not_before, not_after) = (datetime!(2026-01-01 0:00 UTC), datetime!(2027-01-01 0:00 UTC));
        let one = NodeStory {
            control_plane: true,
            reachable: true,
            since: Some(datetime!(2026-06-01 0:00 UTC)),
            containers: BTreeMap::from([
                ("etcd".to_owned(), container(&["the arguments are in another order"])),
                ("rivers".to_owned(), container(&[])),
            ]),
            etcd: Some(MemberStory { in_sync: Some(true), ..MemberStory::default() }),
            certificates: BTreeMap::from([(
                "peer.crt".to_owned(),
                CertificateStory { not_before, not_after },
            )]),
            ..NodeStory::default()
        };
        let held = HeldStory {
            what: "rivers-bootstrap".to_owned(),
            reason: "unreachable".to_owned(),
            why: "these nodes do not answer".to_owned(),
        };
        let other = NodeStory {
            error: Some("no TCP connection".to_owned()),
            held: vec![held.clone(), held],
            ..NodeStory::default()
        };
        BTreeMap::from([("10.0.0.1".to_owned(), one), ("10.0.0.2".to_owned(), other)])
    }

    #[test]
    fn a_line_tells_what_is_of_interest() {
        let text = table(&stories_of_two(), Column::Address, false, datetime!(2026-06-02 0:00 UTC));
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines[1],
            [
                "10.0.0.1",
                "control-plane",
                "reachable",
                "1d0h",
                "2/2,",
                "1",
                "outdated",
                "in-sync",
                "213d0h",
                "-"
            ]
        );
        assert_eq!(
            lines[2],
            [
                "10.0.0.2",
                "worker",
                "unreachable",
                "-",
                "-",
                "-",
                "-",
                "rivers-bootstrap",
                "unreachable",
                "and",
                "1",
                "more"
            ]
        );
        let wide = table(&stories_of_two(), Column::Address, true, datetime!(2026-06-02 0:00 UTC));
        assert!(wide.lines().nth(2).unwrap().ends_with("no TCP connection"), "{wide}");
    }

    #[test]
    fn unreadable_certificates_are_first_and_have_no_end() {
        let mut stories = stories_of_two();
        let unreadable = vec!["server.crt".to_owned()];
        stories.insert(
            "10.0.0.3".to_owned(),
            NodeStory { unreadable_certificates: unreadable, ..NodeStory::default() },
        );
        let nodes = sorted(&stories, Column::Certificates);
        assert_eq!(nodes[0].0, "10.0.0.3");
        assert_eq!(certificates(nodes[0].1, datetime!(2026-06-02 0:00 UTC)), "UNKNOWN");
    }

    #[test]
    fn each_column_orders_the_nodes_by_its_values() {
        let stories = stories_of_two();
        let first = |by| sorted(&stories, by)[0].0.as_str();
        for by in [Column::Address, Column::Role, Column::Since, Column::Containers, Column::Certificates] {
            assert_eq!(first(by), "10.0.0.1", "{by:?}");
        }
        for by in [Column::State, Column::Held] {
            assert_eq!(first(by), "10.0.0.2", "{by:?}");
        }
    }
}

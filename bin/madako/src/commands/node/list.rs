//! `madako node list`: prints one line for each node of the cluster.

use madako_operation_runner::stories::{NodeStories, NodeStory};
use madako_protocol::store::Store;
use madako_supervisor::clock::SystemClock;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{age_of, format_age, read_stories};
use crate::failure::Failure;
use crate::limits::LIST_PAUSE;
use crate::list::{AsList, Cell, List, ListArgs, Tone};

/// Shows one line for each node: its part, since when it is reachable, its containers, its member of etcd, the end of its
/// first certificate, and what is held on it.
///
/// --watch goes on when the leader ends, and shows the list of its successor.
///
/// Exit codes: 0: shown; 1: no instance leads, or the store does not answer.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  madako node list\n  madako node list -o wide --sort-by certificates\n  \
                        madako node list --watch"
)]
pub(crate) struct Args {
    #[command(flatten)]
    list: ListArgs,
}

pub(super) async fn run(args: &Args, store: &dyn Store) -> Result<(), Failure> {
    args.list.show(list_columns(), &SystemClock, LIST_PAUSE, async || read_stories(store).await).await
}

pub(crate) fn list_columns() -> List {
    let columns = ["ADDRESS", "ROLE", "STATE", "SINCE", "CONTAINERS", "ETCD", "CERTIFICATES", "HELD"];
    List::new(&columns, &["HOSTNAME", "HOST KEY", "WHY"])
}

impl AsList for NodeStories {
    fn list(&self, now: OffsetDateTime) -> List {
        let mut list = list_columns();
        // Number of the address in the order of addresses.
        for (number, (address, story)) in (0..).zip(self) {
            list.add(node_line(number, address, story, now));
        }
        list
    }
}

fn node_line(number: i64, address: &str, story: &NodeStory, now: OffsetDateTime) -> Vec<Cell> {
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let tone = if story.reachable { Tone::Good } else { Tone::Bad };
    let host_key = story.host_key.as_ref().map(|pinned| pinned.fingerprint.clone());
    let why = story.held.first().map(|held| held.why.clone());
    vec![
        Cell::new(address).with_order(number),
        // Control plane nodes first.
        Cell::new(if story.control_plane { "control-plane" } else { "worker" })
            .with_order(i64::from(!story.control_plane)),
        // Unreachable nodes first.
        Cell::new(state_label(story))
            .with_order(i64::from(story.reachable))
            .with_tone(if story.backing_off { Tone::Notice } else { tone }),
        // The last change of the state first.
        age_cell(story.since, now),
        // Nodes with outdated or stopped containers first.
        Cell::new(container_counts(story)).with_order(-count(to_change(story))),
        etcd_label(story).into(),
        // Unreadable certificates, then the first end first.
        Cell::new(certificates_label(story, now)).with_order(match earliest_certificate_end(story) {
            _ if !story.unreadable_certificates.is_empty() => i64::MIN,
            Some(end) => end.unix_timestamp(),
            None => i64::MAX,
        }),
        // Nodes with most held operations first.
        Cell::new(format_held_label(story)).with_order(-count(story.held.len())),
        story.hostname.clone().into(),
        host_key.unwrap_or_else(|| "-".to_owned()).into(),
        story.error.clone().or(why).unwrap_or_default().into(),
    ]
}

/// The age of a time; the newest time is first.
pub(crate) fn age_cell(time: Option<OffsetDateTime>, now: OffsetDateTime) -> Cell {
    let exact = time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_default();
    let order = time.map_or(i64::MAX, |time| -time.unix_timestamp());
    Cell::new(age_of(time, now)).with_order(order).with_exact_text(exact)
}

fn state_label(story: &NodeStory) -> &'static str {
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

fn container_counts(story: &NodeStory) -> String {
    if !story.reachable {
        return "-".to_owned();
    }
    let runs = story.containers.values().filter(|it| it.running).count();
    let outdated = story.containers.values().filter(|it| !it.outdated.is_empty()).count();
    let text = if outdated == 0 { String::new() } else { format!(", {outdated} outdated") };
    format!("{runs}/{}{text}", story.containers.len())
}

pub(super) fn etcd_label(story: &NodeStory) -> &'static str {
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

fn earliest_certificate_end(story: &NodeStory) -> Option<OffsetDateTime> {
    story.certificates.values().map(|certificate| certificate.not_after).min()
}

fn certificates_label(story: &NodeStory, now: OffsetDateTime) -> String {
    if !story.unreadable_certificates.is_empty() {
        return "UNKNOWN".to_owned();
    }
    earliest_certificate_end(story).map_or_else(|| "-".to_owned(), |end| format_age(end - now))
}

fn format_held_label(story: &NodeStory) -> String {
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
    use crate::list::Surface;

    const NOW: OffsetDateTime = datetime!(2026-06-02 0:00 UTC);

    /// The address of the first line in the order of a column.
    fn first(stories: &NodeStories, by: &str) -> String {
        let mut list = stories.list(NOW);
        list.sort_by(by).unwrap();
        let text = list.to_text(false, Surface::default());
        text.lines().nth(1).unwrap().split(' ').next().unwrap().to_owned()
    }

    fn stories_of_two() -> NodeStories {
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
    fn a_line_has_the_state_of_a_node() {
        let text = stories_of_two().list(NOW).to_text(false, Surface::default());
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
        let wide = stories_of_two().list(NOW).to_text(true, Surface::default());
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
        assert_eq!(first(&stories, "certificates"), "10.0.0.3");
        assert_eq!(certificates_label(&stories["10.0.0.3"], NOW), "UNKNOWN");
    }

    #[test]
    fn each_column_orders_the_nodes_by_its_values() {
        let stories = stories_of_two();
        for by in ["address", "role", "since", "containers", "certificates"] {
            assert_eq!(first(&stories, by), "10.0.0.1", "{by}");
        }
        for by in ["state", "held"] {
            assert_eq!(first(&stories, by), "10.0.0.2", "{by}");
        }
    }
}

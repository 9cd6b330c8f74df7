//! Prints `madako status` as one screen of text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use madako_console::{USUAL_WIDTH, count_with_noun, push_wrapped};
use time::OffsetDateTime;

use super::attention::{Attention, list_some};
use super::facts::StatusFacts;
use super::reasons::join_reasons;
use crate::commands::node::{age_of, format_age};
use crate::list::{Surface, Tone};
use crate::output::escape_unprintable;

/// Columns of names, with the space behind them.
const NAMES: usize = 11;

pub(super) fn draw_screen(facts: &StatusFacts, now: OffsetDateTime, surface: Surface) -> String {
    let mut text = String::new();
    let count = |informs: bool| {
        let found = facts.attention.iter().filter(|attention| attention.informs == informs);
        u64::try_from(found.count()).unwrap_or(u64::MAX)
    };
    let notes = match count(true) {
        0 => String::new(),
        notes => format!(", and {}", count_with_noun(notes, "note", "notes")),
    };
    let verdict = match count(false) {
        0 => Tone::Good.paint(&format!("Calm: nothing needs attention{notes}."), surface.has_colours),
        urgent => {
            let heading =
                format!("{} attention{notes}:", count_with_noun(urgent, "thing needs", "things need"));
            Tone::Bad.paint(&heading, surface.has_colours)
        }
    };
    text.push_str(&verdict);
    text.push('\n');
    let (notes, urgent): (Vec<_>, Vec<_>) = facts.attention.iter().partition(|attention| attention.informs);
    for attention in urgent.into_iter().chain(notes) {
        push_attention(&mut text, attention, now, surface);
    }
    text.push('\n');
    let width = surface.width.unwrap_or(USUAL_WIDTH);
    for (name, value) in status_lines(facts, now) {
        push_wrapped(&mut text, &format!("{name:<NAMES$}"), &escape_unprintable(&value), NAMES, width);
    }
    text
}

fn push_attention(text: &mut String, attention: &Attention, now: OffsetDateTime, surface: Surface) {
    let Attention { what, since, rule, informs, why, remedy } = attention;
    let since = since.map(|since| format!(" for {}", format_age(now - since))).unwrap_or_default();
    let (mark, tone) = if *informs { ("i", Tone::Plain) } else { ("!", Tone::Bad) };
    let width = surface.width.unwrap_or(USUAL_WIDTH);
    let head = format!("{mark} {}: {rule}{since}", escape_unprintable(what));
    text.push_str(&tone.paint(&head, surface.has_colours));
    text.push('\n');
    push_wrapped(text, "  ", &escape_unprintable(why), 2, width);
    push_wrapped(text, "  -> ", &escape_unprintable(remedy), 5, width);
}

fn status_lines(facts: &StatusFacts, now: OffsetDateTime) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("Leader", leader_line(facts, now)),
        (
            "Phase",
            match &facts.phase {
                Some(phase) => format!("{phase} for {}", age_of(facts.timestamp, now)),
                None => "none: no leader has stored a status".to_owned(),
            },
        ),
        ("Registry", registry_line(facts, now)),
        ("Plan", plan_line(facts, now)),
        ("Nodes", nodes_line(facts)),
        ("Repairs", repairs_line(facts)),
    ];
    for entry in &facts.repairs.under_way {
        lines.push(("", entry.clone()));
    }
    lines.push(("Reboots", reboots_line(facts)));
    lines.push(("Placement", placement_line(facts)));
    if let Some(at) = facts.etcd_backup {
        lines.push(("Backup", format!("of the cluster's etcd {} ago", format_age(now - at))));
    }
    let store = &facts.store;
    lines.push((
        "Store",
        format!(
            "{}, {}revision {}, answered in {} ms",
            store.endpoint,
            store.size_bytes.map(|size| format!("{}, ", format_size(size))).unwrap_or_default(),
            store.revision,
            store.answered_milliseconds
        ),
    ));
    lines
}

fn leader_line(facts: &StatusFacts, now: OffsetDateTime) -> String {
    let Some(leader) = &facts.leader else { return "none".to_owned() };
    let since = leader.since.map_or_else(String::new, |since| format!(" for {}", format_age(now - since)));
    let others = match leader.candidates.as_slice() {
        [] => "no other candidate".to_owned(),
        [one] => format!("next {one}"),
        [next, more @ ..] => format!("next {next} and {} more", more.len()),
    };
    format!("{}{since} (epoch {}), {others}", leader.host, leader.epoch)
}

fn registry_line(facts: &StatusFacts, now: OffsetDateTime) -> String {
    let registry = &facts.registry;
    let Some(url) = &registry.url else { return "none: madako sabakan set-url stores one".to_owned() };
    if !registry.enabled {
        return format!("{url}, disabled");
    }
    match (registry.answered, registry.machines) {
        (Some(answered), Some(_)) if registry.awaits_new_query => {
            let age = format_age(now - answered);
            format!("{url}, no answer yet; the last answer is to another query, {age} ago")
        }
        (Some(answered), Some(machines)) => {
            format!(
                "{} {} ago from {url}",
                count_with_noun(machines, "machine", "machines"),
                format_age(now - answered)
            )
        }
        _ => format!("{url}, no answer known"),
    }
}

fn plan_line(facts: &StatusFacts, now: OffsetDateTime) -> String {
    let made = facts.plan.made.map(|made| format!("made {} ago", format_age(now - made)));
    let committed = facts.plan.committed.as_ref().map(|last| {
        let action = last.action.as_deref().unwrap_or("no action");
        let changes = count_with_noun(last.changes_total, "node", "nodes");
        format!("last change: {action} of {changes} {} ago", format_age(now - last.at))
    });
    let parts: Vec<String> = [made, committed].into_iter().flatten().collect();
    if parts.is_empty() { "none known".to_owned() } else { parts.join("; ") }
}

fn nodes_line(facts: &StatusFacts) -> String {
    let nodes = &facts.nodes;
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let mut text = format!(
        "{} control plane, {}",
        nodes.control_plane,
        count_with_noun(count(nodes.workers), "worker", "workers")
    );
    for counts in [&nodes.connections, &nodes.tainted] {
        if !counts.is_empty() {
            let _ = write!(text, "; {}", join_counts(counts));
        }
    }
    if let Some(unused) = nodes.unused_machines {
        let _ = write!(text, "; {}", count_with_noun(unused, "unused machine", "unused machines"));
    }
    text
}

fn repairs_line(facts: &StatusFacts) -> String {
    let repairs = &facts.repairs;
    let mut parts = queue_parts(&repairs.entries, &repairs.waiting, repairs.enabled);
    if !repairs.held_racks.is_empty() {
        parts.push(format!("held racks: {}", list_some(&repairs.held_racks)));
    }
    if !repairs.automatic {
        parts.push("automatic ones disabled".to_owned());
    }
    parts.join("; ")
}

fn reboots_line(facts: &StatusFacts) -> String {
    let reboots = &facts.reboots;
    queue_parts(&reboots.entries, &reboots.waiting, reboots.enabled).join("; ")
}

/// Entries of a queue by status, and waiting ones by reason.
fn queue_parts(
    entries: &BTreeMap<String, u64>,
    waiting: &BTreeMap<String, u64>,
    is_enabled: bool,
) -> Vec<String> {
    let entries = if entries.is_empty() { "no entries".to_owned() } else { join_counts(entries) };
    let waiting = (!waiting.is_empty()).then(|| format!("waiting: {}", join_reasons(waiting)));
    let disabled = (!is_enabled).then(|| "disabled".to_owned());
    [Some(entries), waiting, disabled].into_iter().flatten().collect()
}

fn format_size(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mebibytes => format!("{mebibytes} MiB"),
    }
}

fn placement_line(facts: &StatusFacts) -> String {
    let Some(placement) = &facts.placement else { return "not decided by this leader".to_owned() };
    let total: u64 = placement.applications.values().sum();
    let mut parts = vec![match total {
        0 => "no applications".to_owned(),
        _ => format!(
            "{}: {}",
            count_with_noun(total, "application", "applications"),
            join_counts(&placement.applications)
        ),
    }];
    parts.push(count_with_noun(placement.moves, "move", "moves"));
    if !placement.metrics.is_empty() {
        parts.push(format!("metrics: {}", join_counts(&placement.metrics)));
    }
    parts.join("; ")
}

fn join_counts(counts: &BTreeMap<String, u64>) -> String {
    counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::commands::status::facts::{Leadership, StoreFacts};

    const NOW: OffsetDateTime = datetime!(2026-11-25 12:00 UTC);

    fn facts() -> StatusFacts {
        StatusFacts {
            phase: Some("completed".to_owned()),
            timestamp: Some(datetime!(2026-11-25 10:00 UTC)),
            calm: true,
            leader: Some(Leadership {
                host: "host-a".to_owned(),
                epoch: 590,
                since: Some(datetime!(2026-11-25 9:00 UTC)),
                url: None,
                candidates: vec!["host-b".to_owned()],
                lease_left_seconds: Some(50),
                lease_seconds: Some(60),
            }),
            store: StoreFacts {
                endpoint: "http://127.0.0.1:2379".to_owned(),
                revision: 12,
                answered_milliseconds: 3,
                size_bytes: Some(3 << 20),
                alarms: Vec::new(),
            },
            ..StatusFacts::default()
        }
    }

    #[test]
    fn a_calm_system_is_shown_in_a_few_lines() {
        let text = draw_screen(&facts(), NOW, Surface::default());
        assert!(
            text.starts_with(
                "Calm: nothing needs attention.\n\nLeader     host-a for 3h0m (epoch 590), next host-b\n"
            ),
            "{text}"
        );
        assert!(
            text.ends_with("Store      http://127.0.0.1:2379, 3 MiB, revision 12, answered in 3 ms\n"),
            "{text}"
        );
    }

    #[test]
    fn faults_come_first_and_fit_the_terminal() {
        let attention = Attention {
            what: "plans".to_owned(),
            since: Some(datetime!(2026-11-25 11:55 UTC)),
            rule: "no-plan",
            informs: false,
            why: "a long reason ".repeat(8),
            remedy: "do something".to_owned(),
        };
        let facts = StatusFacts { attention: vec![attention], ..facts() };
        let surface = Surface { width: Some(40), has_colours: true, is_terminal: true, ..Surface::default() };
        let text = draw_screen(&facts, NOW, surface);
        assert!(text.starts_with("\u{1b}[31m1 thing needs attention:\u{1b}[0m\n\u{1b}[31m! plans: no-plan for 5m0s\u{1b}[0m\n  a long reason"), "{text}");
        assert!(text.contains("\n  -> do something\n"), "{text}");
        assert!(
            text.lines().filter(|line| !line.contains('\u{1b}')).all(|line| line.chars().count() <= 40),
            "{text}"
        );
    }
}

//! The demo's list of events: events about one machine, rack or application share a line, which grows.

use std::collections::VecDeque;
use std::time::Duration;

use madako_console::cut_to_width;
use madako_protocol::event::Event;

/// Kept lines: more than an operator scrolls back.
const KEPT: usize = 1_000;
/// Lines back to which an event may belong: further up a user does not see that a line grows.
const NEAR: usize = 8;
/// Time after which an event begins a line of its own.
const RECENT: Duration = Duration::from_secs(30);

/// The kind of a line, which a terminal shows as its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum HappeningKind {
    #[default]
    Other,
    /// Plans and their commits.
    Plan,
    Repair,
    Placement,
    Leader,
    Failure,
    /// Something that the demo or its user has broken.
    Injected,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Happening {
    pub(crate) at: Duration,
    pub(crate) kind: HappeningKind,
    pub(crate) text: String,
    /// The subject of its events; `None`: no other event belongs to it.
    subject: Option<String>,
    last: String,
    times: u32,
    /// The begins of all events but the first, in bytes of the text.
    later: Vec<usize>,
}

/// Stands between the events of a line.
const BETWEEN: &str = "; ";
/// Stands for earlier events that do not fit.
const LEFT_OUT: &str = "… ";

/// The lines, the oldest first, each with its number since the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct Happenings {
    lines: VecDeque<Happening>,
    /// Number of lines that were dropped.
    dropped: usize,
}

impl Happenings {
    #[cfg(test)]
    pub(crate) fn all_lines(&self) -> impl DoubleEndedIterator<Item = &Happening> {
        self.lines.iter()
    }

    /// The lines before a number, the newest first.
    pub(crate) fn lines_before(&self, number: usize) -> impl Iterator<Item = &Happening> {
        let count = number.saturating_sub(self.dropped).min(self.lines.len());
        self.lines.iter().take(count).rev()
    }

    /// Number of lines since the start.
    pub(crate) fn count(&self) -> usize {
        self.dropped + self.lines.len()
    }

    /// Number of the first line that is kept.
    pub(crate) fn first_number(&self) -> usize {
        self.dropped
    }

    /// Adds an event: to the recent line about the same thing, or as a new line.
    pub(crate) fn add(&mut self, at: Duration, class: HappeningClass, text: String) {
        let HappeningClass { kind, subject, begins } = class;
        let open = self.lines.iter_mut().rev().take(NEAR).find(|line| {
            subject.is_some() && !begins && line.subject == subject && at.saturating_sub(line.at) < RECENT
        });
        if let Some(line) = open {
            line.extend(&text);
            return;
        }
        if let Some(line) = self.lines.back_mut().filter(|line| line.last == text && line.kind == kind) {
            line.extend(&text);
            return;
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
            self.dropped += 1;
        }
        let (last, later) = (text.clone(), Vec::new());
        self.lines.push_back(Happening { at, kind, last, text, subject, times: 1, later });
    }
}

impl Happening {
    /// The line in this many columns: its subject, and as many of its newest events as fit. A plan keeps its beginning,
    /// the changes, since its commit follows in almost all cases.
    pub(crate) fn shorten_to(&self, columns: usize) -> String {
        if self.text.chars().count() <= columns || self.kind == HappeningKind::Plan {
            return cut_to_width(&self.text, columns);
        }
        let subject = &self.text[..self.subject_length()];
        let without = |from: &usize| format!("{subject}{LEFT_OUT}{}", &self.text[*from..]);
        let fits = |from: &&usize| without(from).chars().count() <= columns;
        match self.later.iter().find(fits).or(self.later.last()) {
            Some(from) => cut_to_width(&without(from), columns),
            None => cut_to_width(&self.text, columns),
        }
    }

    /// Length of the text that all events of the line share, as `repair 3 of 10.0.0.5: `, in bytes.
    fn subject_length(&self) -> usize {
        self.text.find(": ").map_or(0, |at| at + 2)
    }

    fn extend(&mut self, text: &str) {
        if self.last == text {
            let before = if self.times == 1 { String::new() } else { format!(" ({} times)", self.times) };
            self.times += 1;
            let length = self.text.len() - before.len();
            self.text.truncate(length);
            self.text += &format!(" ({} times)", self.times);
        } else {
            let news = text.strip_prefix(&self.text[..self.subject_length()]).unwrap_or(text);
            let text_and_news = format!("{}{BETWEEN}{news}", self.text);
            self.later.push(text_and_news.len() - news.len());
            self.text = text_and_news;
            text.clone_into(&mut self.last);
            self.times = 1;
        }
    }
}

/// The place of an event in the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HappeningClass {
    pub(crate) kind: HappeningKind,
    pub(crate) subject: Option<String>,
    /// True if it begins a line, also if there is one about the same thing.
    pub(crate) begins: bool,
}

impl HappeningClass {
    /// Something that the demo or its user does to an actor, or to something else.
    pub(crate) fn for_injected_fault(actor: Option<&str>) -> Self {
        let subject = actor.map(|actor| format!("actor {actor}"));
        Self { kind: HappeningKind::Injected, subject, begins: true }
    }

    pub(crate) fn of_event(event: &Event) -> Self {
        use HappeningKind::{Failure, Leader, Other, Placement, Plan, Repair};
        let alone = |kind| Self { kind, subject: None, begins: false };
        let about = |kind, subject: String| Self { kind, subject: Some(subject), begins: false };
        match event {
            Event::Planned { .. } => Self { begins: true, ..about(Plan, "plan".to_owned()) },
            Event::Committed { what: "cluster", .. } | Event::Calm { .. } => about(Plan, "plan".to_owned()),
            Event::Decided { .. } | Event::PlacementOwned | Event::PlacementHeld { .. } => alone(Placement),
            Event::Repaired { index, .. } | Event::RepairWaits { index, .. } => {
                about(Repair, format!("repair {index}"))
            }
            Event::Reports(_) | Event::Held(_) | Event::Released { .. } => alone(Repair),
            Event::Elected { .. } | Event::Waiting { .. } | Event::Lost { .. } => {
                about(Leader, "leadership".to_owned())
            }
            Event::ActorFailed { actor, .. } => about(Failure, format!("actor {actor}")),
            Event::ActorRestarted { actor, .. } => about(Failure, format!("actor {actor}")),
            Event::StoreInterrupted { .. } | Event::StoreBack => about(Failure, "store".to_owned()),
            Event::PollFailed { .. } => about(Failure, "poll".to_owned()),
            Event::ReportsFailed { .. } => about(Failure, "reports".to_owned()),
            Event::RepairTrouble { .. } => about(Failure, "repair trouble".to_owned()),
            Event::PlanFailed(_)
            | Event::CommitFailed { .. }
            | Event::Violated(_)
            | Event::Meltdown { .. } => alone(Failure),
            _ => alone(Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(happenings: &Happenings) -> Vec<&str> {
        happenings.all_lines().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn events_about_one_thing_are_one_line() {
        let mut happenings = Happenings::default();
        let mut add = |seconds: u64, subject: Option<&str>, text: &str| {
            let subject = subject.map(str::to_owned);
            let class = HappeningClass { kind: HappeningKind::Failure, subject, begins: false };
            happenings.add(Duration::from_secs(seconds), class, text.to_owned());
        };
        add(1, Some("actor http"), "the demo kills http");
        add(1, None, "chat moves");
        add(2, Some("actor http"), "http was killed");
        add(2, Some("actor http"), "http runs again");
        add(3, None, "the same");
        add(4, None, "the same");
        add(5, None, "the same");
        add(90, Some("actor http"), "http was killed");
        assert_eq!(
            texts(&happenings),
            [
                "the demo kills http; http was killed; http runs again",
                "chat moves",
                "the same (3 times)",
                "http was killed"
            ]
        );
    }

    #[test]
    fn the_newest_event_of_a_long_line_is_shown() {
        let mut happenings = Happenings::default();
        for text in [
            "repair 3 of 10.0.0.5: next, the command is run",
            "repair 3 of 10.0.0.5: it waits",
            "repair 3 of 10.0.0.5: succeeded",
        ] {
            let class = HappeningClass { subject: Some("repair 3".to_owned()), ..HappeningClass::default() };
            happenings.add(Duration::ZERO, class, text.to_owned());
        }
        let line = happenings.all_lines().next().unwrap();
        assert_eq!(
            line.shorten_to(80),
            "repair 3 of 10.0.0.5: next, the command is run; it waits; succeeded"
        );
        assert_eq!(line.shorten_to(40), "repair 3 of 10.0.0.5: … succeeded");
        assert_eq!(line.shorten_to(50), "repair 3 of 10.0.0.5: … it waits; succeeded");
        happenings.add(
            Duration::ZERO,
            HappeningClass { subject: Some("repair 3".to_owned()), ..HappeningClass::default() },
            "repair 3 of 10.0.0.5: rack 0 is held; release it".to_owned(),
        );
        let line = happenings.all_lines().next().unwrap();
        assert_eq!(
            line.shorten_to(40),
            "repair 3 of 10.0.0.5: … rack 0 is held;…",
            "the event keeps its begin"
        );
        for columns in 0..80 {
            assert!(line.shorten_to(columns).chars().count() <= columns.max(1), "{columns}");
        }
    }

    #[test]
    fn old_lines_are_dropped_and_numbers_stay() {
        let mut happenings = Happenings::default();
        for number in 0..KEPT + 5 {
            happenings.add(Duration::ZERO, HappeningClass::default(), format!("line {number}"));
        }
        assert_eq!((happenings.count(), happenings.first_number()), (KEPT + 5, 5));
        assert_eq!(happenings.lines_before(8).map(|line| line.text.as_str()).next(), Some("line 7"));
        assert_eq!(happenings.lines_before(3).count(), 0, "they are gone");
    }
}

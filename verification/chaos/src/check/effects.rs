//! Judges the commands of repairs, as the control API of the simulated data center observed them.
//! [`drains`](super::drains) judges effects on Kubernetes.
//!
//! I1: the instance that runs a command leads when the command begins. I7: no machine has two commands at a time. I10:
//! no two commands run at a time at all, since at most one record is unfinished.
//!
//! Guarantees: an observation that the control API wrote late, because it was stopped or slow, counts for its own time. A
//! process reports its own start; the control API asks the system whether it still runs whenever another command begins. The
//! end can be noticed late, so a process counts as running only until the last moment at which it was observed. Two
//! processes observed at one moment ran concurrently, in whatever order the control API learned of them.
//!
//! Does not: know whether a process that ended before the control API accepted the next command ended before that command
//! began, unless the control API noticed the end in between.

use std::collections::BTreeMap;

use madako_domain::invariants::{Id, Violation};
use time::OffsetDateTime;

use super::Verdicts;
use crate::datacenter::{Line, LineContent};
use crate::history::Micros;

/// Maximum delay between an election and its observation.
pub(super) const HEARD_LATER: Micros = 1_000_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRun {
    /// Start of the process.
    pub began: Micros,
    /// Acceptance by the data center; `None`: the process had ended by then.
    pub taken: Option<Micros>,
    /// Last moment at which the process is known to have run.
    pub last_seen: Micros,
    pub instance: u32,
    pub address: String,
}

/// The commands in a journal in the order of their acceptance, with times relative to `unix`, the beginning of the
/// history.
#[must_use]
pub fn commands_of(lines: &[Line], unix: OffsetDateTime) -> Vec<CommandRun> {
    let at =
        |line: &Line| Micros::try_from((line.wall_clock_time() - unix).whole_microseconds()).unwrap_or(0);
    let mut acts: BTreeMap<u64, CommandRun> = BTreeMap::new();
    for line in lines {
        let now = at(line);
        let mut note_presence = |number: &u64| {
            if let Some(act) = acts.get_mut(number) {
                act.last_seen = act.last_seen.max(now);
            }
        };
        match &line.what {
            LineContent::Acts { number, instance, address, waited, gone, beside } => {
                beside.iter().for_each(&mut note_presence);
                let began = now.saturating_sub(*waited);
                let taken = (!gone).then_some(now);
                let (instance, address) = (*instance, address.clone());
                let act = CommandRun { began, taken, last_seen: taken.unwrap_or(began), instance, address };
                acts.insert(*number, act);
            }
            LineContent::Acted { number, ran: true, .. } => note_presence(number),
            _ => {}
        }
    }
    acts.into_values().collect()
}

/// Judges all commands by the leader at their times.
pub fn judge_effects(
    acts: &[CommandRun],
    leading: &[(Micros, Option<i64>)],
    epochs: &BTreeMap<i64, u32>,
    verdicts: &mut Verdicts,
) {
    for (index, act) in acts.iter().enumerate() {
        for invariant in [Id::I1, Id::I7, Id::I10] {
            verdicts.count_judged(invariant, 1);
        }
        let acted = [Some(act.began), act.taken];
        if let Some(at) =
            acted.into_iter().flatten().find(|at| !was_leading_at(act.instance, *at, leading, epochs))
        {
            let what = format!(
                "instance={} ran a command for {} at {at} us, and did not lead",
                act.instance, act.address
            );
            verdicts.count_violated(&Violation { invariant: Id::I1, what });
        }
        for before in acts[..index].iter().filter(|before| ran_concurrently(before, act)) {
            let same = before.address == act.address;
            let what = format!("commands for {} and {} ran at the same time", before.address, act.address);
            verdicts.count_violated(&Violation { invariant: if same { Id::I7 } else { Id::I10 }, what });
        }
    }
}

/// True if both commands ran at some moment.
fn ran_concurrently(one: &CommandRun, other: &CommandRun) -> bool {
    one.began.max(other.began) <= one.last_seen.min(other.last_seen)
}

fn was_leading_at(
    instance: u32,
    at: Micros,
    leading: &[(Micros, Option<i64>)],
    epochs: &BTreeMap<i64, u32>,
) -> bool {
    has_led_within(instance, [at, at], leading, epochs)
}

/// True if the instance led at some time of the span. An epoch that ended before its instance was observed may belong
/// to any instance.
pub(super) fn has_led_within(
    instance: u32,
    [first, last]: [Micros; 2],
    leading: &[(Micros, Option<i64>)],
    epochs: &BTreeMap<i64, u32>,
) -> bool {
    leading.iter().enumerate().any(|(index, (from, epoch))| {
        let until = leading.get(index + 1).map_or(Micros::MAX, |(at, _)| *at);
        let theirs = epoch.is_some_and(|epoch| epochs.get(&epoch).is_none_or(|it| *it == instance));
        theirs && last + HEARD_LATER >= *from && first <= until
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    type JournalEntry = (i64, LineContent);

    fn acts_at(at: i64, number: u64, instance: u32, address: &str) -> JournalEntry {
        late(at, (number, instance, address), 1, false, &[])
    }

    /// A command that is accepted this many milliseconds after its start.
    fn late(
        at: i64,
        (number, instance, address): (u64, u32, &str),
        waited: u64,
        gone: bool,
        beside: &[u64],
    ) -> JournalEntry {
        let beside: BTreeSet<u64> = beside.iter().copied().collect();
        let (waited, address) = (waited * 1_000, address.to_owned());
        (at, LineContent::Acts { number, instance, address, waited, gone, beside })
    }

    fn ended_by_itself(at: i64, number: u64) -> JournalEntry {
        (at, LineContent::Acted { number, whole: true, ran: true })
    }

    /// The control API finds the connection closed.
    fn found_killed(at: i64, number: u64) -> JournalEntry {
        (at, LineContent::Acted { number, whole: false, ran: false })
    }

    /// Instance 1 leads from 10 s to 20 s, instance 2 from 25 s on.
    fn judged(journal: &[JournalEntry]) -> Vec<(String, u64)> {
        let lines: Vec<Line> =
            journal.iter().map(|(at, what)| Line { at: at * 1_000, what: what.clone() }).collect();
        let acts = commands_of(&lines, OffsetDateTime::UNIX_EPOCH);
        let second = 1_000_000;
        let leading = [(10 * second, Some(5)), (20 * second, None), (25 * second, Some(9))];
        let mut verdicts = Verdicts::default();
        judge_effects(&acts, &leading, &BTreeMap::from([(5, 1), (9, 2)]), &mut verdicts);
        assert_eq!(verdicts.verdict_of("I1").judged, acts.len() as u64);
        let broken = verdicts.0.into_iter().filter(|(_, verdict)| verdict.broken > 0);
        broken.map(|(name, verdict)| (name, verdict.broken)).collect()
    }

    fn one(name: &str) -> Vec<(String, u64)> {
        vec![(name.to_owned(), 1)]
    }

    #[test]
    fn sequential_commands_of_the_leader_pass() {
        let journal = [
            acts_at(11_000, 0, 1, "a"),
            ended_by_itself(13_000, 0),
            acts_at(13_010, 1, 1, "a"),
            found_killed(14_000, 1),
            // No line for its end: its process was killed.
            acts_at(26_000, 2, 2, "b"),
            acts_at(30_000, 3, 2, "b"),
            ended_by_itself(32_000, 3),
        ];
        assert_eq!(judged(&journal), []);
    }

    #[test]
    fn each_wrong_command_is_found() {
        assert_eq!(judged(&[acts_at(22_000, 0, 1, "a")]), one("I1"), "no instance led");
        assert_eq!(judged(&[acts_at(27_000, 0, 1, "a")]), one("I1"), "another one led");
        for (address, invariant) in [("a", "I7"), ("b", "I10")] {
            let beside = [
                acts_at(11_000, 0, 1, "a"),
                late(12_000, (1, 1, address), 1, false, &[0]),
                ended_by_itself(13_000, 1),
                found_killed(14_000, 0),
            ];
            assert_eq!(judged(&beside), one(invariant));
        }
    }

    /// The control API is stopped from 12 s to 18 s. Ends and beginnings of that time are written after it, in any order.
    #[test]
    fn delayed_journal_line_of_a_command_counts_at_its_own_time() {
        let first = acts_at(11_500, 0, 1, "a");
        // The first was killed at its deadline; so was the second, which had been sent by then; the third runs.
        let second = late(18_000, (1, 1, "a"), 4_000, true, &[]);
        let third = late(18_001, (2, 1, "a"), 100, false, &[]);
        let ends = [found_killed(18_002, 0), found_killed(18_003, 1), ended_by_itself(20_000, 2)];
        for journal in [
            [&first, &second, &third, &ends[0], &ends[1], &ends[2]],
            [&first, &third, &second, &ends[0], &ends[1], &ends[2]],
            [&first, &ends[0], &second, &ends[1], &third, &ends[2]],
        ] {
            assert_eq!(judged(&journal.map(Clone::clone)), []);
        }

        // The first was not killed: it still runs when the second is accepted, though the second has ended already.
        let second = late(18_000, (1, 1, "a"), 4_000, true, &[0]);
        assert_eq!(judged(&[first.clone(), second, found_killed(18_001, 0)]), one("I7"));
        // The control API learns of it after the second, though it began before the second.
        let second = late(18_000, (1, 1, "b"), 1_000, false, &[]);
        let before = late(18_001, (2, 1, "a"), 5_000, false, &[1]);
        assert_eq!(judged(&[second, before]), one("I10"));
        // It ended by itself when the control API went on.
        let second = late(18_002, (1, 1, "b"), 1_000, false, &[]);
        assert_eq!(judged(&[first, ended_by_itself(18_001, 0), second]), one("I10"));
    }

    #[test]
    fn delayed_command_is_judged_by_the_leader_at_its_begin_too() {
        // It began while no instance led, and was accepted when its own instance led.
        assert_eq!(judged(&[late(26_500, (0, 2, "a"), 4_000, false, &[])]), one("I1"));
        // It ended in time; the control API learned of it under the next leader.
        assert_eq!(judged(&[late(26_500, (0, 1, "a"), 8_000, true, &[])]), []);
        // It still ran under the next leader.
        assert_eq!(judged(&[late(26_500, (0, 1, "a"), 8_000, false, &[])]), one("I1"));
    }
}

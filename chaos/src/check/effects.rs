//! Effects outside the store: commands of repairs, as the data center's door saw them act.
//!
//! I1: who runs a command led when it began. I7: no machine has two commands at a time. I10: no two commands run at all
//! at a time, since at most one record is unfinished.

use std::collections::BTreeMap;

use madako_messages::invariants::{Id, Violation};

use super::Verdicts;
use crate::history::Micros;

/// The observer hears of an election a little later than who was elected.
const HEARD_LATER: Micros = 1_000_000;

/// A command that acted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Act {
    /// When it began.
    pub began: Micros,
    /// When it ended; `None`: nobody knows, since the door itself was killed.
    pub ended: Option<Micros>,
    /// Who ran it.
    pub instance: u32,
    /// The machine.
    pub address: String,
}

/// Judges all commands, in the order in which they began, by who led when.
pub fn judge(
    acts: &[Act],
    leading: &[(Micros, Option<i64>)],
    epochs: &BTreeMap<i64, u32>,
    verdicts: &mut Verdicts,
) {
    for (index, act) in acts.iter().enumerate() {
        for invariant in [Id::I1, Id::I7, Id::I10] {
            verdicts.judged(invariant, 1);
        }
        if !led(act, leading, epochs) {
            let what = format!(
                "instance={} ran a command for {} at {} us, and did not lead",
                act.instance, act.address, act.began
            );
            verdicts.violated(&Violation { invariant: Id::I1, what });
        }
        for before in &acts[..index] {
            if before.ended.is_some_and(|ended| ended <= act.began) {
                continue;
            }
            // The door was killed: whoever asked it saw the connection end, and so did its command.
            let Some(_) = before.ended else { continue };
            let same = before.address == act.address;
            let what = format!("commands for {} and {} ran at the same time", before.address, act.address);
            verdicts.violated(&Violation { invariant: if same { Id::I7 } else { Id::I10 }, what });
        }
    }
}

/// Whether somebody led with an epoch of that instance when the command began. Who led too shortly to be asked for its
/// epoch may be anybody.
fn led(act: &Act, leading: &[(Micros, Option<i64>)], epochs: &BTreeMap<i64, u32>) -> bool {
    leading.iter().enumerate().any(|(index, (from, epoch))| {
        let until = leading.get(index + 1).map_or(Micros::MAX, |(at, _)| *at);
        let theirs = epoch.is_some_and(|epoch| epochs.get(&epoch).is_none_or(|it| *it == act.instance));
        theirs && act.began + HEARD_LATER >= *from && act.began <= until
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(acts: &[(u64, Option<u64>, u32, &str)]) -> Vec<(String, u64)> {
        let act = |(began, ended, instance, address): &(u64, Option<u64>, u32, &str)| Act {
            began: *began,
            ended: *ended,
            instance: *instance,
            address: (*address).to_owned(),
        };
        let acts: Vec<Act> = acts.iter().map(act).collect();
        let second = 1_000_000;
        let leading = [(10 * second, Some(5)), (20 * second, None), (25 * second, Some(9))];
        let mut verdicts = Verdicts::default();
        judge(&acts, &leading, &BTreeMap::from([(5, 1), (9, 2)]), &mut verdicts);
        assert_eq!(verdicts.of("I1").judged, acts.len() as u64);
        let broken = verdicts.0.into_iter().filter(|(_, verdict)| verdict.broken > 0);
        broken.map(|(name, verdict)| (name, verdict.broken)).collect()
    }

    fn one(name: &str) -> Vec<(String, u64)> {
        vec![(name.to_owned(), 1)]
    }

    #[test]
    fn commands_of_the_leader_one_after_the_other_are_right() {
        let acts = [
            (11_000_000, Some(13_000_000), 1, "a"),
            (13_000_000, Some(14_000_000), 1, "a"),
            (26_000_000, None, 2, "b"),
            (30_000_000, Some(31_000_000), 2, "b"),
        ];
        assert_eq!(judged(&acts), []);
    }

    #[test]
    fn each_wrong_command_is_found() {
        assert_eq!(judged(&[(22_000_000, Some(23_000_000), 1, "a")]), one("I1"), "nobody led");
        assert_eq!(judged(&[(27_000_000, Some(28_000_000), 1, "a")]), one("I1"), "another one led");
        let twice = [(11_000_000, Some(14_000_000), 1, "a"), (12_000_000, Some(13_000_000), 1, "a")];
        assert_eq!(judged(&twice), one("I7"));
        let beside = [(11_000_000, Some(14_000_000), 1, "a"), (12_000_000, Some(13_000_000), 1, "b")];
        assert_eq!(judged(&beside), one("I10"));
    }
}

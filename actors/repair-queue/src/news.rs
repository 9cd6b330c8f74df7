//! What is new about reports and racks since it was told last: once per change, and not per poll.

use std::collections::{BTreeMap, BTreeSet};

use madako_messages::repair::refusal::{Reason, ReportNews};

use crate::limiter::Decision;

/// What was told. A new leader begins with nothing, and tells everything once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// The short name of the reason for each refused machine, by serial and address.
    refused: BTreeMap<(String, String), &'static str>,
    held: BTreeSet<String>,
}

impl Told {
    /// What of a decision was not told yet. From then on it was.
    ///
    /// A reason is another one when its name is: that numbers in it changed is no news.
    pub fn news(&mut self, decision: &Decision) -> ReportNews {
        let mut news = ReportNews::default();
        let mut refused = BTreeMap::new();
        for refusal in &decision.refused {
            let key = (refusal.serial.clone(), refusal.address.clone());
            let name = refusal.reason.name();
            if self.refused.get(&key) != Some(&name) {
                news.refused.push(refusal.clone());
            }
            refused.insert(key, name);
        }
        for key in self.refused.keys().filter(|key| !refused.contains_key(*key)) {
            news.cleared.push(key.0.clone());
        }
        let held: BTreeSet<String> =
            decision.holds.iter().filter(|(_, hold)| hold.is_held()).map(|(rack, _)| rack.clone()).collect();
        for rack in held.difference(&self.held) {
            let machines = decision.holds[rack].machines().into_keys().map(str::to_owned).collect();
            news.held.insert(rack.clone(), machines);
        }
        news.let_go = self.held.difference(&held).cloned().collect();
        *self = Self { refused, held };
        news
    }
}

/// How many reports each limiter refuses, in the order of [`Reason::NAMES`], for a metric.
#[must_use]
pub fn counts(decision: &Decision) -> [(&'static str, usize); Reason::NAMES.len()] {
    Reason::NAMES.map(|name| {
        let of_name = decision.refused.iter().filter(|refusal| refusal.reason.name() == name);
        (name, of_name.count())
    })
}

#[cfg(test)]
mod tests {
    use madako_messages::repair::hold::HoldSettings;
    use madako_messages::repair::refusal::Refusal;

    use super::*;
    use crate::machines::{holds_at, machine, now};

    fn refusal(serial: &str, reason: Reason) -> Refusal {
        Refusal { address: "10.0.0.1".to_owned(), serial: serial.to_owned(), reason, beside: vec![] }
    }

    fn too_many(reports: usize) -> Reason {
        Reason::TooMany { entries: 0, reports, maximum: 0 }
    }

    #[test]
    fn a_refusal_is_told_once_and_again_when_its_reason_is_another() {
        let mut told = Told::default();
        let mut decision = Decision {
            refused: vec![refusal("a", too_many(2)), refusal("b", too_many(2))],
            ..Decision::default()
        };
        assert_eq!(told.news(&decision).refused, decision.refused);
        assert!(told.news(&decision).is_empty());
        decision.refused[0].reason = too_many(3);
        assert!(told.news(&decision).is_empty(), "other numbers are no news");
        decision.refused[0].reason = Reason::NoAddress;
        assert_eq!(told.news(&decision).refused, decision.refused[..1]);
        assert_eq!(
            counts(&decision).into_iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>(),
            [("no-address", 1), ("too-many", 1)]
        );
        decision.refused.remove(0);
        let news = told.news(&decision);
        assert_eq!((news.refused.len(), news.cleared), (0, vec!["a".to_owned()]));
        assert!(told.news(&decision).is_empty());
        assert_eq!(Told::default().news(&decision).refused.len(), 1, "a new leader tells it");
    }

    #[test]
    fn a_rack_is_told_when_it_is_held_and_when_it_is_let_go() {
        let reports: Vec<_> = (1..=3).map(|id| machine(id, 3, 0.0)).collect();
        let settings = HoldSettings::default();
        let holds = holds_at(&reports, Some(&settings), &Default::default(), now());
        let mut decision = Decision { holds, ..Decision::default() };
        let mut told = Told::default();
        assert_eq!(told.news(&decision).held["3"], ["s1", "s2", "s3"]);
        assert!(told.news(&decision).is_empty());
        decision.holds.get_mut("3").unwrap().release();
        assert_eq!(told.news(&decision).let_go, ["3"]);
        assert!(told.news(&decision).is_empty());
    }
}

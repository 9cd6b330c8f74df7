//! Finds the refusals and held racks that changed since the last event: one event per change, not per poll.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use madako_domain::machine::Machine;
use madako_domain::repair::refusal::{Reason, ReportNews};

use crate::limiter::{Decision, RefusedReport, machine};

/// State of the last events. A new leader starts empty and repeats each once.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReportedState {
    reports: Arc<Vec<Machine>>,
    /// Refused reports by position, with the name of the reason, in the order of the reports.
    refused: Vec<(usize, &'static str)>,
    held: BTreeSet<String>,
}

/// A refused report: serial, address, name of the reason.
type Line<'a> = (&'a str, &'a str, &'static str);

fn report_line<'a>(reports: &'a [Machine], report: usize, name: &'static str) -> Line<'a> {
    let (address, serial) = machine(reports, report);
    (serial, address, name)
}

impl ReportedState {
    /// Changes since the previous decision; `reports` are those that were evaluated. Remembers this decision.
    ///
    /// A reason changes when its name changes; changed numbers in it are not news.
    pub fn take_news(&mut self, decision: &Decision, reports: &Arc<Vec<Machine>>) -> ReportNews {
        let mut news = ReportNews::default();
        let refused = || decision.refused.iter().map(|refused| (refused.report, refused.reason.name()));
        // Usually nothing changed, which needs no search; for the same answer, not even a scan of its machines.
        if !Arc::ptr_eq(&self.reports, reports) || !self.refused.iter().copied().eq(refused()) {
            let reported: Vec<Line<'_>> =
                self.refused.iter().map(|(report, name)| report_line(&self.reports, *report, name)).collect();
            let now: Vec<Line<'_>> =
                refused().map(|(report, name)| report_line(reports, report, name)).collect();
            if reported != now {
                let known: BTreeMap<(&str, &str), &str> =
                    reported.iter().map(|(serial, address, name)| ((*serial, *address), *name)).collect();
                let now: BTreeSet<(&str, &str)> =
                    now.iter().map(|(serial, address, _)| (*serial, *address)).collect();
                let is_new = |refused: &&RefusedReport| {
                    let (address, serial) = refused.machine(reports);
                    known.get(&(serial, address)) != Some(&refused.reason.name())
                };
                news.refused =
                    decision.refused.iter().filter(is_new).map(|refused| refused.refusal(reports)).collect();
                let cleared = known.keys().filter(|key| !now.contains(*key));
                news.cleared = cleared.map(|(serial, _)| (*serial).to_owned()).collect();
            }
            self.reports = Arc::clone(reports);
            self.refused = refused().collect();
        }
        let held: BTreeSet<String> =
            decision.holds.iter().filter(|(_, hold)| hold.is_held()).map(|(rack, _)| rack.clone()).collect();
        for rack in held.difference(&self.held) {
            news.held.insert(rack.clone(), decision.holds[rack].serials());
        }
        news.released = self.held.difference(&held).cloned().collect();
        self.held = held;
        news
    }
}

/// Number of refused reports for each limiter, for a metric; `None`: auto-repair is off.
#[must_use]
pub fn refusals_by_reason(decision: Option<&Decision>) -> BTreeMap<&'static str, usize> {
    let mut counts: BTreeMap<_, _> = Reason::NAMES.iter().map(|name| (*name, 0)).collect();
    for refused in decision.iter().flat_map(|decision| &decision.refused) {
        *counts.entry(refused.reason.name()).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use madako_domain::repair::hold::HoldSettings;

    use super::*;
    use crate::machines::{holds_at, machine, now};

    fn refused(report: usize, reason: Reason) -> RefusedReport {
        RefusedReport { report, reason, beside: vec![] }
    }

    fn too_many(reports: usize) -> Reason {
        Reason::TooMany { entries: 0, reports, maximum: 0 }
    }

    #[test]
    fn a_refusal_is_reported_once_and_again_when_its_reason_changes() {
        let mut reported = ReportedState::default();
        let reports = Arc::new(vec![machine(1, 1, 0.0), machine(2, 2, 0.0)]);
        let mut decision = Decision {
            refused: vec![refused(0, too_many(2)), refused(1, too_many(2))],
            ..Decision::default()
        };
        let all = [0, 1].map(|at| decision.refused[at].refusal(&reports));
        assert_eq!((all[1].serial.as_str(), all[1].address.as_str()), ("s2", "10.0.0.2"));
        assert_eq!(reported.take_news(&decision, &reports).refused, all);
        assert!(reported.take_news(&decision, &reports).is_empty());
        decision.refused[0].reason = too_many(3);
        assert!(reported.take_news(&decision, &reports).is_empty(), "other numbers are not news");
        decision.refused[0].reason = Reason::JustRemoved;
        assert_eq!(reported.take_news(&decision, &reports).refused, [decision.refused[0].refusal(&reports)]);
        assert_eq!(
            refusals_by_reason(Some(&decision))
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .collect::<Vec<_>>(),
            [("just-removed", 1), ("too-many", 1)]
        );
        // The same reports in another order.
        let turned = Arc::new(vec![reports[1].clone(), reports[0].clone()]);
        decision.refused = vec![refused(0, too_many(2)), refused(1, Reason::JustRemoved)];
        assert!(reported.take_news(&decision, &turned).is_empty());
        decision.refused.remove(1);
        let news = reported.take_news(&decision, &turned);
        assert_eq!((news.refused.len(), news.cleared), (0, vec!["s1".to_owned()]));
        assert!(reported.take_news(&decision, &turned).is_empty());
        assert_eq!(
            ReportedState::default().take_news(&decision, &turned).refused.len(),
            1,
            "a new leader tells it"
        );
    }

    #[test]
    fn a_rack_is_reported_when_it_is_held_and_when_it_is_released() {
        let reports: Arc<Vec<_>> = Arc::new((1..=3).map(|id| machine(id, 3, 0.0)).collect());
        let settings = HoldSettings::default();
        let holds = holds_at(&reports, Some(&settings), &Default::default(), now());
        let mut decision = Decision { holds, ..Decision::default() };
        let mut reported = ReportedState::default();
        assert_eq!(reported.take_news(&decision, &reports).held["3"], ["s1", "s2", "s3"]);
        assert!(reported.take_news(&decision, &reports).is_empty());
        Arc::make_mut(decision.holds.get_mut("3").unwrap()).release();
        assert_eq!(reported.take_news(&decision, &reports).released, ["3"]);
        assert!(reported.take_news(&decision, &reports).is_empty());
    }
}

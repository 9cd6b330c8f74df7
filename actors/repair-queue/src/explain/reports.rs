//! Shows the prospects of each machine that the registry reports: its new entry of the repair queue, or the obstacles
//! to an entry. They come from the same decision as the leader's.

use madako_domain::machine::Machine;
use madako_domain::repair::RepairQueueEntry;
use madako_domain::repair::refusal::Reason;
use madako_domain::state::ClusterState;
use time::OffsetDateTime;

use crate::limiter::{Decision, node_address};

#[derive(Debug, Clone, PartialEq)]
pub struct Prospect<'a> {
    pub machine: &'a Machine,
    /// Address for the repair; empty if missing.
    pub address: &'a str,
    pub adds: Option<&'a RepairQueueEntry>,
    /// Every obstacle to an entry, or to its beginning if one is added: names and sentences.
    pub reasons: Vec<(&'static str, String)>,
    /// Time at which the last obstacle disappears by itself; `None`: unknown.
    pub until: Option<OffsetDateTime>,
}

#[must_use]
pub fn list_prospects<'a>(
    machines: &'a [Machine],
    decision: &'a Decision,
    state: &ClusterState,
) -> Vec<Prospect<'a>> {
    // Each report is either added or refused, in the order of the reports.
    let (mut added, mut refused) = (decision.add.iter(), decision.refused.iter().peekable());
    let stop = decision.stop.as_ref().map(|stop| (stop.name(), stop.to_string()));
    let prospects = machines.iter().enumerate().map(|(place, machine)| {
        let refusal = refused.next_if(|refused| refused.report == place);
        let entry = if refusal.is_none() { added.next() } else { None };
        let address = node_address(machine).unwrap_or_default();
        let limits: Vec<&Reason> = refusal
            .into_iter()
            .flat_map(|refusal| [&refusal.reason].into_iter().chain(&refusal.beside))
            .collect();
        let ends: Option<Vec<OffsetDateTime>> = limits.iter().map(|reason| reason.end_time()).collect();
        let mut reasons: Vec<_> = stop.clone().into_iter().collect();
        reasons.extend(limits.iter().map(|reason| (reason.name(), reason.to_string())));
        let adds = entry.filter(|_| stop.is_none());
        let missing = adds.and_then(|entry| state.repair_config.as_ref()?.operation_for(entry).err());
        reasons.extend(
            missing.map(|missing| ("missing", format!("{missing}: the entry will wait until there is one"))),
        );
        Prospect {
            machine,
            address,
            adds,
            reasons,
            until: ends.filter(|_| stop.is_none()).and_then(|ends| ends.into_iter().max()),
        }
    });
    prospects.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use madako_domain::constraints::Constraints;
    use madako_domain::keys;
    use madako_domain::repair::hold::HoldSettings;

    use super::*;
    use crate::hold::times::Times;
    use crate::limiter::RemovedEntries;
    use crate::machines::{machine, now};
    use crate::requests::{RegistryAnswer, evaluate};
    use crate::testing::{Store, queued};

    /// Serial, whether an entry is added, names of the obstacles.
    type Line = (String, bool, Vec<&'static str>);

    fn lines(change: impl FnOnce(&mut Store), maximum: i64, machines: &[Machine]) -> Vec<Line> {
        let mut store = Store::new(&["c"], &["10.0.0.1", "10.0.0.2"]);
        let constraints = Constraints {
            maximum_repair_queue_entries: maximum,
            wait_seconds_to_repair_rebooting: 600,
            ..Constraints::default()
        };
        store.put(keys::CONSTRAINTS, &constraints);
        change(&mut store);
        let (state, removed) = (store.state(), RemovedEntries::Of(BTreeSet::new()));
        let hold = HoldSettings::default();
        let times = Times::from_answer(
            machines,
            (now(), None),
            Some(&hold),
            &crate::requests::readable_holds(&state),
            &Times::default(),
        );
        let requested = RegistryAnswer { machines, at: now(), times: &times, removed: &removed };
        let decision = evaluate(&state, &requested, Some(&hold));
        list_prospects(machines, &decision, &state)
            .into_iter()
            .map(|it| {
                let names = it.reasons.iter().map(|(name, _)| *name).collect();
                (it.machine.spec.serial.clone(), it.adds.is_some(), names)
            })
            .collect()
    }

    fn line(serial: &str, adds: bool, names: &[&'static str]) -> Line {
        (serial.to_owned(), adds, names.to_vec())
    }

    #[test]
    fn refused_reports_are_not_added_and_name_every_reason() {
        let rack: Vec<Machine> = (1..=3).map(|id| machine(id, 3, 50.0)).collect();
        let lone = machine(4, 4, 9_000.0);
        let twin = Machine { spec: lone.spec.clone(), ..machine(9, 4, 9_000.0) };
        let mut none = machine(5, 5, 9_000.0);
        none.spec.ipv4.clear();
        let all = [&rack[..], &[lone.clone(), twin, none]].concat();
        let entry = |store: &mut Store| store.entry(&queued(0, "10.0.0.1", "plain"));
        assert_eq!(
            lines(entry, 10, &all),
            [
                line("s1", false, &["has-entry", "rack-held"]),
                line("s2", false, &["rack-held"]),
                line("s3", false, &["out-of-cluster", "rack-held"]),
                // The configuration has no procedure for its type: an entry is added nevertheless.
                line("s4", true, &["missing"]),
                line("s4", false, &["duplicate-address"]),
                line("s5", false, &["no-address"]),
            ]
        );
        assert_eq!(lines(|_| {}, 0, std::slice::from_ref(&lone)), [line("s4", false, &["too-many"])]);
    }

    #[test]
    fn obstacle_to_all_reports_is_named_first() {
        let reports = [machine(4, 4, 9_000.0), machine(6, 6, 50.0)];
        let disabled = |store: &mut Store| store.text(keys::AUTO_REPAIR_DISABLED, "true");
        assert_eq!(
            lines(disabled, 10, &reports),
            [
                line("s4", false, &["auto-repair-disabled"]),
                line("s6", false, &["auto-repair-disabled", "out-of-cluster"])
            ]
        );
        let unreadable = |store: &mut Store| store.text(&keys::repair(5), "[");
        assert_eq!(lines(unreadable, 10, &reports)[0], line("s4", false, &["unreadable"]));
    }
}

//! Tests of the enqueue limiters: each alone, their order, and all together.

mod properties;

use madako_domain::repair::RepairStatus;

use super::*;
use crate::machines::{machine, now};

/// Owned input of the limiters.
#[derive(Debug, Clone, Default)]
pub(super) struct Case {
    pub(super) reports: Vec<Machine>,
    pub(super) entries: Vec<RepairQueueEntry>,
    pub(super) reboots: Vec<RebootQueueEntry>,
    pub(super) nodes: Vec<String>,
    pub(super) constraints: Constraints,
    pub(super) hold: Option<HoldSettings>,
    pub(super) removed: Vec<String>,
}

impl Case {
    pub(super) fn decide(&self) -> Decision {
        limit(&LimiterInput {
            reports: &self.reports,
            at: now(),
            times: &Times::default(),
            removed: &RemovedEntries::Of(self.removed.iter().cloned().collect()),
            entries: &self.entries.iter().collect::<Vec<_>>(),
            reboots: &self.reboots.iter().collect::<Vec<_>>(),
            nodes: &self.nodes.iter().map(String::as_str).collect::<Vec<_>>(),
            constraints: &self.constraints,
            hold: self.hold.as_ref(),
            holds: &Holds::new(),
        })
    }

    /// Serials of refused machines with the reasons' names.
    fn refused(&self) -> Vec<(String, &'static str)> {
        let refused = self.decide().refused.into_iter();
        refused.map(|refused| (refused.refusal(&self.reports).serial, refused.reason.name())).collect()
    }
}

fn allowing(maximum: i64, wait: i64) -> Constraints {
    Constraints {
        maximum_repair_queue_entries: maximum,
        wait_seconds_to_repair_rebooting: wait,
        ..Constraints::default()
    }
}

fn case(reports: Vec<Machine>) -> Case {
    let nodes = reports.iter().filter_map(|machine| machine.address().map(str::to_owned)).collect();
    Case { reports, nodes, constraints: allowing(100, 600), ..Case::default() }
}

fn entry(address: &str, deleted: bool) -> RepairQueueEntry {
    let status = RepairStatus::Succeeded;
    RepairQueueEntry { index: 7, status, deleted, ..RepairQueueEntry::new("unreachable", "iDRAC", address) }
}

fn reboot(address: &str, status: RebootStatus) -> RebootQueueEntry {
    RebootQueueEntry { index: 4, status, ..RebootQueueEntry::new(address) }
}

fn one(serial: &str, reason: &'static str) -> Vec<(String, &'static str)> {
    vec![(serial.to_owned(), reason)]
}

#[test]
fn an_entry_has_the_first_address_the_controllers_type_and_the_state_in_lower_case() {
    let mut given = case(vec![machine(1, 0, 5000.0), machine(2, 1, 5000.0)]);
    given.reports[0].spec.ipv4.push("10.9.9.9".to_owned());
    given.reports[1].status.state = MachineState::Unhealthy;
    given.reports[1].spec.bmc.bmc_type = "IPMI-2.0".to_owned();
    let decision = given.decide();
    assert_eq!(
        decision.add,
        [
            RepairQueueEntry::new("unreachable", "iDRAC", "10.0.0.1"),
            RepairQueueEntry::new("unhealthy", "IPMI-2.0", "10.0.0.2"),
        ]
    );
    assert_eq!(decision.refused, []);
}

#[test]
fn by_default_nothing_is_repaired() {
    let mut given = case(vec![machine(1, 0, 5000.0)]);
    given.constraints = Constraints::default();
    assert_eq!(given.refused(), one("s1", "too-many"));
}

#[test]
fn a_machine_without_a_valid_address_is_refused() {
    let mut given = case(vec![machine(1, 0, 5000.0), machine(2, 0, 5000.0), machine(3, 0, 5000.0)]);
    given.reports[0].spec.ipv4.clear();
    given.reports[1].spec.ipv4[0] = "<nil>".to_owned();
    let decision = given.decide();
    assert_eq!(decision.add.len(), 1);
    for refused in &decision.refused {
        let refusal = refused.refusal(&given.reports);
        assert_eq!((refusal.address.as_str(), &refusal.reason), ("", &Reason::NoAddress));
    }
    assert_eq!(decision.refused.len(), 2);
}

#[test]
fn first_of_two_reports_with_one_address_counts_even_if_refused() {
    let mut given = case(vec![machine(1, 0, 5000.0), machine(2, 0, 5000.0)]);
    given.reports[1].spec.ipv4[0] = "10.0.0.1".to_owned();
    assert_eq!(given.decide().add.len(), 1);
    assert_eq!(given.refused(), one("s2", "duplicate-address"));
    given.entries.push(entry("10.0.0.1", false));
    assert_eq!(given.refused(), [one("s1", "has-entry"), one("s2", "duplicate-address")].concat());
}

#[test]
fn a_machine_with_any_entry_gets_no_other() {
    for deleted in [false, true] {
        let mut given = case(vec![machine(1, 0, 5000.0)]);
        given.entries = vec![entry("10.0.0.1", deleted)];
        let decision = given.decide();
        let status = RepairStatus::Succeeded;
        assert_eq!(decision.refused[0].reason, Reason::HasEntry { index: 7, status, deleted });
    }
}

#[test]
fn an_unreachable_machine_waits_while_it_is_rebooted_or_not_in_the_cluster() {
    let mut given = case(vec![machine(1, 0, 599.9)]);
    assert_eq!(given.refused(), [], "a node of the cluster that is not rebooted");
    given.reboots = vec![reboot("10.0.0.1", RebootStatus::Rebooting)];
    assert_eq!(given.refused(), one("s1", "rebooting"));
    let until = now() + time::Duration::seconds_f64(0.1);
    assert_eq!(given.decide().refused[0].reason.end_time(), Some(until));
    for status in [RebootStatus::Queued, RebootStatus::Draining, RebootStatus::Cancelled] {
        given.reboots = vec![reboot("10.0.0.1", status)];
        assert_eq!(given.refused(), []);
    }
    given.nodes.clear();
    assert_eq!(given.refused(), one("s1", "out-of-cluster"));
    given.reboots = vec![reboot("10.0.0.1", RebootStatus::Rebooting)];
    assert_eq!(given.refused(), one("s1", "rebooting"), "both apply");
    // The wait is over, or the machine is not unreachable.
    given.reports[0].status.duration = 600.0;
    assert_eq!(given.refused(), []);
    given.reports[0].status.duration = 1.0;
    given.reports[0].status.state = MachineState::Unhealthy;
    assert_eq!(given.refused(), []);
    given.reports[0].status.state = MachineState::Unreachable;
    given.constraints = allowing(100, 0);
    assert_eq!(given.refused(), []);
    // Values that ckecli stores without a check, and a wait beyond the calendar.
    given.constraints = allowing(100, -5);
    assert_eq!(given.refused(), []);
    given.constraints = allowing(100, i64::MAX);
    let text = given.decide().refused[0].reason.to_string();
    assert!(text.ends_with("until 9999-12-31T23:59:59Z"), "{text}");
}

#[test]
fn entries_and_accepted_reports_together_must_not_exceed_the_maximum() {
    let reports: Vec<Machine> = (1..=4).map(|id| machine(id, i64::from(id), 5000.0)).collect();
    let mut given = case(reports);
    given.constraints = allowing(4, 600);
    assert_eq!(given.decide().add.len(), 4);
    given.entries = vec![entry("10.1.1.1", true)];
    let decision = given.decide();
    assert_eq!(decision.add, [], "none or all; an entry that is about to be removed counts");
    assert_eq!(decision.refused[3].reason, Reason::TooMany { entries: 1, reports: 4, maximum: 4 });
    // A report that another limiter refuses does not count.
    given.entries = vec![entry("10.0.0.2", true)];
    assert_eq!(given.refused(), one("s2", "has-entry"));
    given.entries.clear();
    given.constraints = allowing(3, 600);
    given.reports[3].status.duration = 5.0;
    given.nodes.clear();
    assert_eq!(given.refused(), one("s4", "out-of-cluster"));
    assert_eq!(given.decide().add.len(), 3);
}

#[test]
fn held_rack_waits_and_repairs_in_other_racks_continue() {
    let mut given = case((1..=5).map(|id| machine(id, i64::from(id / 4), 5000.0)).collect());
    given.constraints = allowing(2, 600);
    given.hold = Some(HoldSettings::default());
    let decision = given.decide();
    assert_eq!(
        decision.add.iter().map(|entry| entry.address.as_str()).collect::<Vec<_>>(),
        ["10.0.0.4", "10.0.0.5"]
    );
    assert_eq!(given.refused().iter().map(|(_, reason)| *reason).collect::<Vec<_>>(), ["rack-held"; 3]);
    // Other limiters do not matter: the machines have entries, no address, one address, or wait.
    given.entries = vec![entry("10.0.0.1", false)];
    given.reports[1].spec.ipv4.clear();
    given.constraints = allowing(3, 600);
    assert_eq!(
        given.refused(),
        [one("s1", "has-entry"), one("s2", "no-address"), one("s3", "rack-held")].concat()
    );
    given.hold = None;
    given.constraints = allowing(100, 600);
    assert_eq!(given.refused(), [one("s1", "has-entry"), one("s2", "no-address")].concat());
}

#[test]
fn only_differing_holds_are_written() {
    let mut given = case((1..=3).map(|id| machine(id, 3, 5000.0)).collect());
    given.hold = Some(HoldSettings::default());
    let decision = given.decide();
    let nothing = Holds::new();
    let changed = decision.changed_holds(&nothing);
    assert_eq!(changed.into_iter().collect::<Vec<_>>(), [("3", decision.holds.get("3"))]);
    assert!(decision.changed_holds(&decision.holds).is_empty());
    let kept = Holds::from([("9".to_owned(), Arc::new(Hold::default()))]);
    assert_eq!(Decision::default().changed_holds(&kept).into_iter().collect::<Vec<_>>(), [("9", None)]);
}

#[test]
fn every_applicable_limiter_is_named_and_reports_that_wait_for_an_answer_count() {
    let mut given = case((1..=3).map(|id| machine(id, 3, 5.0)).collect());
    given.reports.push(machine(4, 4, 9_000.0));
    given.reports.push(machine(5, 5, 9_000.0));
    given.hold = Some(HoldSettings::default());
    given.nodes.clear();
    given.entries = vec![entry("10.0.0.1", false)];
    given.removed = vec!["10.0.0.1".to_owned(), "10.0.0.4".to_owned()];
    given.constraints = allowing(2, 600);
    // One entry, one report without an obstacle, and one that waits for the next answer.
    let decision = given.decide();
    assert_eq!(decision.add, []);
    assert_eq!(decision.refused[4].reason, Reason::TooMany { entries: 1, reports: 2, maximum: 2 });
    given.constraints = allowing(3, 600);
    let decision = given.decide();
    let all: Vec<Vec<&str>> = decision
        .refused
        .iter()
        .map(|refusal| {
            [&refusal.reason].into_iter().chain(&refusal.beside).map(Reason::name).collect::<Vec<_>>()
        })
        .collect();
    let waits = vec!["out-of-cluster", "rack-held"];
    let first = [&["has-entry", "just-removed"][..], &waits[..]].concat();
    assert_eq!(all, [first, waits.clone(), waits, vec!["just-removed"]]);
    assert_eq!(decision.add.iter().map(|entry| entry.address.as_str()).collect::<Vec<_>>(), ["10.0.0.5"]);
}

#[test]
fn every_reason_has_its_name_and_its_sentence() {
    let reasons = [
        Reason::NoAddress,
        Reason::DuplicateAddress { first: "s1".to_owned() },
        Reason::HasEntry { index: 5, status: RepairStatus::Queued, deleted: true },
        Reason::JustRemoved,
        Reason::Rebooting { index: 5, until: now() },
        Reason::OutOfCluster { until: now() },
        Reason::RackHeld { label: Default::default(), rack: "3".into(), machines: 4, since: now() },
        Reason::TooMany { entries: 1, reports: 2, maximum: 0 },
    ];
    assert_eq!(reasons.each_ref().map(Reason::name), Reason::NAMES);
    assert_eq!(
        reasons.map(|reason| reason.to_string()),
        [
            "no-address: the machine has no IPv4 address",
            "duplicate-address: machine s1 has the same address and precedes this machine",
            "has-entry: entry 5 of the queue repairs the machine (queued, and is about to be removed)",
            "just-removed: the report is older than the removal of the machine's entry; sabakan's next \
             answer decides",
            "rebooting: reboot 5 is under way; no repair is added until 2026-11-21T12:00:00Z",
            "out-of-cluster: the machine is not part of the cluster; no repair is added until \
             2026-11-21T12:00:00Z",
            "rack-held: 4 machines with rack 3 failed at about the same time, noticed at 2026-11-21T12:00:00Z; \
             their recovery or madako repair-queue release 3 ends the hold",
            "too-many: maximum-repair-queue-entries is 0, less than the sum of the entries (1) and the \
             otherwise accepted reports (2)",
        ]
    );
}

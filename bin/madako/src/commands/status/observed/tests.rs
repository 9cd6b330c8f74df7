//! Tests of the table: it covers each alert, names what exists, and finds faults with their start.

use std::collections::BTreeSet;

use clap::CommandFactory as _;
use madako_domain::obstacle::UNUSABLE_VALUE;
use madako_domain::state::{self, ClusterState};
use madako_http::{FAULT_GAUGES, Fault};

use super::*;
use crate::cli::Cli;
use crate::commands::status::attention::{self, find_attention};
use crate::commands::status::facts::StatusFacts;

const NOW: i64 = 1_800_000_000;

/// Alerts whose fault another rule of the status reports.
const ELSEWHERE: [(&str, &str); 14] = [
    ("MadakoGone", attention::NO_LEADER),
    ("MadakoNoLeader", attention::NO_LEADER),
    ("MadakoStoreUnreachable", attention::LEASE_NOT_RENEWED),
    ("MadakoStoreRefuses", attention::STORE_ALARM),
    ("MadakoMeltdown", "actor-down"),
    ("MadakoPlanningDisabled", "integration-disabled"),
    ("MadakoRemovalGuardHolds", "removal-guard"),
    ("MadakoPlanFails", "no-plan"),
    ("MadakoReportsUnanswered", "registry-silent"),
    ("MadakoRackHeld", "rack-held"),
    ("MadakoRepairFailed", attention::REPAIRS_FAILED),
    ("MadakoKubernetesUnreachable", "kubernetes-unreachable"),
    ("MadakoManyNodesUnreachable", "nodes-unreachable"),
    ("MadakoNodeRefused", "nodes-unreachable"),
];

/// Alerts without an item of the status, by the reason.
const EXCEPTIONS: [(&str, &[&str]); 4] = [
    (
        "the alert counts over minutes or hours; a page has only the present values",
        &[
            "MadakoLeaderChanges",
            "MadakoStoreErrors",
            "MadakoStoreSlow",
            "MadakoCommitConflicts",
            "MadakoHttpErrors",
            "MadakoActorRestarts",
            "MadakoMailboxGrows",
            "MadakoHealthChecksFail",
            "MadakoCommandLost",
            "MadakoCommandsFail",
            "MadakoCollectionsSlow",
            "MadakoMovesFlap",
            "MadakoPlacementWritesFail",
            "MadakoPlacementSlow",
            "MadakoReadsSlow",
            "MadakoWatchGaps",
        ],
    ),
    ("placement may use values that are kept until they end as metrics-failed", &["MadakoMetricsOld"]),
    ("the store does not know how many instances there should be", &["MadakoInstanceDown"]),
    ("the status asks one store, and a store has one leader", &["MadakoTwoLeaders"]),
];

fn find(page: &str) -> Vec<Attention> {
    find_observed(&Samples::parse(page), OffsetDateTime::from_unix_timestamp(NOW).unwrap())
}

/// The only item of a page, with the seconds since its start.
fn find_one(page: &str) -> (Attention, Option<i64>) {
    let found = find(page);
    let [one] = found.as_slice() else { panic!("{page}: {found:?}") };
    (one.clone(), one.since.map(|since| NOW - since.unix_timestamp()))
}

/// Names of all alerts with a severity.
fn alerts() -> BTreeSet<&'static str> {
    let rules = ALERTS.iter().flat_map(|rules| rules.split("- alert: ").skip(1));
    let severe = rules.filter(|rule| {
        ["critical", "warning"].iter().any(|severity| rule.contains(&format!("severity: {severity}\n")))
    });
    severe.filter_map(|rule| rule.lines().next()).collect()
}

#[test]
fn each_alert_has_an_item_or_a_reason_for_none() {
    let of_rules = || RULES.iter().filter_map(|rule| rule.alert);
    let elsewhere = ELSEWHERE.iter().map(|(alert, _)| *alert);
    let excepted = EXCEPTIONS.iter().flat_map(|(_, alerts)| alerts.iter().copied());
    let named: Vec<&str> =
        of_rules().collect::<BTreeSet<_>>().into_iter().chain(elsewhere).chain(excepted).collect();
    let known: BTreeSet<&str> = named.iter().copied().collect();
    assert_eq!(known.len(), named.len(), "an alert is in two of the lists: {named:?}");
    assert!(alerts().len() > 50, "{:?}", alerts());
    assert_eq!(known, alerts());
    for (reason, _) in EXCEPTIONS {
        assert!(reason.split(' ').count() > 3, "{reason}");
    }
}

#[test]
fn each_rule_has_a_declared_metric_a_reason_and_a_place_in_the_guide() {
    let guide = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/GUIDE.md"));
    let declared: BTreeMap<&str, &[&str]> =
        madako_supervisor::all_metrics().map(|metric| (metric.name, metric.labels)).collect();
    for rule in RULES {
        let has_label = |metric: &str| {
            let labels = declared.get(metric).unwrap_or_else(|| panic!("{}: {metric}", rule.rule));
            rule.label.is_none_or(|label| labels.contains(&label))
        };
        assert!(has_label(rule.metric), "{}", rule.rule);
        match (&rule.since, &rule.when) {
            (Since::Gauge(metric), _) => {
                assert!(declared[metric].is_empty() || has_label(metric), "{}", rule.rule);
            }
            (_, When::Exceeds(metric, _)) => assert!(declared.contains_key(metric), "{}", rule.rule),
            (Since::Unknown, _) => assert!(rule.lasting_seconds <= 0.0, "{}: it never lasts", rule.rule),
            (Since::Recorded, when) => {
                let gauge = FAULT_GAUGES.iter().find(|gauge| gauge.metric == rule.metric);
                let gauge = gauge.unwrap_or_else(|| panic!("{}: nothing keeps its start", rule.rule));
                assert_eq!(gauge.label, rule.label, "{}", rule.rule);
                let is_zero = matches!(when, When::Zero);
                assert_eq!(gauge.fault == Fault::Zero, is_zero, "{}", rule.rule);
                assert!(is_zero || matches!(when, When::Positive), "{}", rule.rule);
            }
            (Since::Age | Since::Before(_), _) => assert!(rule.metric.ends_with("seconds"), "{}", rule.rule),
            (Since::Value, _) => assert!(rule.metric.ends_with("timestamp_seconds"), "{}", rule.rule),
        }
        let text = rule.why.or_else(|| summary_of(rule.alert?));
        let text = text.unwrap_or_else(|| panic!("{}: no reason", rule.rule));
        let shown = render_summary(text, &["label".to_owned()], "7");
        assert!(!shown.contains("{{") && !text.contains(['|', '\\']), "{}: {text}", rule.rule);
        let is_time = rule.metric.ends_with("timestamp_seconds") && !matches!(rule.when, When::EndsWithin(_));
        assert!(!(is_time && text.contains("$value")), "{}: it would show a Unix time: {text}", rule.rule);
        assert!(!rule.what.is_empty() && !rule.remedy.is_empty(), "{}", rule.rule);
        assert!(guide.contains(&format!("`{}`", rule.rule)), "the guide lacks {}", rule.rule);
    }
}

#[test]
fn remedies_name_commands_that_exist() {
    let program = Cli::command();
    let mut named = 0;
    for rule in RULES {
        for after in rule.remedy.split("madako ").skip(1) {
            let mut command = &program;
            for word in after.split([' ', ';', ',']) {
                let Some(found) = command.find_subcommand(word) else { break };
                command = found;
            }
            assert!(!command.is_subcommand_required_set(), "{}: madako {after}", rule.rule);
            named += 1;
        }
    }
    assert!(named > 20, "{named}");
}

#[test]
fn item_of_the_store_replaces_that_of_the_metrics() {
    let fault = state::Fault { key: "constraints".to_owned(), why: "no JSON".to_owned() };
    let state = ClusterState { faults: vec![fault], ..ClusterState::default() };
    let page = format!(
        "madako_leader 1\nmadako_state_faults 3\n\
         madako_planner_blocked_since_timestamp_seconds{{reason=\"no-template\"}} {}\n",
        NOW - 60
    );
    let now = OffsetDateTime::from_unix_timestamp(NOW).unwrap();
    let found = find_attention(&state, &StatusFacts::default(), &Samples::parse(&page), now);
    let of_rule = |rule: &str| found.iter().filter(|item| item.rule == rule).collect::<Vec<_>>();
    let unusable = of_rule(UNUSABLE_VALUE);
    assert_eq!((unusable.len(), unusable[0].what.as_str()), (1, "constraints"), "{found:?}");
    assert_eq!(of_rule(attention::NO_TEMPLATE)[0].since, Some(now - Duration::MINUTE));
    assert_eq!(of_rule(attention::NO_REGISTRY)[0].since, None, "the template comes first");
}

#[test]
fn values_of_labels_in_rules_exist() {
    use madako_operation_runner::held::BlockedBy;
    use madako_protocol::event::PlanBlockedBy;

    let names: BTreeMap<&str, Vec<&str>> = BTreeMap::from([
        (
            "madako_repair_waiting_since_timestamp_seconds",
            madako_repair_queue::next_action::BlockedBy::NAMES.to_vec(),
        ),
        (
            "madako_reboot_waiting_since_timestamp_seconds",
            madako_reboot_queue::next_action::BlockedBy::NAMES.to_vec(),
        ),
        ("madako_operations_held_since_timestamp_seconds", BlockedBy::names().collect()),
        ("madako_planner_blocked_since_timestamp_seconds", PlanBlockedBy::NAMES.to_vec()),
        ("madako_placement_applications", madako_domain::placement::decision::Outcome::NAMES.to_vec()),
    ]);
    let mut checked = 0;
    for rule in RULES {
        let Some(known) = names.get(rule.metric) else { continue };
        let listed: Vec<&str> = match &rule.values {
            Values::All => Vec::new(),
            Values::Only(listed) => listed.to_vec(),
            Values::Except(lists) => lists.concat(),
        };
        for value in listed {
            assert!(known.contains(&value), "{}: {value} is none of {known:?}", rule.rule);
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked}");
}

#[test]
fn degraded_applications_and_old_waits_are_shown_with_their_start() {
    let page = |outcome: &str, seconds: i64| {
        format!(
            "madako_placement_applications{{outcome=\"{outcome}\"}} 10000\n\
             madako_placement_applications_since_timestamp_seconds{{outcome=\"{outcome}\"}} {}\n",
            NOW - seconds
        )
    };
    for (outcome, seconds, rule) in [
        ("failed", 5, "applications-failed"),
        ("degraded", 5, "applications-degraded"),
        ("waits-for-metric", 1_800, "applications-wait"),
        ("waits-for-cluster", 1_800, "applications-wait"),
        ("held", 3_600, "moves-held"),
    ] {
        let (found, since) = find_one(&page(outcome, seconds));
        assert_eq!((found.rule, since), (rule, Some(seconds)));
        assert!(found.why.contains("10000"), "{found:?}");
        assert!(found.remedy.starts_with("madako kube app "), "{found:?}");
    }
    for (outcome, seconds) in [("waits-for-metric", 1_799), ("held", 3_599), ("stays", 9_999)] {
        assert_eq!(find(&page(outcome, seconds)), [], "{outcome} for {seconds} s");
    }
    let former = format!("madako_placement_owner 0\n{}", page("degraded", 5));
    assert_eq!(find_one(&former).0.rule, "placement-unowned", "its applications are old values");
}

#[test]
fn reasons_of_one_rule_are_one_item_with_the_earliest_start() {
    let waits = |reason: &str, seconds: i64| {
        format!(
            "madako_reboot_waiting_since_timestamp_seconds{{reason=\"{reason}\"}} {}\n",
            if seconds == 0 { 0 } else { NOW - seconds }
        )
    };
    let page = waits("no-command", 50) + &waits("no-host", 90) + &waits("slots", 60) + &waits("stuck", 0);
    let (found, since) = find_one(&page);
    assert_eq!((found.rule, since), ("reboots-blocked", Some(90)));
    assert_eq!(
        found.why,
        "Reboots wait for an operator: without a reboot command or boot check (no-command), without an instance that runs commands (no-host)"
    );
    let (found, since) = find_one(&waits("stuck", 5));
    assert_eq!((found.rule, since), ("reboots-stuck", Some(5)));
    assert!(found.remedy.contains("madako reboot-queue explain"), "{found:?}");
    assert_eq!(find_one(&waits("slots", 6 * 3_600)).0.rule, "reboots-wait");
}

#[test]
fn an_unanswered_new_query_is_shown_after_half_a_minute() {
    let blocked = |seconds: i64| {
        let series = "madako_planner_blocked_since_timestamp_seconds{reason=\"other-query\"}";
        format!("{series} {}\n", NOW - seconds)
    };
    assert_eq!(find(&blocked(29)), []);
    let (found, since) = find_one(&blocked(30));
    assert_eq!((found.rule, since), ("registry-silent", Some(30)));
    assert!(found.why.contains("since its URL"), "{found:?}");
}

#[test]
fn start_without_a_label_counts_for_the_values_of_the_label() {
    let page = format!(
        "madako_nodes{{state=\"reachable\"}} 5\nmadako_nodes{{state=\"unreachable\"}} 2\n\
         madako_nodes_unreachable_since_timestamp_seconds {}\n",
        NOW - 30
    );
    let (found, since) = find_one(&page);
    assert_eq!((found.rule, since), ("nodes-unreachable", Some(30)));
    assert_eq!(found.why, "nodes that do not answer over SSH: 2");
}

#[test]
fn summary_of_the_alert_is_the_reason() {
    let start = |metric: &str, value: &str, seconds: i64| {
        let labels = format!("metric=\"{metric}\",value=\"{value}\"");
        format!("madako_fault_since_timestamp_seconds{{{labels}}} {}\n", NOW - seconds)
    };
    let page = "madako_metrics_providers_down{kind=\"influx\"} 2\n".to_owned()
        + &start("madako_metrics_providers_down", "influx", 40)
        + &start("madako_metrics", "influx", 50);
    let (found, since) = find_one(&page);
    assert_eq!((found.rule, since), ("providers-down", Some(40)));
    assert_eq!(found.why, "2 metrics providers (influx) do not answer");
    assert!(found.remedy.ends_with("; runbook MadakoMetricsProviderDown"), "{found:?}");
    let (found, _) = find_one("madako_actor_up{actor=\"http\"} 0\nmadako_actor_up{actor=\"x\"} 0\n");
    assert_eq!(found.why, "http of the leader does not run");
}

#[test]
fn times_and_ratios_are_judged_by_the_clock() {
    let end = |days: i64| {
        let end = NOW + days * 86_400 + 3_600;
        format!("madako_certificates_end_timestamp_seconds{{of=\"kubernetes\"}} {end}\n")
    };
    assert_eq!(find(&end(14)), []);
    assert!(find_one(&end(13)).0.why.contains(": in 13d1h;"), "{:?}", find(&end(13)));
    assert!(find_one(&end(13)).0.why.contains("certificate of kubernetes"), "{:?}", find(&end(13)));
    assert_eq!(find_one(&end(13)).1, Some(86_400 - 3_600), "it should have been renewed by then");
    assert!(find_one(&end(-2)).0.why.contains("1d23h ago"), "{:?}", find(&end(-2)));
    let backup =
        |age: u64| format!("madako_etcd_backup_age_seconds {age}\nmadako_etcd_backup_interval_seconds 600\n");
    assert_eq!(find(&backup(1_200)), []);
    assert_eq!(
        (find_one(&backup(1_201)).0.rule, find_one(&backup(1_201)).1),
        ("etcd-backup-old", Some(1_201))
    );
    let violation = |seconds: i64| {
        format!("madako_invariant_violation_timestamp_seconds{{invariant=\"I2\"}} {}\n", NOW - seconds)
    };
    assert_eq!(find_one(&violation(3_599)).1, Some(3_599));
    assert_eq!(find(&violation(3_600)), []);
    assert_eq!(find("madako_invariant_violation_timestamp_seconds{invariant=\"I2\"} 0\n"), []);
    let fault = |state: &str, seconds: i64| {
        format!("madako_etcd_fault_since_timestamp_seconds{{state=\"{state}\"}} {}\n", NOW - seconds)
    };
    assert_eq!(find_one(&fault("no-majority", 1)).0.rule, "etcd-unhealthy");
    assert_eq!(find(&fault("missing", 899)), [], "a new control plane node becomes a member within minutes");
    assert_eq!(find_one(&fault("missing", 900)).0.rule, "etcd-members");
}

#[test]
fn metrics_of_an_instance_that_does_not_lead_show_no_fault() {
    let page = "madako_duplicate_addresses 2\n";
    assert_eq!(find_one(page).0.rule, "duplicate-addresses");
    assert_eq!(find(&format!("madako_leader 0\n{page}")), []);
    assert_eq!(find_one(&format!("madako_leader 1\n{page}")).0.rule, "duplicate-addresses");
}

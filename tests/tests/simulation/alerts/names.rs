//! Test that every declared metric is on the page of an instance at some time, because a metric that never counts is
//! useless. `bin/madako/tests/cli/service/page.rs` compares the pages of running processes with the declarations.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::gathered::Gathered;
use super::script::scenarios;
use super::{panels, promtool, stage};

/// Beginnings of the names of metrics that no simulated instance shows, and the reasons.
const ELSEWHERE: [(&str, &str); 7] = [
    ("madako_authentication_request", "its clients bring no token of another service"),
    ("madako_host_command", "a simulated host stands in the place of the adapter that counts commands"),
    ("madako_kubernetes_request", "simulated nodes stand in the place of the adapter that counts requests"),
    ("madako_predecessor_lease_seconds", "its store is in memory, and no process preceded it"),
    ("madako_reboot_command_seconds", "no operator of these scenarios asks for a reboot"),
    ("madako_store_keys_skipped_total", "every key of its store is UTF-8"),
    ("process_", "it is not a process of its own"),
];

/// Metrics that stay 0: no client of a simulation gives a password.
const STILL: [&str; 1] = ["madako_store_authentications_total"];

#[test]
fn every_declared_metric_is_scraped_and_every_panel_shows_data() {
    let wanted = promtool::words(promtool::dashboard_files());
    let gathered = Gathered::of("alpha", Arc::new(wanted), 0);
    for scenario in scenarios("everything.txt") {
        stage::play(&scenario, &gathered, panels::BEGINS);
    }
    let names = gathered.names();
    let still: Vec<&String> = names.iter().filter(|(_, moved)| !**moved).map(|(name, _)| name).collect();
    assert_eq!(still, STILL, "these are 0 all the time");
    let declared: BTreeSet<String> =
        madako_supervisor::all_metrics().map(|metric| metric.name.to_owned()).collect();
    let scraped = names.into_keys().collect();
    let missing = declared.difference(&scraped);
    let missing: Vec<&String> =
        missing.filter(|name| !ELSEWHERE.iter().any(|(start, _)| name.starts_with(start))).collect();
    assert!(missing.is_empty(), "never on the page: {missing:#?}");
    for (start, why) in ELSEWHERE {
        let begins_so = |name: &&String| name.starts_with(start);
        assert_ne!(declared.iter().find(begins_so), None, "{start} is not declared");
        assert_eq!(scraped.iter().find(begins_so), None, "is on the page, although {why}");
    }
    let unknown: Vec<&String> = scraped.difference(&declared).collect();
    assert!(unknown.is_empty(), "not declared: {unknown:#?}");
    panels::judge(&gathered.series());
}

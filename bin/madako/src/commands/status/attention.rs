//! Faults that need the operator: obstacles in the store, and faults on the pages of the leader.

use madako_domain::guard::{GuardState, POLLS_TO_AGREE};
use madako_domain::keys;
use madako_domain::obstacle::{
    AUTO_REPAIR_DISABLED, INTEGRATION_DISABLED, NO_PLAN, Obstacle, RACK_HELD, REGISTRY_SILENT, REMOVAL_GUARD,
    REPAIR_QUEUE_DISABLED, UNUSABLE_VALUE,
};
use madako_domain::repair::RepairStatus;
use madako_domain::state::{ClusterState, Fault};
use serde::Serialize;
use time::OffsetDateTime;

use super::facts::StatusFacts;
use super::samples::Samples;
use crate::commands::node::format_age;
use crate::limits::MAX_REPAIRS_SHOWN;

/// No candidate has a leader key.
pub(super) const NO_LEADER: &str = "no-leader";
/// The leader's process does not renew its lease, or its successor waits for the lease's end.
pub(super) const LEASE_NOT_RENEWED: &str = "lease-not-renewed";
/// The pages of the leader do not answer.
pub(super) const PAGES_SILENT: &str = "pages-silent";
pub(super) const NO_TEMPLATE: &str = "no-template";
pub(super) const NO_REGISTRY: &str = "no-registry";
pub(super) const REPAIRS_FAILED: &str = "repairs-failed";
pub(super) const NODES_UNREACHABLE: &str = "nodes-unreachable";
pub(super) const ETCD_UNHEALTHY: &str = "etcd-unhealthy";
pub(super) const APPLICATIONS_FAILED: &str = "applications-failed";
pub(super) const METRICS_FAILED: &str = "metrics-failed";

/// An obstacle or a fault, with the operator's way out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Attention {
    pub(super) what: String,
    #[serde(with = "time::serde::rfc3339::option")]
    pub(super) since: Option<OffsetDateTime>,
    pub(super) rule: &'static str,
    /// For information: the operator wants it so.
    pub(super) informs: bool,
    pub(super) why: String,
    pub(super) remedy: String,
}

impl Attention {
    fn new(what: &str, rule: &'static str, why: impl Into<String>, remedy: &str) -> Self {
        let (what, remedy) = (what.to_owned(), remedy.to_owned());
        Self { what, since: None, rule, informs: false, why: why.into(), remedy }
    }
}

/// Everything that needs the operator, the leadership first.
pub(super) fn find_attention(
    state: &ClusterState,
    facts: &StatusFacts,
    samples: &Samples,
    now: OffsetDateTime,
) -> Vec<Attention> {
    let mut found = check_leadership(facts, samples, now);
    found.extend(find_obstacles(state));
    found.extend(check_settings(state));
    found.extend(check_repairs(state));
    found.extend(check_samples(samples));
    found
}

fn check_leadership(facts: &StatusFacts, samples: &Samples, now: OffsetDateTime) -> Vec<Attention> {
    let Some(leader) = &facts.leader else {
        let why = "no instance leads: nothing is planned, repaired or placed";
        return vec![Attention::new(
            "leadership",
            NO_LEADER,
            why,
            "start madako serve, or look into the log of an instance; madako doctor checks its surroundings",
        )];
    };
    let mut found = Vec::new();
    let awaited = facts.waits_for.as_ref().map(|waits_for| format!("an instance waits for {waits_for}"));
    let silent = leader.time_since_renewal().filter(|_| leader.is_late());
    if awaited.is_some() || silent.is_some() {
        let silence = silent.map(|silent| {
            let left = leader.lease_left_seconds.unwrap_or_default();
            format!(
                "{} has not renewed its lease for {}, and another instance can lead in {left} s",
                leader.host,
                format_age(silent)
            )
        });
        let why = [silence, awaited].into_iter().flatten().collect::<Vec<_>>().join("; ");
        let remedy = "wait for the end of the lease; if no instance leads then, start one";
        let since = silent.map(|silent| now - silent);
        found.push(Attention { since, ..Attention::new("leadership", LEASE_NOT_RENEWED, why, remedy) });
    } else if let Some(why) = &facts.pages_fault {
        let remedy = "the process ended, or its port cannot be reached from here: what only the leader knows is not shown";
        found.push(Attention {
            informs: leader.url.is_none(),
            ..Attention::new("pages", PAGES_SILENT, why, remedy)
        });
    } else if samples.sum_of("madako_leader") == Some(0.0) {
        let why = format!(
            "the process that answers at {} does not lead",
            leader.url.as_deref().unwrap_or("its URL")
        );
        found.push(Attention::new(
            "leadership",
            LEASE_NOT_RENEWED,
            why,
            "wait for the end of the lease of the earlier leader",
        ));
    }
    found
}

/// Settings without which nothing is planned. A service that only places applications has none of them.
fn check_settings(state: &ClusterState) -> Vec<Attention> {
    let mut found = Vec::new();
    let mut add = |rule, why: &str, remedy| {
        found.push(Attention { informs: true, ..Attention::new("plans", rule, why, remedy) });
    };
    if state.template.is_none() && state.fault_of(keys::SABAKAN_TEMPLATE).is_none() {
        add(
            NO_TEMPLATE,
            "no template is stored, so no cluster is planned",
            "madako sabakan set-template FILE; madako template example prints one",
        );
    }
    if state.url.is_none() && state.fault_of(keys::SABAKAN_URL).is_none() {
        add(
            NO_REGISTRY,
            "no URL of the registry is stored, so no machine is known",
            "madako sabakan set-url URL",
        );
    }
    found
}

fn check_repairs(state: &ClusterState) -> Option<Attention> {
    let failed = state.repair.entries.values().filter(|item| item.value.status == RepairStatus::Failed);
    let failed: Vec<_> = failed.map(|item| &item.value).collect();
    let since = failed.iter().filter_map(|entry| entry.last_transition_time).min();
    let mut named: Vec<String> = failed
        .iter()
        .take(MAX_REPAIRS_SHOWN)
        .map(|entry| format!("#{} {}", entry.index, entry.address))
        .collect();
    if failed.len() > named.len() {
        named.push(format!("{} more", failed.len() - named.len()));
    }
    let why = format!("the repair failed: {}", named.join(", "));
    let remedy =
        "repair the machine by hand, then madako repair-queue delete INDEX; madako history has the error";
    (!failed.is_empty())
        .then(|| Attention { since, ..Attention::new("repairs", REPAIRS_FAILED, why, remedy) })
}

/// Faults that only the leader observes.
fn check_samples(samples: &Samples) -> Vec<Attention> {
    let mut found = Vec::new();
    let count = |name: &str, label: &str, values: &[&str]| -> u64 {
        let counts = samples.counts_by_label(name, label);
        values.iter().filter_map(|value| counts.get(*value)).sum()
    };
    let unreachable = count("madako_nodes", "state", &["unreachable"]);
    if unreachable > 0 {
        let since = samples.time_value("madako_nodes_unreachable_since_timestamp_seconds");
        let why = format!("{} not answer over SSH", count_with_noun(unreachable, "node does", "nodes do"));
        let remedy = "madako node list --sort-by state names each with its error";
        found.push(Attention { since, ..Attention::new("nodes", NODES_UNREACHABLE, why, remedy) });
    }
    if samples.sum_of("madako_etcd_healthy") == Some(0.0) {
        let why = "the etcd of the cluster grants no lease: it has no majority";
        found.push(Attention::new(
            "etcd of the cluster",
            ETCD_UNHEALTHY,
            why,
            "madako ops shows its members",
        ));
    }
    let failed = count("madako_placement_applications", "outcome", &["failed"]);
    if failed > 0 {
        let why = format!("no cluster takes {}", count_with_noun(failed, "application", "applications"));
        let remedy = "madako kube app list names them; madako kube app explain NAME has the reason";
        found.push(Attention::new("placement", APPLICATIONS_FAILED, why, remedy));
    }
    let metrics = count("madako_metrics", "condition", &["failed", "undefined"]);
    if metrics > 0 {
        let why = format!("{} no usable value", count_with_noun(metrics, "metric has", "metrics have"));
        let remedy = "the log of the leader names each with its error; check its provider";
        found.push(Attention::new("placement", METRICS_FAILED, why, remedy));
    }
    found
}

pub(super) fn count_with_noun(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

/// Every obstacle in the state, including the leader's stored notes about those that only the leader observes.
pub(super) fn find_obstacles(state: &ClusterState) -> Vec<Attention> {
    let noted = |rule: &str| state.obstacles.as_ref().and_then(|noted| noted.value.get(rule));
    let mut found = Vec::new();
    let mut add = |what: &str, rule: &'static str, why: &str, remedy: &str| {
        let since = noted(rule).map(|noted| noted.since);
        found.push(Attention {
            what: what.to_owned(),
            since,
            rule,
            informs: rule == AUTO_REPAIR_DISABLED,
            why: why.to_owned(),
            remedy: remedy.to_owned(),
        });
    };
    if state.disabled {
        let remedy = "madako sabakan enable lets the leader plan again";
        add("plans", INTEGRATION_DISABLED, "the integration with sabakan is disabled", remedy);
    }
    if let Some(guard) = state.guard.as_ref().filter(|guard| !guard.value.vanished.is_empty()) {
        let remedy = "madako sabakan confirm-removal --dry-run names the nodes; without --dry-run it accepts their removal";
        add("plans", REMOVAL_GUARD, &describe_held(&guard.value), remedy);
    }
    if noted(REGISTRY_SILENT).is_some_and(|_| !state.disabled) {
        let url = state.url.as_ref().map_or("its URL", |url| url.value.as_str());
        let why = "sabakan has returned no valid answer for more than three poll intervals";
        add("plans", REGISTRY_SILENT, why, &format!("check sabakan ({url}) and the leader's log"));
    }
    if let Some(Obstacle { why, .. }) = noted(NO_PLAN).filter(|_| !state.disabled) {
        add(
            "plans",
            NO_PLAN,
            why,
            "madako plan shows the obstacle; change the template, the constraints or the machines",
        );
    }
    if state.repair.disabled {
        let remedy = "madako repair-queue enable resumes repairs";
        add("repairs", REPAIR_QUEUE_DISABLED, "the repair queue is disabled", remedy);
    }
    if state.auto_repair_disabled {
        let why = "machines that sabakan reports are not added to the repair queue";
        add(
            "automatic repairs",
            AUTO_REPAIR_DISABLED,
            why,
            "madako auto-repair enable, unless this is wanted",
        );
    }
    for Fault { key, why } in &state.faults {
        let remedy = match key.strip_prefix(keys::REPAIR_HOLDS) {
            Some(rack) => format!("madako repair-queue release {rack}"),
            None => format!("store a valid value of {key}, or delete the key"),
        };
        add(key, UNUSABLE_VALUE, why, &remedy);
    }
    for (rack, hold) in state.holds.iter().filter(|(_, hold)| hold.value.is_held()) {
        found.push(Attention {
            what: format!("repairs of {} {rack}", hold.value.label),
            since: hold.value.held_since(),
            rule: RACK_HELD,
            informs: false,
            why: format!(
                "{} machines failed together: {}",
                hold.value.count(),
                hold.value.serials().join(", ")
            ),
            remedy: format!(
                "look for the common cause; madako repair-queue release {rack} repairs them one by one"
            ),
        });
    }
    found
}

fn describe_held(guard: &GuardState) -> String {
    let count = guard.vanished.len();
    match guard.confirmed {
        true => format!(
            "{count} nodes vanished from sabakan; their removal is confirmed and continues at the next poll"
        ),
        false => format!(
            "{count} nodes vanished from sabakan at once; {} of {POLLS_TO_AGREE} polls agree",
            guard.agreed
        ),
    }
}

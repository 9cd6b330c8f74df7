//! Faults that need the operator: obstacles in the store, and faults on the pages of the leader.

use std::collections::BTreeSet;

use madako_domain::guard::{GuardState, POLLS_TO_AGREE};
use madako_domain::keys;
use madako_domain::obstacle::{
    AUTO_REPAIR_DISABLED, INTEGRATION_DISABLED, NO_PLAN, Obstacle, RACK_HELD, REGISTRY_SILENT, REMOVAL_GUARD,
    REPAIR_QUEUE_DISABLED, UNUSABLE_VALUE,
};
use madako_domain::reboot::RebootStatus;
use madako_domain::repair::RepairStatus;
use madako_domain::repair::hold::Hold;
use madako_domain::state::{ClusterState, Fault};
use serde::Serialize;
use time::OffsetDateTime;

use super::facts::{StatusFacts, StoreFacts};
use super::observed::find_observed;
use super::samples::Samples;
use crate::commands::node::format_age;
use crate::limits::{MAX_ITEMS_OF_RULE, MAX_NAMED_IN_LINE};

/// No candidate has a leader key.
pub(super) const NO_LEADER: &str = "no-leader";
/// The leader's process does not renew its lease, or its successor waits for the lease's end.
pub(super) const LEASE_NOT_RENEWED: &str = "lease-not-renewed";
/// The pages of the leader do not answer.
pub(super) const PAGES_SILENT: &str = "pages-silent";
pub(super) const NO_TEMPLATE: &str = "no-template";
pub(super) const NO_REGISTRY: &str = "no-registry";
pub(super) const REPAIRS_FAILED: &str = "repairs-failed";
pub(super) const REBOOT_QUEUE_DISABLED: &str = "reboot-queue-disabled";
/// etcd reports an alarm, such as a database without space.
pub(super) const STORE_ALARM: &str = "store-alarm";

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
    pub(super) fn new(what: &str, rule: &'static str, why: impl Into<String>, remedy: &str) -> Self {
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
    found.extend(check_store(&facts.store));
    found.extend(check_settings(state, samples));
    found.extend(check_repairs(state));
    found.extend(check_reboots(state, samples));
    // An item from the store has more details than one of the same rule from the metrics.
    let known: BTreeSet<&str> = found.iter().map(|attention| attention.rule).collect();
    let observed = find_observed(samples, now).into_iter();
    let observed: Vec<_> = observed.filter(|attention| !known.contains(attention.rule)).collect();
    found.extend(observed);
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
fn check_settings(state: &ClusterState, samples: &Samples) -> Vec<Attention> {
    let mut found = Vec::new();
    let mut add = |rule, why: &str, remedy| {
        let reason = if rule == NO_TEMPLATE { "no-template" } else { "no-url" };
        let since = samples.time_by_label("madako_planner_blocked_since_timestamp_seconds", "reason", reason);
        found.push(Attention { since, informs: true, ..Attention::new("plans", rule, why, remedy) });
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
    let named: Vec<String> =
        failed.iter().map(|entry| format!("#{} {}", entry.index, entry.address)).collect();
    let why = format!("the repair failed: {}", list_some(&named));
    let remedy =
        "repair the machine by hand, then madako repair-queue delete INDEX; madako history has the error";
    (!failed.is_empty())
        .then(|| Attention { since, ..Attention::new("repairs", REPAIRS_FAILED, why, remedy) })
}

/// A disabled queue matters while entries wait.
fn check_reboots(state: &ClusterState, samples: &Samples) -> Option<Attention> {
    let entries = state.repair.requested_reboots();
    let queued = entries.filter(|(_, entry)| entry.status == RebootStatus::Queued).count();
    if !state.repair.reboots_disabled || queued == 0 {
        return None;
    }
    let why = format!("the reboot queue is disabled, and nodes wait for their reboot: {queued}");
    let remedy = "madako reboot-queue enable resumes reboots; madako reboot-queue cancel INDEX cancels one";
    let since = samples.time_by_label("madako_reboot_waiting_since_timestamp_seconds", "reason", "disabled");
    Some(Attention { since, ..Attention::new("reboots", REBOOT_QUEUE_DISABLED, why, remedy) })
}

fn check_store(store: &StoreFacts) -> Option<Attention> {
    let remedy = "etcdctl alarm list; compact and defragment a full etcd, then etcdctl alarm disarm; free the disk of an embedded store";
    (!store.alarms.is_empty()).then(|| Attention::new("store", STORE_ALARM, list_some(&store.alarms), remedy))
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
    found.extend(check_values(&state.faults));
    found.extend(check_holds(state));
    found
}

/// Unusable stored values: one by one, or together if they are many.
fn check_values(faults: &[Fault]) -> Vec<Attention> {
    if faults.len() > MAX_ITEMS_OF_RULE {
        let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
        let why = format!("{} stored values cannot be used: {}", faults.len(), list_some(&keys));
        let remedy =
            "store valid values, or delete the keys; madako repair-queue release RACK deletes a hold";
        return vec![Attention::new("stored values", UNUSABLE_VALUE, why, remedy)];
    }
    let to_item = |Fault { key, why }: &Fault| {
        let remedy = match key.strip_prefix(keys::REPAIR_HOLDS) {
            Some(rack) => format!("madako repair-queue release {rack}"),
            None => format!("store a valid value of {key}, or delete the key"),
        };
        Attention::new(key, UNUSABLE_VALUE, why, &remedy)
    };
    faults.iter().map(to_item).collect()
}

/// Held racks: one by one, or together if they are many.
fn check_holds(state: &ClusterState) -> Vec<Attention> {
    let held = held_racks(state);
    if held.len() > MAX_ITEMS_OF_RULE {
        let racks: Vec<&str> = held.iter().map(|(rack, _)| *rack).collect();
        let machines: usize = held.iter().map(|(_, hold)| hold.count()).sum();
        let why =
            format!("{machines} machines in {} racks failed together: {}", held.len(), list_some(&racks));
        let remedy = "look for the common cause; madako repair-queue release RACK repairs the machines of a rack one by one";
        let since = held.iter().filter_map(|(_, hold)| hold.held_since()).min();
        return vec![Attention { since, ..Attention::new("repairs of held racks", RACK_HELD, why, remedy) }];
    }
    let to_item = |(rack, hold): (&str, &Hold)| {
        let what = format!("repairs of {} {rack}", hold.label);
        let serials = list_some(&hold.serials());
        let why = format!("{} machines failed together: {serials}", hold.count());
        let remedy =
            format!("look for the common cause; madako repair-queue release {rack} repairs them one by one");
        Attention { since: hold.held_since(), ..Attention::new(&what, RACK_HELD, why, &remedy) }
    };
    held.into_iter().map(to_item).collect()
}

/// The held racks, those with a number in its order.
pub(super) fn held_racks(state: &ClusterState) -> Vec<(&str, &Hold)> {
    let holds = state.holds.iter().map(|(rack, hold)| (rack.as_str(), hold.value.as_ref()));
    let mut held: Vec<(&str, &Hold)> = holds.filter(|(_, hold)| hold.is_held()).collect();
    held.sort_by_key(|(rack, _)| (rack.parse().unwrap_or(u64::MAX), *rack));
    held
}

/// The first names of a list, and the number of the others.
pub(super) fn list_some<S: AsRef<str>>(names: &[S]) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMED_IN_LINE).map(AsRef::as_ref).collect();
    let rest = names.len() - shown.len();
    let more = if rest == 0 { String::new() } else { format!(" and {rest} more") };
    format!("{}{more}", shown.join(", "))
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

//! Reads the state of the running system for `madako status`: from etcd and from the leader's pages.

use std::collections::BTreeMap;

use futures::future::{try_join, try_join_all};
use madako_console::Stopwatch;
use madako_domain::cluster::TAINT_STATE;
use madako_domain::keys;
use madako_domain::repair::queue::Items;
use madako_domain::state::ClusterState;
use madako_domain::status::ServerStatus;
use madako_domain::store::Entry;
use madako_protocol::store::Store as _;
use madako_store::EtcdStore;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::attention::{Attention, find_attention, held_racks};
use super::samples::Samples;
use crate::access::{decode, get_entry};
use crate::commands::ops::running::get_body;
use crate::failure::Failure;
use crate::last_plan::{LastPlan, last_plan};
use crate::limits::{MAX_NAMED_IN_LINE, STATUS_DEADLINE};

/// The keys that the screen shows. The rest grows with applications and certificates, and is not read.
const READ: [&str; 16] = [
    keys::CLUSTER,
    keys::CONSTRAINTS,
    "sabakan/",
    "auto-repair/",
    "repairs/",
    "reboots/",
    keys::LEADER,
    keys::STATUS,
    keys::CONFIG_VERSION,
    keys::REMOVAL_GUARD,
    keys::OBSTACLES,
    keys::SETTINGS,
    "madako/repair/",
    keys::LAST_PLAN,
    keys::LEADER_URL,
    keys::ETCD_BACKUP,
];

/// The running system. Its JSON begins with CKE's fields.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(super) struct StatusFacts {
    pub(super) phase: Option<String>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub(super) timestamp: Option<OffsetDateTime>,
    pub(super) calm: bool,
    pub(super) attention: Vec<Attention>,
    pub(super) leader: Option<Leadership>,
    /// The reason for which an instance cannot lead yet, from its page `/health`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) waits_for: Option<String>,
    /// The reason why the pages of the leader are not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pages_fault: Option<String>,
    pub(super) registry: Registry,
    pub(super) plan: Plans,
    pub(super) nodes: Nodes,
    pub(super) repairs: Repairs,
    pub(super) reboots: Reboots,
    pub(super) placement: Option<Placement>,
    pub(super) store: StoreFacts,
    /// Time of the last backup of the cluster's etcd.
    #[serde(with = "time::serde::rfc3339::option")]
    pub(super) etcd_backup: Option<OffsetDateTime>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Leadership {
    pub(super) host: String,
    pub(super) epoch: i64,
    #[serde(with = "time::serde::rfc3339::option")]
    pub(super) since: Option<OffsetDateTime>,
    pub(super) url: Option<String>,
    /// Hosts of the other candidates, the next leader first.
    pub(super) candidates: Vec<String>,
    pub(super) lease_left_seconds: Option<u64>,
    pub(super) lease_seconds: Option<u64>,
}

impl Leadership {
    /// The time since the last renewal of the lease.
    pub(super) fn time_since_renewal(&self) -> Option<time::Duration> {
        let silent = self.lease_seconds?.saturating_sub(self.lease_left_seconds?);
        Some(time::Duration::seconds(i64::try_from(silent).ok()?))
    }

    /// A leader renews its lease three times in its time to live: after half of it, two renewals are missing.
    pub(super) fn is_late(&self) -> bool {
        let whole = self.lease_seconds.unwrap_or_default();
        self.lease_left_seconds.is_some_and(|left| left.saturating_mul(2) < whole)
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(super) struct Registry {
    pub(super) url: Option<String>,
    pub(super) enabled: bool,
    /// Time of the last good answer.
    #[serde(with = "time::serde::rfc3339::option")]
    pub(super) answered: Option<OffsetDateTime>,
    pub(super) machines: Option<u64>,
    /// The last answer is to another query: the URL or the variables changed since.
    pub(super) awaits_new_query: bool,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(super) struct Plans {
    /// Time of the last plan, also of one without a change.
    #[serde(with = "time::serde::rfc3339::option")]
    pub(super) made: Option<OffsetDateTime>,
    /// The last plan that was committed.
    pub(super) committed: Option<LastPlan>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(super) struct Nodes {
    pub(super) control_plane: usize,
    pub(super) workers: usize,
    /// Nodes by the state of their machine that is their taint, such as `retiring`.
    pub(super) tainted: BTreeMap<String, u64>,
    /// Nodes by the state of their connection, where operations on nodes are on.
    pub(super) connections: BTreeMap<String, u64>,
    /// Healthy machines outside the cluster.
    pub(super) unused_machines: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(super) struct Repairs {
    pub(super) enabled: bool,
    pub(super) automatic: bool,
    /// Entries of the queue by status.
    pub(super) entries: BTreeMap<String, u64>,
    /// The first repairs under way: index, address and progress.
    pub(super) under_way: Vec<String>,
    /// Waiting entries by the reason.
    pub(super) waiting: BTreeMap<String, u64>,
    pub(super) held_racks: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(super) struct Reboots {
    pub(super) enabled: bool,
    /// Entries of the queue by status.
    pub(super) entries: BTreeMap<String, u64>,
    /// Waiting entries by the reason.
    pub(super) waiting: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(super) struct Placement {
    /// Applications by their last decision.
    pub(super) applications: BTreeMap<String, u64>,
    /// Moves since the leader's process started.
    pub(super) moves: u64,
    /// Metrics by condition.
    pub(super) metrics: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct StoreFacts {
    pub(super) endpoint: String,
    pub(super) revision: i64,
    pub(super) answered_milliseconds: u64,
    /// `None`: the user of the store may not ask for it.
    pub(super) size_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) alarms: Vec<String>,
}

/// Two answers that differ only in their speed, or in the growing size of the store, are equal.
impl PartialEq for StoreFacts {
    fn eq(&self, other: &Self) -> bool {
        (&self.endpoint, &self.alarms) == (&other.endpoint, &other.alarms)
    }
}

/// The facts of the leader's pages.
#[derive(Default)]
struct Pages {
    samples: Samples,
    waits_for: Option<String>,
    fault: Option<String>,
}

#[derive(Deserialize)]
struct Health {
    #[serde(default)]
    waits_for: Option<String>,
}

/// Reads the store and asks the leader for its pages.
///
/// # Errors
/// The store does not answer, or CKE's status is unreadable.
pub(super) async fn read_facts(store: &EtcdStore, now: OffsetDateTime) -> Result<StatusFacts, Failure> {
    let url = get_entry(store, keys::LEADER_URL).await?;
    let url = url.map(|url| String::from_utf8_lossy(&url.value).trim_end_matches('/').to_owned());
    let watch = Stopwatch::start();
    let lists = async {
        let lists = try_join_all(READ.iter().map(|prefix| store.list(prefix)));
        try_join(lists, store.read_condition()).await.map(|answers| (answers, watch.elapsed()))
    };
    // The pages of a large fleet take about as long as the lists.
    let (answers, pages) = tokio::join!(lists, read_pages(url.as_deref()));
    let ((lists, condition), took) = answers?;
    let answered_milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let revision = lists.iter().map(|list| list.revision).max().unwrap_or_default();
    let entries: BTreeMap<String, Entry> = lists.into_iter().flat_map(|list| list.entries).collect();
    let leader = read_leadership(&entries, url, store).await?;
    // Without a leader, the URL is that of a former one.
    let Pages { samples, waits_for, fault: pages_fault } = match &leader {
        None => Pages::default(),
        Some(Leadership { host, url: None, .. }) => Pages {
            fault: Some(format!("{host} has stored no URL of its pages: an instance of CKE leads")),
            ..Pages::default()
        },
        Some(_) => pages,
    };
    let state = ClusterState::decode(revision, &entries, None);
    let status =
        entries.get(keys::STATUS).map(|entry| decode::<ServerStatus>(keys::STATUS, entry)).transpose()?;
    let store = StoreFacts {
        endpoint: store.endpoint().to_owned(),
        revision,
        answered_milliseconds,
        size_bytes: condition.as_ref().map(|condition| condition.size_bytes),
        alarms: condition.map(|condition| condition.alarms).unwrap_or_default(),
    };
    let mut facts = StatusFacts {
        phase: status.as_ref().map(|status| status.phase.to_string()),
        timestamp: status.as_ref().map(|status| status.timestamp),
        leader: leader.map(|leader| Leadership {
            since: samples.time_value("madako_leader_since_timestamp_seconds"),
            ..leader
        }),
        waits_for,
        pages_fault,
        registry: Registry {
            url: state.url.as_ref().map(|url| url.value.clone()),
            enabled: !state.disabled,
            answered: samples.time_value("madako_observation_timestamp_seconds"),
            machines: samples.sum_of("madako_observation_machines").map(|count| count as u64),
            awaits_new_query: samples
                .time_by_label("madako_planner_blocked_since_timestamp_seconds", "reason", "other-query")
                .is_some(),
        },
        plan: Plans {
            made: samples.time_value("madako_plan_timestamp_seconds"),
            committed: last_plan(entries.get(keys::LAST_PLAN))?,
        },
        nodes: count_nodes(&state, &samples),
        repairs: count_repairs(&state, &samples),
        reboots: Reboots {
            enabled: !state.repair.reboots_disabled,
            entries: count_by(&state.repair.reboots, |entry| entry.status.to_string()),
            waiting: samples.counts_by_label("madako_reboot_waiting", "reason"),
        },
        placement: count_placement(&samples),
        store,
        etcd_backup: state.etcd_backup.as_ref().map(|backup| backup.value.at),
        ..StatusFacts::default()
    };
    facts.attention = find_attention(&state, &facts, &samples, now);
    facts.calm = facts.attention.iter().all(|attention| attention.informs);
    Ok(facts)
}

/// The oldest candidate, with the time that its lease lasts.
async fn read_leadership(
    entries: &BTreeMap<String, Entry>,
    url: Option<String>,
    store: &EtcdStore,
) -> Result<Option<Leadership>, Failure> {
    let mut candidates: Vec<&Entry> = entries
        .range(keys::LEADER.to_owned()..)
        .take_while(|(key, _)| key.starts_with(keys::LEADER))
        .map(|(_, entry)| entry)
        .collect();
    candidates.sort_by_key(|entry| entry.create_revision);
    let host = |entry: &&Entry| String::from_utf8_lossy(&entry.value).into_owned();
    let Some((leader, others)) = candidates.split_first() else { return Ok(None) };
    // A key without a lease was written by hand.
    let left = if leader.lease == 0 { None } else { store.lease_left(leader.lease).await? };
    Ok(Some(Leadership {
        host: host(leader),
        epoch: leader.create_revision,
        since: None,
        url,
        candidates: others.iter().map(host).collect(),
        lease_left_seconds: left.map(|(left, _)| left.as_secs()),
        lease_seconds: left.map(|(_, whole)| whole.as_secs()),
    }))
}

/// Asks the instance with this URL.
async fn read_pages(url: Option<&str>) -> Pages {
    let Some(url) = url else { return Pages::default() };
    // The metrics of single machines are most of the page, and no rule uses them.
    let [metrics, health] = ["metrics?machines=false", "health"].map(|page| format!("{url}/{page}"));
    let (metrics, health) =
        tokio::join!(get_body(&metrics, STATUS_DEADLINE), get_body(&health, STATUS_DEADLINE));
    let health = health.ok().and_then(|body| serde_json::from_slice::<Health>(&body).ok());
    let (samples, fault) = match metrics {
        Ok(body) => (Samples::parse(&String::from_utf8_lossy(&body)), None),
        Err(failure) => (Samples::default(), failure.message()),
    };
    Pages { samples, waits_for: health.and_then(|health| health.waits_for), fault }
}

fn count_nodes(state: &ClusterState, samples: &Samples) -> Nodes {
    let nodes = state.cluster.iter().flat_map(|cluster| &cluster.value.nodes);
    let mut counted = Nodes {
        connections: samples.counts_by_label("madako_nodes", "state"),
        unused_machines: samples.sum_of("cke_sabakan_unused_machines").map(|count| count as u64),
        ..Nodes::default()
    };
    for node in nodes {
        *if node.control_plane { &mut counted.control_plane } else { &mut counted.workers } += 1;
        if let Some(taint) = node.taints.iter().find(|taint| taint.key == TAINT_STATE) {
            *counted.tainted.entry(taint.value.clone()).or_default() += 1;
        }
    }
    counted
}

fn count_repairs(state: &ClusterState, samples: &Samples) -> Repairs {
    let mut under_way = Vec::new();
    for item in state.repair.entries.values() {
        let entry = &item.value;
        let is_begun = entry.status == madako_domain::repair::RepairStatus::Processing;
        if is_begun && under_way.len() < MAX_NAMED_IN_LINE {
            let (index, address, step) = (entry.index, &entry.address, entry.step);
            under_way
                .push(format!("#{index} {address} {} (step {step} {})", entry.operation, entry.step_status));
        }
    }
    Repairs {
        enabled: !state.repair.disabled,
        automatic: !state.auto_repair_disabled,
        entries: count_by(&state.repair.entries, |entry| entry.status.to_string()),
        under_way,
        waiting: samples.counts_by_label("madako_repair_waiting", "reason"),
        held_racks: held_racks(state).into_iter().map(|(rack, _)| rack.to_owned()).collect(),
    }
}

/// Entries of a queue by their status.
fn count_by<T>(entries: &Items<T>, status: impl Fn(&T) -> String) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for item in entries.values() {
        *counts.entry(status(&item.value)).or_default() += 1;
    }
    counts
}

fn count_placement(samples: &Samples) -> Option<Placement> {
    samples.sum_of("madako_placement_owner").filter(|owner| *owner > 0.0)?;
    Some(Placement {
        applications: samples.counts_by_label("madako_placement_applications", "outcome"),
        moves: samples
            .counts_by_label("madako_placement_bindings_total", "kind")
            .remove("move")
            .unwrap_or_default(),
        metrics: samples.counts_by_label("madako_metrics", "condition"),
    })
}

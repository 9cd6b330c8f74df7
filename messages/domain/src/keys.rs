//! Keys below the prefix. CKE's are in its `docs/schema.md` and `storage.go`; ours are below `madako/`.

/// The cluster configuration.
pub const CLUSTER: &str = "cluster";
/// Mod revision of the template that the cluster was generated from, as a decimal string.
pub const CLUSTER_REVISION: &str = "cluster-revision";
/// The constraints.
pub const CONSTRAINTS: &str = "constraints";
/// `true` switches repairs that the registry asks for off.
pub const AUTO_REPAIR_DISABLED: &str = "auto-repair/disabled";
/// Variables of the query that chooses machines to be repaired.
pub const AUTO_REPAIR_VARIABLES: &str = "auto-repair/query-variables";
/// Every candidate's key is `leader//<lease id in hex>`: CKE's election adds a slash to `leader/`.
pub const LEADER: &str = "leader//";
/// Next id of an operation record, as a decimal string.
pub const RECORD_ID: &str = "records";
/// Operation records, `records/<16 hex digits>`.
pub const RECORDS: &str = "records/";
/// `true` switches the integration with the registry off.
pub const SABAKAN_DISABLED: &str = "sabakan/disabled";
/// Variables of the query.
pub const SABAKAN_VARIABLES: &str = "sabakan/query-variables";
/// The cluster template.
pub const SABAKAN_TEMPLATE: &str = "sabakan/template";
/// URL of the registry's GraphQL API.
pub const SABAKAN_URL: &str = "sabakan/url";
/// The phase of the leader, on its lease.
pub const STATUS: &str = "status";
/// Entries of the repair queue, `repairs/data/<16 hex digits>`.
pub const REPAIRS: &str = "repairs/data/";
/// `true` switches drains and commands of the repair queue off.
pub const REPAIRS_DISABLED: &str = "repairs/disabled";
/// Number of the next entry of the repair queue, as a decimal string.
pub const REPAIRS_WRITE_INDEX: &str = "repairs/write-index";
/// Entries of the reboot queue, `reboots/data/<16 hex digits>`.
pub const REBOOTS: &str = "reboots/data/";
/// Number of the next entry of the reboot queue, as a decimal string.
pub const REBOOTS_WRITE_INDEX: &str = "reboots/write-index";
/// `true` switches the reboot queue off.
pub const REBOOTS_DISABLED: &str = "reboots/disabled";
/// `true` while CKE works at the reboot queue: what its leader wrote last.
pub const REBOOTS_RUNNING: &str = "reboots/running";
/// What is kept of each entry of the repair queue beside it, `madako/repair/entries/<16 hex digits>`.
pub const REPAIR_KEPT: &str = "madako/repair/entries/";
/// State of the removal guard.
pub const REMOVAL_GUARD: &str = "madako/removal-guard";
/// Obstacles to planning and repairing, each with its start.
pub const OBSTACLES: &str = "madako/obstacles";
/// Settings of the leader.
pub const SETTINGS: &str = "madako/settings";
/// Racks that are held, `madako/repair/holds/<the label's value>`.
pub const REPAIR_HOLDS: &str = "madako/repair/holds/";
/// The last plan that was committed, with its reasons.
pub const LAST_PLAN: &str = "madako/decisions/cluster-plan";

/// What the scheduler keeps of placement.
pub const PLACEMENT: &str = "madako/placement/";
/// How many applications moved when, as far as that still holds others back.
pub const PLACEMENT_MOVES: &str = "madako/placement/moves";
/// The last decision on each application that led to something, `<namespace>/<name>`.
pub const PLACEMENT_DECISIONS: &str = "madako/placement/decisions/";
/// What is remembered of each cluster, while there is something, `<namespace>/<name>`.
pub const PLACEMENT_CLUSTERS: &str = "madako/placement/clusters/";

/// Keys of our own that hold one value of the leader's, which is never written again as it is (I12).
pub const NOTED: [&str; 3] = [REMOVAL_GUARD, OBSTACLES, SETTINGS];

/// The key of an operation record.
#[must_use]
pub fn record(id: i64) -> String {
    format!("{RECORDS}{id:016x}")
}

/// The key of a rack that is held.
#[must_use]
pub fn repair_hold(rack: &str) -> String {
    format!("{REPAIR_HOLDS}{rack}")
}

/// The key of an entry of the repair queue.
#[must_use]
pub fn repair(index: i64) -> String {
    format!("{REPAIRS}{index:016x}")
}

/// The key of an entry of the reboot queue.
#[must_use]
pub fn reboot(index: i64) -> String {
    format!("{REBOOTS}{index:016x}")
}

/// The key of what is kept of an entry of the repair queue.
#[must_use]
pub fn repair_kept(index: i64) -> String {
    format!("{REPAIR_KEPT}{index:016x}")
}

/// The key of a candidate that holds a lease.
#[must_use]
pub fn leader(lease: i64) -> String {
    format!("{LEADER}{lease:x}")
}

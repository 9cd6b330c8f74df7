//! The keys that the service and CKE use in etcd, below one prefix. CKE defines its own in `docs/schema.md` and
//! `storage.go`; Madako's are below `madako/`.

use crate::authority::Authority;

/// The committed cluster configuration, as JSON.
pub const CLUSTER: &str = "cluster";
/// Mod revision of the template that the cluster was generated from, as a decimal string.
pub const CLUSTER_REVISION: &str = "cluster-revision";
/// The operator's constraints, as JSON.
pub const CONSTRAINTS: &str = "constraints";
/// `true` disables repairs that the registry requests.
pub const AUTO_REPAIR_DISABLED: &str = "auto-repair/disabled";
/// Variables of the registry query that selects machines for repair.
pub const AUTO_REPAIR_VARIABLES: &str = "auto-repair/query-variables";
/// Prefix of the candidates' keys, `leader//<lease id in hex>`: CKE's election adds a slash to `leader/`.
pub const LEADER: &str = "leader//";
/// Next id of an operation record, as a decimal string.
pub const RECORD_ID: &str = "records";
/// Operation records, `records/<16 hex digits>`.
pub const RECORDS: &str = "records/";
/// `true` disables the integration with the registry.
pub const SABAKAN_DISABLED: &str = "sabakan/disabled";
/// Variables of the registry query that selects machines for the cluster.
pub const SABAKAN_VARIABLES: &str = "sabakan/query-variables";
/// The operator's cluster template, as JSON.
pub const SABAKAN_TEMPLATE: &str = "sabakan/template";
/// URL of the registry's GraphQL API.
pub const SABAKAN_URL: &str = "sabakan/url";
/// The phase of the leader, bound to its lease.
pub const STATUS: &str = "status";
/// Entries of the repair queue, `repairs/data/<16 hex digits>`.
pub const REPAIRS: &str = "repairs/data/";
/// `true` disables drains and commands of the repair queue.
pub const REPAIRS_DISABLED: &str = "repairs/disabled";
/// Number of the next entry of the repair queue, as a decimal string.
pub const REPAIRS_WRITE_INDEX: &str = "repairs/write-index";
/// Entries of the reboot queue, `reboots/data/<16 hex digits>`.
pub const REBOOTS: &str = "reboots/data/";
/// Number of the next entry of the reboot queue, as a decimal string.
pub const REBOOTS_WRITE_INDEX: &str = "reboots/write-index";
/// `true` disables the reboot queue.
pub const REBOOTS_DISABLED: &str = "reboots/disabled";
/// `true` while the leader, Madako's or CKE's, processes the reboot queue.
pub const REBOOTS_RUNNING: &str = "reboots/running";
/// User-defined resources, `resource/<kind>[/<namespace>]/<name>`, as typed.
pub const RESOURCES: &str = "resource/";
/// Madako's own state of each entry of the repair queue, `madako/repair/entries/<16 hex digits>`.
pub const REPAIR_KEPT: &str = "madako/repair/entries/";
/// State of the removal guard.
pub const REMOVAL_GUARD: &str = "madako/removal-guard";
/// Obstacles to planning and repairing, each with its start time.
pub const OBSTACLES: &str = "madako/obstacles";
/// Settings of the leader.
pub const SETTINGS: &str = "madako/settings";
/// Held racks, `madako/repair/holds/<the label's value>`.
pub const REPAIR_HOLDS: &str = "madako/repair/holds/";
/// Entries of the reboot queue that an operator released after their nodes did not boot.
pub const REBOOTS_RELEASED: &str = "madako/reboots/released";
/// The last committed plan, with its reasons.
pub const LAST_PLAN: &str = "madako/decisions/cluster-plan";

/// The reasons for which the nodes of the cluster have their parts.
pub const CHOICES: &str = "madako/decisions/choices";

/// Form of the stored cluster: `2`; an absent key means 1.
pub const CONFIG_VERSION: &str = "config-version";
/// Certificates of the authorities in PEM, `ca/<name>`.
pub const CA: &str = "ca/";
/// Encrypted keys of the authorities, `madako/pki/<name>`.
pub const CA_KEYS: &str = "madako/pki/";
/// The access to Vault, as JSON; without it, the authorities are the built-in ones.
pub const VAULT: &str = "vault";
/// The certificate with which API servers check tokens of service accounts, in PEM (CKE's).
pub const SERVICE_ACCOUNT_CERTIFICATE: &str = "service-account/certificate";
/// Its private key in PEM, as CKE stores it. Without Vault, [`SERVICE_ACCOUNT_ENCRYPTED`] has it.
pub const SERVICE_ACCOUNT_KEY: &str = "service-account/key";
/// The encrypted private key of service accounts.
pub const SERVICE_ACCOUNT_ENCRYPTED: &str = "madako/pki/service-account";
/// The encrypted keys with which API servers encrypt Secrets. With Vault, CKE's secret has them.
pub const ENCRYPTION_KEYS: &str = "madako/pki/encryption-keys";
/// Encrypted private keys for the logins on nodes, `madako/ssh/keys/<address>`; the default key has no address.
pub const SSH_KEYS: &str = "madako/ssh/keys/";
/// Pinned host keys, `madako/ssh/host-keys/<address>`.
pub const HOST_KEYS: &str = "madako/ssh/host-keys/";
/// Requests of operators to restart a member of etcd, by the address of the node.
pub const ETCD_RESTARTS: &str = "madako/etcd-restarts/";
/// Request of an operator to restore etcd from a snapshot.
pub const ETCD_RESTORE: &str = "madako/etcd/restore";
/// The last restore of etcd that began.
pub const ETCD_RESTORED: &str = "madako/etcd/restored";
/// The last backup of etcd that counts.
pub const ETCD_BACKUP: &str = "madako/etcd/backup";
/// Container images that the operator set, as JSON `{NAME: IMAGE}`.
pub const IMAGES: &str = "madako/images";
/// Drains of nodes whose kubelets get another minor version, `madako/kubernetes/drains/<16 hex digits>`: entries of the
/// reboot queue that CKE does not see.
pub const UPGRADE_DRAINS: &str = "madako/kubernetes/drains/";
/// The roll of kubelets and proxies.
pub const ROLLOUT: &str = "madako/kubernetes/rollout";
/// The rotation of the key with which API servers encrypt Secrets.
pub const ENCRYPTION_ROTATION: &str = "madako/kubernetes/encryption-rotation";

/// The key of an authority's certificate.
#[must_use]
pub fn ca(authority: Authority) -> String {
    format!("{CA}{authority}")
}

/// The key of an authority's encrypted private key.
#[must_use]
pub fn ca_key(authority: Authority) -> String {
    format!("{CA_KEYS}{authority}")
}

/// The key of an encrypted private key for the logins on a node; an empty address is the default.
#[must_use]
pub fn ssh_key(address: &str) -> String {
    format!("{SSH_KEYS}{address}")
}

/// URL of the leader's pages, bound to its lease.
pub const LEADER_URL: &str = "madako/leader-url";

/// Prefix of the scheduler's state.
pub const PLACEMENT: &str = "madako/placement/";
/// Recent moves of applications, as long as they count against the limit of moves.
pub const PLACEMENT_MOVES: &str = "madako/placement/moves";
/// The last effective decision on each application, `<namespace>/<name>`.
pub const PLACEMENT_DECISIONS: &str = "madako/placement/decisions/";
/// The remembered state of each cluster, if there is any, `<namespace>/<name>`.
pub const PLACEMENT_CLUSTERS: &str = "madako/placement/clusters/";

/// Madako's keys that hold one value of the leader; the leader writes only changed values (I12).
pub const NOTED: [&str; 3] = [REMOVAL_GUARD, OBSTACLES, SETTINGS];

/// The key of a request to restart the member of etcd on a node.
#[must_use]
pub fn etcd_restart(address: &str) -> String {
    format!("{ETCD_RESTARTS}{address}")
}

/// The key of an operation record.
#[must_use]
pub fn record(id: i64) -> String {
    format!("{RECORDS}{id:016x}")
}

/// The key of a held rack.
#[must_use]
pub fn repair_hold_key(rack: &str) -> String {
    format!("{REPAIR_HOLDS}{rack}")
}

/// The key of an entry of the repair queue.
#[must_use]
pub fn repair(index: i64) -> String {
    format!("{REPAIRS}{index:016x}")
}

/// The key of an entry of the reboot queue. A negative index is that of a drain for an upgrade: its bitwise complement is the
/// number in the key.
#[must_use]
pub fn reboot(index: i64) -> String {
    if index < 0 { format!("{UPGRADE_DRAINS}{:016x}", !index) } else { format!("{REBOOTS}{index:016x}") }
}

/// True for a key of an entry of the reboot queue, or of a drain for an upgrade.
#[must_use]
pub fn is_reboot(key: &str) -> bool {
    key.starts_with(REBOOTS) || key.starts_with(UPGRADE_DRAINS)
}

/// The key of Madako's own state of a repair queue entry.
#[must_use]
pub fn repair_state_key(index: i64) -> String {
    format!("{REPAIR_KEPT}{index:016x}")
}

/// The key of the candidate with this lease.
#[must_use]
pub fn leader(lease: i64) -> String {
    format!("{LEADER}{lease:x}")
}

/// The key of a pinned host key.
#[must_use]
pub fn host_key(address: &str) -> String {
    format!("{HOST_KEYS}{address}")
}

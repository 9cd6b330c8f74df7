//! The limits and time-outs of this crate, with unit and derivation.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Serials or labels that a message names; it counts the rest. More do not fit on a line.
pub(crate) const MAX_NODES_SHOWN: usize = 4;

/// Maximum count: CKE's `int` has 32 bits on some machines.
pub(crate) const MAX_COUNT: i64 = i32::MAX as i64;
/// Maximum number of seconds: CKE converts it to nanoseconds in 64 bits.
pub(crate) const MAX_SECONDS: i64 = i64::MAX / 1_000_000_000;

/// Deprecated APIs that are read from the metrics of an API server: Kubernetes has some tens.
pub const MAX_DEPRECATED_APIS: usize = 100;
/// Maximum length of an image's name in characters: a registry's host has at most 255, a repository as many, and a tag
/// 128.
pub const MAX_IMAGE: usize = 640;

/// Bytes of all reasons for which nodes were chosen, together with the nodes' addresses: about 500 nodes. The same request
/// has the cluster, 1.2 KB a node, and etcd accepts requests of 1.5 MiB.
pub(crate) const MOST_CHOICES_BYTES: usize = 128 * 1024;

/// Bytes of the kind of a resource: Kubernetes allows 63.
pub(crate) const MAX_KIND: usize = 63;
/// Bytes of a namespace: a DNS label.
pub(crate) const MAX_NAMESPACE: usize = 63;
/// Bytes of the name of an object: Kubernetes allows 253.
pub(crate) const MAX_OBJECT_NAME: usize = 253;

/// Bytes of a machine; etcd accepts requests of 1.5 MiB.
pub(crate) const MAX_MACHINE_BYTES: usize = 1024 * 1024;

/// Time for which a request to restart a member of etcd counts: the operator who sent it watches for the restart, and a
/// node that comes back later must not stop etcd.
pub(crate) const RESTART_REQUEST_LIFE: time::Duration = time::Duration::hours(1);
/// Time for which a request to restore etcd counts until the restore begins: the operator who sent it watches for it, and
/// a later loss of etcd is another one.
pub(crate) const RESTORE_REQUEST_LIFE: time::Duration = time::Duration::hours(1);

/// Times between two backups of etcd that can be configured: a proof of a large etcd takes minutes, and an operator
/// notices a month without a backup.
pub const BACKUP_EVERY: RangeInclusive<Duration> =
    Duration::from_secs(10 * 60)..=Duration::from_secs(30 * 24 * 3600);
/// Numbers of backups to keep that can be configured: the greatest is a year of three a day.
pub const BACKUPS_KEPT: RangeInclusive<u64> = 1..=1000;

/// A certificate is renewed when less than this fraction of its life is left ...
pub(crate) const RENEWED_PART: i32 = 3;
/// ... or less than this time, whichever is shorter: 30 days are enough for an operator to see alerts and to act.
pub(crate) const RENEWED_BEFORE: time::Duration = time::Duration::days(30);

/// Operation records to keep (CKE's number).
pub const MAX_RECORDS: usize = 1000;
/// Maximum number of records that one transaction deletes: etcd accepts 128 operations.
pub(crate) const MAX_DELETED: usize = 64;

/// Time from a change of the endpoints of API servers until such a server stops or its node reboots: kube-proxies write their
/// rules within a second, and within some seconds on a busy node.
pub const PROXIES_FOLLOW: Duration = Duration::from_secs(5);
/// Default time-out of one run of a command, when its configuration has none or 0. CKE's default is 30 s, and 0 means
/// "no limit" there.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);
/// Default time-out of a health check (CKE's).
pub const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// Default time-out of a success command (CKE's).
pub const SUCCESS_TIMEOUT: Duration = Duration::from_secs(30);
/// Default time-out for pods to end (CKE's).
pub const EVICTION_TIMEOUT: Duration = Duration::from_secs(600);
/// Default number of concurrent repairs (CKE's).
pub const MAX_CONCURRENT_REPAIRS: u32 = 1;
/// Default time limit of a boot: a server with much memory tests it for about ten minutes.
pub const BOOT_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Number of workers that drain or reboot at once by default (CKE).
pub const MAX_CONCURRENT_REBOOTS: u32 = 1;
/// Maximum time of a setting. A longer time has no practical difference, and clocks overflow.
pub(crate) const LONGEST_SETTING: Duration = Duration::from_secs(u32::MAX as u64);

/// Bytes of all annotations of a node, keys and values (Kubernetes' limit).
pub(crate) const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;

/// Bytes of a label's value, and of a label's name without its prefix (Kubernetes' limit).
pub(crate) const MAX_LABEL_NAME: usize = 63;
/// Bytes of a DNS name (RFC 1123, without the final dot).
pub(crate) const MAX_DNS_SUBDOMAIN: usize = 253;

/// Maximum number of metrics that a decision names: more do not fit on a line. `explain` counts the rest.
pub const MAX_METRICS_NAMED: usize = 5;

/// Characters of a number in a constraint. Krake's limit for numbers in comparisons; floats need far fewer.
pub(crate) const MAX_NUMBER: usize = 63;

/// Bytes of a constraint: enough for a list of nearly a thousand values of maximum length. Madako's own limit; Krake
/// limits only requests.
pub const MAX_CONSTRAINT: usize = 64 * 1024;

/// Characters of a label's value, and of its key without the prefix (Krake's limit).
pub(crate) const MAX_LABEL: usize = 63;
/// Characters of the prefix of a label's key (Krake's limit).
pub(crate) const MAX_PREFIX: usize = 253;
/// Characters of a resource's name (Krake's limit).
pub(crate) const MAX_RESOURCE_NAME: usize = 255;

/// Maximum number of comparisons, and of writes, in one transaction: etcd's `--max-txn-ops`, 128 by default, limits
/// each of the two.
pub const MOST_OPERATIONS: usize = 128;
/// Comparisons that the leader adds to a transaction: its fence, and the owner of placement. The leader also
/// compares the revisions of a binding's evidence ([`BindingEvidence`](crate::invariants::BindingEvidence)), unless
/// the transaction compares them already.
pub const ADDED_BY_THE_GATE: usize = 2;
/// Comparisons that remain for a decision after those of the leader.
pub const MOST_CONDITIONS: usize = MOST_OPERATIONS - ADDED_BY_THE_GATE;
/// Bytes of keys and values in one transaction: etcd's `--max-request-bytes` is 1.5 MiB by default, and the rest of
/// the request takes less than a tenth of that.
pub const MOST_TRANSACTION_BYTES: usize = 1_400_000;

/// Maximum length of a stored reason in characters: a few sentences. `madako plan` shows the full reason.
pub(crate) const MOST_CHARACTERS: usize = 1_000;

/// Consecutive polls that must agree before a large removal is carried out (design: three).
pub const POLLS_TO_AGREE: u32 = 3;

const _: () = assert!(
    MOST_TRANSACTION_BYTES + MOST_TRANSACTION_BYTES / 10 < 3 << 19,
    "a request has room for the encoding around keys and values"
);
const _: () = assert!(
    MAX_DELETED * 2 <= MOST_OPERATIONS,
    "a transaction that deletes records has room for its own writes"
);
const _: () = assert!(MAX_MACHINE_BYTES < MOST_TRANSACTION_BYTES, "a request holds a machine");
const _: () = assert!(
    HEALTH_CHECK_TIMEOUT.as_secs() < COMMAND_TIMEOUT.as_secs()
        && EVICTION_TIMEOUT.as_secs() <= LONGEST_SETTING.as_secs(),
    "defaults can be set"
);

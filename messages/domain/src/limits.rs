//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

/// Serials or labels shown before the rest is only counted: more would not fit on a line.
pub(crate) const MAX_NODES_SHOWN: usize = 4;

/// Bytes; etcd takes 1.5 MiB a request.
pub(crate) const MAX_MACHINE_BYTES: usize = 1024 * 1024;

/// Records that are kept (CKE).
pub const MAX_RECORDS: usize = 1000;
/// Records that one transaction deletes at most: etcd takes 128 operations.
pub(crate) const MAX_DELETED: usize = 64;

/// How long one run of a command may take when its configuration says nothing, or 0. CKE gives a repair command 30 s and
/// takes 0 for "no limit".
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a health check may take when its configuration says nothing (CKE).
pub const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a success command may take when its configuration says nothing (CKE).
pub const SUCCESS_TIMEOUT: Duration = Duration::from_secs(30);
/// How long pods may take to end (CKE).
pub const EVICTION_TIMEOUT: Duration = Duration::from_secs(600);
/// Repairs at one time (CKE).
pub const MAX_CONCURRENT_REPAIRS: u32 = 1;
/// Longest time that a setting may mean: a longer one is as good as for ever, and clocks overflow.
pub(crate) const LONGEST_SETTING: Duration = Duration::from_secs(u32::MAX as u64);

/// Bytes of all annotations of a node, keys and values (Kubernetes).
pub(crate) const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;

/// Bytes of a label's value, and of a name after its prefix.
pub(crate) const MAX_LABEL_NAME: usize = 63;
/// Bytes of a DNS name.
pub(crate) const MAX_DNS_SUBDOMAIN: usize = 253;

/// Most metrics that a decision names; the rest are counted by `explain`.
pub const MAX_METRICS_NAMED: usize = 5;

/// Characters of a number. Krake's bound on a number in a comparison, and far more than a float can hold.
pub(crate) const MAX_NUMBER: usize = 63;

/// Bytes of a constraint. Our own bound (Krake has none but that on requests): a list of nearly a thousand
/// values of the greatest length.
pub const MAX_CONSTRAINT: usize = 64 * 1024;

/// Characters of a label's value, and of its key after the prefix.
pub(crate) const MAX_LABEL: usize = 63;
/// Characters of the prefix of a label's key.
pub(crate) const MAX_PREFIX: usize = 253;
/// Characters of the name of a resource.
pub(crate) const MAX_RESOURCE_NAME: usize = 255;

/// Comparisons of one transaction, and writes of one: etcd's `--max-txn-ops`, 128 by default, bounds each of the two.
pub const MOST_OPERATIONS: usize = 128;
/// Comparisons that the leader's gate adds to those of a transaction: its fence, and the owner of placement. What a
/// binding was judged by is compared as well ([`BindingEvidence`](crate::invariants::BindingEvidence)), unless it is
/// compared already.
pub const ADDED_BY_THE_GATE: usize = 2;
/// Comparisons that are left for a decision.
pub const MOST_CONDITIONS: usize = MOST_OPERATIONS - ADDED_BY_THE_GATE;
/// Bytes of keys and values of one transaction: etcd's `--max-request-bytes` is 1.5 MiB by default, and the rest of the request
/// takes less than a tenth of that.
pub const MOST_TRANSACTION_BYTES: usize = 1_400_000;

/// Longest reason that is kept, in characters: a few sentences. `madako plan` tells the rest.
pub(crate) const MOST_CHARACTERS: usize = 1_000;

/// Polls in a row that must agree before a large removal is acted on (design: three).
pub const POLLS_TO_AGREE: u32 = 3;

const _: () = assert!(
    MOST_TRANSACTION_BYTES + MOST_TRANSACTION_BYTES / 10 < 3 << 19,
    "a request has room for what is around keys and values"
);
const _: () = assert!(
    MAX_DELETED * 2 <= MOST_OPERATIONS,
    "a transaction that deletes records has room for what it is made for"
);
const _: () = assert!(MAX_MACHINE_BYTES < MOST_TRANSACTION_BYTES, "a request holds a machine");
const _: () = assert!(
    HEALTH_CHECK_TIMEOUT.as_secs() < COMMAND_TIMEOUT.as_secs()
        && EVICTION_TIMEOUT.as_secs() <= LONGEST_SETTING.as_secs(),
    "defaults can be set"
);

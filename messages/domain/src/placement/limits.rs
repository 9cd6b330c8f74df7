//! What one transaction of placement may hold, for whoever splits what was decided.

/// Comparisons of one transaction, and writes of one: etcd's `--max-txn-ops`, 128 by default, bounds each of the two.
pub const MOST_OPERATIONS: usize = 128;

/// Comparisons that the leader's gate adds to those of a transaction: its fence, and the owner of placement. What a
/// binding was judged by is compared as well ([`BindingEvidence`](crate::invariants::BindingEvidence)), unless it is
/// compared already.
pub const ADDED_BY_THE_GATE: usize = 2;

/// Comparisons that are left for a decision.
pub const MOST_CONDITIONS: usize = MOST_OPERATIONS - ADDED_BY_THE_GATE;

/// Bytes of keys and values of one transaction: etcd's `--max-request-bytes` is 1.5 MiB by default, and what is around
/// them takes less than a tenth of that.
pub const MOST_BYTES: usize = 1_400_000;

const _: () =
    assert!(MOST_BYTES + MOST_BYTES / 10 < 3 << 19, "a request has room for what is around keys and values");

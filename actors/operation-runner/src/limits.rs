//! Limits of this crate, with units and derivations.

/// Nodes on which one operation starts or restarts rivers (CKE's default of `--max-concurrent-updates`).
pub const MAX_CONCURRENT_UPDATES: usize = 10;
/// Members below which the service restarts none by itself: with two members, one that is down stops etcd.
pub const LEAST_MEMBERS_TO_RESTART: usize = 3;

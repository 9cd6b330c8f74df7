//! The etcd of the cluster, over TLS: the port [`EtcdCluster`](madako_protocol::etcd::EtcdCluster), and its backups: the
//! port [`EtcdBackups`](madako_protocol::backup::EtcdBackups), see [`BackupsOnHost`].
//!
//! A request needs a member that knows the present state. [`EtcdMembers`] asks one address after the other for a short
//! lease, each a moment after the one before; the first grant wins. A grant passes through raft and is applied by the
//! member that answers, so this member's list of members is the present one, and all later requests of the call go to
//! it. Without any grant there is no majority, and the list is the one of the latest term.
//!
//! Guarantees:
//! - Every request has a deadline. Dead addresses cost a quarter of a second each.
//! - A change begins only with a valid permit, which is checked before each of its requests, and is abandoned when the
//!   permit ends.
//! - A voting member is in sync if it answers a linearizable read: etcd answers it after the member has applied all
//!   that was committed before. Learners answer serializable reads alone; a learner is in sync if it has the revision
//!   of the lease. Without a grant, it is unknown which members are in sync.
//! - Passwords and private keys are in no error and no `Debug`.
//!
//! Assumes: members listen for clients on their address (their name, or the host of their peer URL) and on one port.
//!
//! Does not: retry a change, or show the keys of Kubernetes, which only a proof reads.

mod backup;
mod connections;
mod failure;
mod limits;
mod members;
mod session;
mod users;

pub use backup::{BackupStep, BackupsOnHost};
pub use members::{CLIENT_PORT, EtcdMembers};

#[cfg(test)]
mod tests;

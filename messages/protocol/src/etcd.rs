//! The port to the etcd of the cluster: the members that operations add, remove and wait for. It is another etcd than
//! the store of this service.
//!
//! `addresses` are the nodes to ask. A request goes to any of them that answers.

use std::collections::BTreeMap;

use async_trait::async_trait;
use madako_domain::node_status::{EtcdMember, EtcdStatus};

use crate::permit::{Permit, PermitEnded};

/// The error of a request to etcd.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// The permit had expired; the change did not begin.
    #[error(transparent)]
    Permit(#[from] PermitEnded),
    /// No member answered in time. A change may have happened.
    #[error("{what}: no member of etcd answered: {why}")]
    Unavailable {
        /// The request in words, for messages.
        what: &'static str,
        /// The failure of the connection or of the exchange.
        why: String,
    },
    /// etcd refused the request.
    #[error("{what}: etcd refused the request: {why}")]
    Refused {
        /// The request in words, for messages.
        what: &'static str,
        /// The message of etcd.
        why: String,
    },
    /// There are no certificates for the request.
    #[error("{what}: {why}")]
    Certificates {
        /// The request in words, for messages.
        what: &'static str,
        /// The error of the authorities.
        why: String,
    },
}

/// The port to the etcd of the cluster. Each call has its own deadline. Each change may run twice.
#[async_trait]
pub trait EtcdCluster: Send + Sync + 'static {
    /// The members, and whether each is in sync: it answers a read with a revision that is not below the revision of
    /// a new lease. etcd is healthy if it grants that lease.
    ///
    /// # Errors
    /// No node listed the members.
    async fn status(&self, addresses: &[String]) -> Result<EtcdStatus, EtcdError>;

    /// The revision that each member has by itself, by address; members that do not answer are missing. It needs no
    /// majority.
    async fn revisions(&self, addresses: &[String]) -> BTreeMap<String, i64>;

    /// Adds a learner, unless a member with this peer URL exists. Returns all members.
    async fn add_learner(
        &self,
        permit: &Permit,
        addresses: &[String],
        peer_url: &str,
    ) -> Result<Vec<EtcdMember>, EtcdError>;

    /// Gives a learner its vote. A voting member stays.
    ///
    /// # Errors
    /// See [`EtcdError`]; etcd refuses a learner that is not in sync yet.
    async fn promote(&self, permit: &Permit, addresses: &[String], id: u64) -> Result<(), EtcdError>;

    /// Removes a member. A missing member is not an error.
    async fn remove(&self, permit: &Permit, addresses: &[String], id: u64) -> Result<(), EtcdError>;

    /// Hands the leadership over to another voting member if the member at this address has it, so that its end costs no
    /// election.
    async fn move_leader(&self, permit: &Permit, addresses: &[String], from: &str) -> Result<(), EtcdError>;

    /// Creates the users and roles of the cluster, which may exist, and turns authentication on.
    async fn set_up_auth(&self, permit: &Permit, addresses: &[String]) -> Result<(), EtcdError>;
}

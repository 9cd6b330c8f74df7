//! The requests of a leader campaign to etcd: lease, candidate key, watch.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse};
use madako_domain::store::{StoreError, StoreErrorKind};
use tokio::time::Instant;

use super::ballot::{self, OwnKey};
use super::session::Session;
use crate::connections::Connections;
use crate::error::lease_is_gone;
use crate::namespace::Namespace;
use crate::telemetry::Operation;

#[derive(Debug)]
pub(super) enum SessionError {
    /// The store reports that the lease has ended.
    Gone,
    /// Any other error; a retry may succeed.
    Store(StoreError),
}

impl From<StoreError> for SessionError {
    fn from(error: StoreError) -> Self {
        if lease_is_gone(&error.why) { Self::Gone } else { Self::Store(error) }
    }
}

/// Requests a lease. If the answer is lost, the lease expires by itself; no key is attached to it.
pub(super) async fn grant(connections: Arc<Connections>, ttl: i64) -> Result<Session, StoreError> {
    let (sent, lease, ttl) = connections
        .send_request(Operation::Grant, "", connections.timeout(), |connection| async move {
            let sent = Instant::now();
            let granted = connection.lease_client().grant(ttl, None).await?;
            Ok((sent, granted.id(), granted.ttl()))
        })
        .await?;
    Session::from_grant(lease, ttl, sent).ok_or_else(|| StoreError {
        operation: Operation::Grant.describe_on(""),
        kind: StoreErrorKind::Other,
        why: format!("the store granted an unusable TTL of {ttl} s"),
    })
}

/// Renews a lease with a new stream each time, so that no broken stream remains. Returns the time of the request: from
/// then on the lease has its full TTL.
pub(super) async fn renew_lease(
    connections: Arc<Connections>,
    lease: i64,
    patience: Duration,
) -> Result<Instant, SessionError> {
    connections
        .send_request(Operation::KeepAlive, &format!("{lease:x}"), patience, |connection| async move {
            let sent = Instant::now();
            connection.lease_client().keep_alive(lease).await?;
            Ok(sent)
        })
        .await
        .map_err(|failed| SessionError::from(failed.error))
}

/// Revokes a lease, which deletes its keys.
pub(super) async fn revoke(
    connections: Arc<Connections>,
    lease: i64,
    patience: Duration,
) -> Result<(), SessionError> {
    connections
        .send_request(Operation::Revoke, &format!("{lease:x}"), patience, |connection| async move {
            connection.lease_client().revoke(lease).await
        })
        .await
        .map(drop)
        .map_err(|failed| SessionError::from(failed.error))
}

/// Puts the candidate's key unless it exists from an earlier attempt whose answer was lost.
pub(super) async fn create_candidate_key(
    connections: Arc<Connections>,
    namespace: Namespace,
    lease: i64,
    host: String,
) -> Result<OwnKey, SessionError> {
    let key = ballot::candidate_key(lease);
    let absolute = namespace.absolute_key(&key);
    let put = TxnOp::put(absolute.clone(), host, Some(PutOptions::new().with_lease(lease)));
    let txn = Txn::new()
        .when([Compare::create_revision(absolute.clone(), CompareOp::Equal, 0)])
        .and_then([put])
        .or_else([TxnOp::get(absolute, Some(GetOptions::new().with_keys_only()))]);
    let answer = connections
        .send_request(Operation::Enrol, &key, connections.timeout(), |connection| {
            let txn = txn.clone();
            async move { connection.kv_client().txn(txn).await }
        })
        .await
        .map_err(|failed| SessionError::from(failed.error))?;
    if answer.succeeded() {
        let revision = answer.header().map_or(0, |header| header.revision());
        return Ok(OwnKey { key, create_revision: revision });
    }
    let found = answer.op_responses().into_iter().find_map(|response| match response {
        TxnOpResponse::Get(got) => got.kvs().first().map(|kv| (kv.create_revision(), kv.lease())),
        _ => None,
    });
    match found {
        Some((create_revision, on)) if on == lease => Ok(OwnKey { key, create_revision }),
        // Another client wrote the key, or just removed it. A new lease gives a new key.
        _ => Err(SessionError::Gone),
    }
}

//! Requests of a campaign to the store.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse};
use madako_domain::store::{StoreError, StoreErrorKind};
use tokio::time::Instant;

use super::ballot::{self, Own};
use super::session::Session;
use crate::error::lease_is_gone;
use crate::lines::Lines;
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
pub(super) async fn grant(lines: Arc<Lines>, ttl: i64) -> Result<Session, StoreError> {
    let (sent, lease, ttl) = lines
        .request(Operation::Grant, "", lines.timeout(), |line| async move {
            let sent = Instant::now();
            let granted = line.lease().grant(ttl, None).await?;
            Ok((sent, granted.id(), granted.ttl()))
        })
        .await?;
    Session::granted(lease, ttl, sent).ok_or_else(|| StoreError {
        operation: Operation::Grant.of(""),
        kind: StoreErrorKind::Other,
        why: format!("the store granted an unusable TTL of {ttl} s"),
    })
}

/// Renews a lease with a new stream each time, so that no broken stream remains. Returns the time of the request: from
/// then on the lease has its full TTL.
pub(super) async fn renew(
    lines: Arc<Lines>,
    lease: i64,
    patience: Duration,
) -> Result<Instant, SessionError> {
    lines
        .request(Operation::KeepAlive, &format!("{lease:x}"), patience, |line| async move {
            let sent = Instant::now();
            line.lease().keep_alive(lease).await?;
            Ok(sent)
        })
        .await
        .map_err(|failed| SessionError::from(failed.told))
}

/// Revokes a lease, which deletes its keys.
pub(super) async fn revoke(lines: Arc<Lines>, lease: i64, patience: Duration) -> Result<(), SessionError> {
    lines
        .request(Operation::Revoke, &format!("{lease:x}"), patience, |line| async move {
            line.lease().revoke(lease).await
        })
        .await
        .map(drop)
        .map_err(|failed| SessionError::from(failed.told))
}

/// Puts the candidate's key unless it exists from an earlier attempt whose answer was lost.
pub(super) async fn enrol(
    lines: Arc<Lines>,
    namespace: Namespace,
    lease: i64,
    host: String,
) -> Result<Own, SessionError> {
    let key = ballot::key(lease);
    let absolute = namespace.absolute(&key);
    let put = TxnOp::put(absolute.clone(), host, Some(PutOptions::new().with_lease(lease)));
    let txn = Txn::new()
        .when([Compare::create_revision(absolute.clone(), CompareOp::Equal, 0)])
        .and_then([put])
        .or_else([TxnOp::get(absolute, Some(GetOptions::new().with_keys_only()))]);
    let answer = lines
        .request(Operation::Enrol, &key, lines.timeout(), |line| {
            let txn = txn.clone();
            async move { line.kv().txn(txn).await }
        })
        .await
        .map_err(|failed| SessionError::from(failed.told))?;
    if answer.succeeded() {
        let revision = answer.header().map_or(0, |header| header.revision());
        return Ok(Own { key, create_revision: revision });
    }
    let found = answer.op_responses().into_iter().find_map(|response| match response {
        TxnOpResponse::Get(got) => got.kvs().first().map(|kv| (kv.create_revision(), kv.lease())),
        _ => None,
    });
    match found {
        Some((create_revision, on)) if on == lease => Ok(Own { key, create_revision }),
        // Another client wrote the key, or just removed it. A new lease gives a new key.
        _ => Err(SessionError::Gone),
    }
}

//! Normalizes answers of the gRPC API before the embedded store is compared with a real etcd: removes the fields that
//! differ by design, which are the IDs of member and cluster, the term, and the exact remaining time of a lease.

use etcd_client::proto::*;
use tonic::{Code, Status};

use crate::generate::Step;
use crate::wire::Wire;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Range(PbRangeResponse),
    Put(PbPutResponse),
    Delete(PbDeleteResponse),
    Txn(PbTxnResponse),
    Compact(PbCompactionResponse),
    Grant(PbLeaseGrantResponse),
    Revoke(PbLeaseRevokeResponse),
    TimeToLive(PbLeaseTimeToLiveResponse),
    Leases(PbLeaseLeasesResponse),
    KeepAlive(PbLeaseKeepAliveResponse),
    HashKv(PbHashKvResponse),
    Refused(Code, String),
}

impl Outcome {
    fn of<T>(answer: Result<T, Status>, wrap: impl FnOnce(T) -> Self) -> Self {
        match answer {
            Ok(answer) => wrap(answer),
            Err(status) => Self::Refused(status.code(), status.message().to_owned()),
        }
    }

    /// The store's revision in the answer's header.
    pub(crate) fn revision(&self) -> Option<i64> {
        let header = match self {
            Self::Range(response) => &response.header,
            Self::Put(response) => &response.header,
            Self::Delete(response) => &response.header,
            Self::Txn(response) => &response.header,
            Self::Compact(response) => &response.header,
            Self::Grant(response) => &response.header,
            Self::Revoke(response) => &response.header,
            Self::TimeToLive(response) => &response.header,
            Self::Leases(response) => &response.header,
            Self::KeepAlive(response) => &response.header,
            Self::HashKv(response) => &response.header,
            Self::Refused(..) => return None,
        };
        header.as_ref().map(|header| header.revision)
    }
}

/// Reduces ids to their presence.
pub(crate) fn normalise(header: &mut Option<PbResponseHeader>) {
    if let Some(header) = header {
        header.cluster_id = u64::from(header.cluster_id != 0);
        header.member_id = u64::from(header.member_id != 0);
        header.raft_term = u64::from(header.raft_term != 0);
    }
}

fn normalise_txn(response: &mut PbTxnResponse) {
    normalise(&mut response.header);
    for inner in &mut response.responses {
        match &mut inner.response {
            Some(PbTxnOpResponse::ResponseRange(response)) => normalise(&mut response.header),
            Some(PbTxnOpResponse::ResponsePut(response)) => normalise(&mut response.header),
            Some(PbTxnOpResponse::ResponseDeleteRange(response)) => normalise(&mut response.header),
            Some(PbTxnOpResponse::ResponseTxn(response)) => normalise_txn(response),
            None => {}
        }
    }
}

/// Runs a step other than a watch.
pub(crate) async fn perform(wire: &Wire, step: &Step) -> Outcome {
    macro_rules! simple {
        ($call:ident, $request:expr, $variant:ident) => {
            Outcome::of(wire.$call($request).await, |mut response| {
                normalise(&mut response.header);
                Outcome::$variant(response)
            })
        };
    }
    match step.clone() {
        Step::Range(request) => simple!(range, request, Range),
        Step::Put(request) => simple!(put, request, Put),
        Step::Delete(request) => simple!(delete, request, Delete),
        Step::Compact(request) => simple!(compact, request, Compact),
        Step::Grant(request) => simple!(grant, request, Grant),
        Step::Revoke(request) => simple!(revoke, request, Revoke),
        Step::KeepAlive(id) => simple!(keep_alive, id, KeepAlive),
        Step::HashKv(request) => Outcome::of(wire.hash_kv(request).await, |mut response| {
            normalise(&mut response.header);
            // Newer than the etcd of the comparison.
            response.hash_revision = 0;
            Outcome::HashKv(response)
        }),
        Step::Txn(request) => Outcome::of(wire.txn(request).await, |mut response| {
            normalise_txn(&mut response);
            Outcome::Txn(response)
        }),
        Step::TimeToLive(request) => Outcome::of(wire.time_to_live(request).await, |mut response| {
            normalise(&mut response.header);
            response.keys.sort();
            // The steps take less than half a minute, and no lease is shorter than ten minutes.
            if response.ttl > 0 && (response.granted_ttl - 30..=response.granted_ttl).contains(&response.ttl)
            {
                response.ttl = response.granted_ttl;
            }
            Outcome::TimeToLive(response)
        }),
        Step::Leases => Outcome::of(wire.leases(PbLeaseLeasesRequest {}).await, |mut response| {
            normalise(&mut response.header);
            response.leases.sort_by_key(|lease| lease.id);
            Outcome::Leases(response)
        }),
        Step::Watch(_) => unreachable!("watches are performed on their stream"),
    }
}

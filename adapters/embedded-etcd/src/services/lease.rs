//! The gRPC service `Lease`: leases are granted and revoked through the writer, and kept alive in memory.

use std::sync::Arc;

use etcd_client::proto::{
    PbLeaseGrantRequest, PbLeaseGrantResponse, PbLeaseKeepAliveRequest, PbLeaseKeepAliveResponse,
    PbLeaseLeasesRequest, PbLeaseLeasesResponse, PbLeaseRevokeRequest, PbLeaseRevokeResponse, PbLeaseService,
    PbLeaseStatus, PbLeaseTimeToLiveRequest, PbLeaseTimeToLiveResponse,
};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Answers, ServiceState, ok_response, unexpected_answer};
use crate::leases::Renewal;
use crate::limits::MAX_WAITING_ANSWERS;
use crate::request_error::RequestError;
use crate::store::{Answer, Operation, Store};

#[tonic::async_trait]
impl PbLeaseService for ServiceState {
    async fn lease_grant(
        &self,
        request: Request<PbLeaseGrantRequest>,
    ) -> Result<Response<PbLeaseGrantResponse>, Status> {
        let PbLeaseGrantRequest { id, ttl } = request.into_inner();
        let owner = self.owner.clone();
        match self.store.write(Operation::Grant { id, ttl_seconds: ttl, owner }).await? {
            Answer::Granted { id, ttl_seconds, revision } => ok_response(PbLeaseGrantResponse {
                header: Some(self.store.response_header(revision)),
                id,
                ttl: ttl_seconds,
                error: String::new(),
            }),
            _ => Err(unexpected_answer()),
        }
    }

    async fn lease_revoke(
        &self,
        request: Request<PbLeaseRevokeRequest>,
    ) -> Result<Response<PbLeaseRevokeResponse>, Status> {
        match self.store.write(Operation::Revoke { id: request.into_inner().id }).await? {
            Answer::Done { revision } => {
                ok_response(PbLeaseRevokeResponse { header: Some(self.store.response_header(revision)) })
            }
            _ => Err(unexpected_answer()),
        }
    }

    type LeaseKeepAliveStream = Answers<PbLeaseKeepAliveResponse>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<PbLeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let (answers, receiver) = mpsc::channel(MAX_WAITING_ANSWERS);
        tokio::spawn(keep_alive(Arc::clone(&self.store), request.into_inner(), answers));
        ok_response(Box::pin(ReceiverStream::new(receiver)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<PbLeaseTimeToLiveRequest>,
    ) -> Result<Response<PbLeaseTimeToLiveResponse>, Status> {
        let PbLeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let state = self.store.lock_state();
        let header = Some(self.store.response_header(state.view.current));
        let (Some(lease), Some(remaining)) =
            (state.leases.table().get(id), state.leases.remaining_time(id, Instant::now()))
        else {
            return ok_response(PbLeaseTimeToLiveResponse {
                header,
                id,
                ttl: -1,
                ..PbLeaseTimeToLiveResponse::default()
            });
        };
        ok_response(PbLeaseTimeToLiveResponse {
            header,
            id,
            ttl: remaining.as_secs() as i64,
            granted_ttl: lease.ttl_seconds,
            keys: if keys { lease.keys.iter().cloned().collect() } else { Vec::new() },
        })
    }

    async fn lease_leases(
        &self,
        _: Request<PbLeaseLeasesRequest>,
    ) -> Result<Response<PbLeaseLeasesResponse>, Status> {
        let state = self.store.lock_state();
        ok_response(PbLeaseLeasesResponse {
            header: Some(self.store.response_header(state.view.current)),
            leases: state.leases.in_order_of_end().map(|id| PbLeaseStatus { id }).collect(),
        })
    }
}

async fn keep_alive(
    store: Arc<Store>,
    mut requests: Streaming<PbLeaseKeepAliveRequest>,
    answers: mpsc::Sender<Result<PbLeaseKeepAliveResponse, Status>>,
) {
    let stopping = store.watch_stop();
    loop {
        let request = tokio::select! {
            biased;
            () = stopping.wait() => {
                // The client may have disconnected.
                let _ = answers.try_send(Err(RequestError::Stopped.into()));
                return;
            }
            () = answers.closed() => return,
            request = requests.message() => request,
        };
        let Ok(Some(PbLeaseKeepAliveRequest { id })) = request else { return };
        // The header is older than the renewal: a client must not see a keep-alive succeed at a revision at which the
        // lease was already revoked.
        let header = store.current_header();
        let answer = renew_lease(&store, id).await.map(|ttl| PbLeaseKeepAliveResponse {
            header: Some(header),
            id,
            ttl,
        });
        let ends = answer.is_err();
        if answers.send(answer.map_err(Status::from)).await.is_err() || ends {
            return;
        }
    }
}

/// The new time to live in seconds; 0 for a lease that does not exist.
async fn renew_lease(store: &Store, id: i64) -> Result<i64, RequestError> {
    match store.renew(id) {
        Renewal::Renewed { ttl_seconds } => Ok(ttl_seconds),
        Renewal::Unknown => Ok(0),
        // Its keys must be deleted before the client gets the answer.
        Renewal::Ended => match store.write(Operation::Revoke { id }).await {
            Ok(_) | Err(RequestError::LeaseNotFound) => Ok(0),
            Err(refusal) => Err(refusal),
        },
    }
}

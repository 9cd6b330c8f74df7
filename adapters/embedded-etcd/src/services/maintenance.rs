//! The gRPC service `Maintenance`: status, alarms, defragmentation, hashes, snapshots.

use std::sync::atomic::Ordering;

use etcd_client::proto::{
    PbAlarmMember, PbAlarmRequest, PbAlarmResponse, PbDefragmentRequest, PbDefragmentResponse,
    PbDowngradeRequest, PbDowngradeResponse, PbHashKvRequest, PbHashKvResponse, PbHashRequest,
    PbHashResponse, PbMaintenanceService, PbMoveLeaderRequest, PbMoveLeaderResponse, PbSnapshotRequest,
    PbSnapshotResponse, PbStatusRequest, PbStatusResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{Answers, ETCD_VERSION, ServiceState, ok_response};
use crate::hash::hash_kv;
use crate::limits::MAX_WAITING_PARTS;
use crate::request_error::RequestError;
use crate::store::Operation;

/// `AlarmAction` and `AlarmType` of the protocol.
const GET: i32 = 0;
const ACTIVATE: i32 = 1;
const DEACTIVATE: i32 = 2;
const NO_TYPE: i32 = 0;
const TYPES: std::ops::RangeInclusive<i32> = 1..=2;

#[tonic::async_trait]
impl PbMaintenanceService for ServiceState {
    async fn alarm(&self, request: Request<PbAlarmRequest>) -> Result<Response<PbAlarmResponse>, Status> {
        let PbAlarmRequest { action, alarm, .. } = request.into_inner();
        let wanted: Vec<i32> = TYPES.filter(|known| alarm == NO_TYPE || alarm == *known).collect();
        let on = self.store.lock_state().alarms;
        let active = |alarm: &i32| on & (1 << alarm) != 0;
        let alarms: Vec<i32> = match action {
            GET => wanted.into_iter().filter(active).collect(),
            ACTIVATE if TYPES.contains(&alarm) => {
                self.store.write(Operation::SetAlarms { alarms: on | (1 << alarm) }).await?;
                vec![alarm]
            }
            DEACTIVATE => {
                let ended: Vec<_> = wanted.into_iter().filter(active).collect();
                let rest = ended.iter().fold(on, |on, alarm| on & !(1 << alarm));
                if rest != on {
                    self.store.write(Operation::SetAlarms { alarms: rest }).await?;
                }
                ended
            }
            _ => Vec::new(),
        };
        let member_id = self.store.identity.member_id;
        ok_response(PbAlarmResponse {
            header: Some(self.store.current_header()),
            alarms: alarms.into_iter().map(|alarm| PbAlarmMember { member_id, alarm }).collect(),
        })
    }

    async fn status(&self, _: Request<PbStatusRequest>) -> Result<Response<PbStatusResponse>, Status> {
        let (current, alarms) = {
            let state = self.store.lock_state();
            (state.view.current, state.alarms)
        };
        let mut errors: Vec<String> = TYPES
            .filter(|alarm| alarms & (1 << alarm) != 0)
            .map(|alarm| {
                let name = if alarm == 1 { "NOSPACE" } else { "CORRUPT" };
                format!("memberID:{} alarm:{name} ", self.store.identity.member_id)
            })
            .collect();
        errors.extend(self.store.failure.reason().map(|reason| RequestError::Failed(reason).to_string()));
        ok_response(PbStatusResponse {
            header: Some(self.store.response_header(current)),
            version: ETCD_VERSION.to_owned(),
            db_size: self.store.disk.len() as i64,
            db_size_in_use: self.store.data_bytes.load(Ordering::Relaxed) as i64,
            leader: self.store.identity.member_id,
            // There is no Raft log; the revision grows as its index would.
            raft_index: current as u64,
            raft_applied_index: current as u64,
            raft_term: self.store.identity.term,
            errors,
            storage_version: String::new(),
            ..PbStatusResponse::default()
        })
    }

    async fn defragment(
        &self,
        _: Request<PbDefragmentRequest>,
    ) -> Result<Response<PbDefragmentResponse>, Status> {
        self.store.write(Operation::Defragment).await?;
        ok_response(PbDefragmentResponse { header: None })
    }

    async fn hash(&self, _: Request<PbHashRequest>) -> Result<Response<PbHashResponse>, Status> {
        let hash = hash_kv(&self.store, 0)?;
        ok_response(PbHashResponse {
            header: Some(self.store.response_header(hash.current)),
            hash: hash.hash,
        })
    }

    async fn hash_kv(&self, request: Request<PbHashKvRequest>) -> Result<Response<PbHashKvResponse>, Status> {
        let hash = hash_kv(&self.store, request.into_inner().revision)?;
        ok_response(PbHashKvResponse {
            header: Some(self.store.response_header(hash.current)),
            hash: hash.hash,
            compact_revision: hash.compacted,
            hash_revision: hash.revision,
        })
    }

    type SnapshotStream = Answers<PbSnapshotResponse>;

    async fn snapshot(
        &self,
        _: Request<PbSnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let snapshot = self.store.take_snapshot()?;
        let (parts, receiver) = mpsc::channel(MAX_WAITING_PARTS);
        tokio::spawn(async move {
            if let Err(refusal) = crate::snapshot::send_snapshot(snapshot, &parts).await {
                // The client may have disconnected: most incomplete snapshots end this way.
                let _ = parts.send(Err(refusal.into())).await;
            }
        });
        ok_response(Box::pin(ReceiverStream::new(receiver)))
    }

    async fn move_leader(
        &self,
        _: Request<PbMoveLeaderRequest>,
    ) -> Result<Response<PbMoveLeaderResponse>, Status> {
        Err(Status::failed_precondition("etcdserver: bad leader transferee"))
    }

    async fn downgrade(
        &self,
        _: Request<PbDowngradeRequest>,
    ) -> Result<Response<PbDowngradeResponse>, Status> {
        Err(RequestError::Unsupported("it has one version of its own and cannot be downgraded").into())
    }
}

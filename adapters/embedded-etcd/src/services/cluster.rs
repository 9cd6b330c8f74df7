//! The gRPC service `Cluster`: a fixed membership of one member.

use etcd_client::proto::{
    PbClusterService, PbMember, PbMemberAddRequest, PbMemberAddResponse, PbMemberListRequest,
    PbMemberListResponse, PbMemberPromoteRequest, PbMemberPromoteResponse, PbMemberRemoveRequest,
    PbMemberRemoveResponse, PbMemberUpdateRequest, PbMemberUpdateResponse,
};
use tonic::{Request, Response, Status};

use super::{ServiceState, ok_response};
use crate::request_error::RequestError;

const ALONE: RequestError = RequestError::Unsupported(
    "it is always one member and its membership cannot be changed; use an etcd cluster for more",
);

#[tonic::async_trait]
impl PbClusterService for ServiceState {
    async fn member_list(
        &self,
        _: Request<PbMemberListRequest>,
    ) -> Result<Response<PbMemberListResponse>, Status> {
        ok_response(PbMemberListResponse {
            header: Some(self.store.current_header()),
            members: vec![PbMember {
                id: self.store.identity.member_id,
                name: self.name.to_string(),
                client_ur_ls: self.client_urls.to_vec(),
                ..PbMember::default()
            }],
        })
    }

    async fn member_add(
        &self,
        _: Request<PbMemberAddRequest>,
    ) -> Result<Response<PbMemberAddResponse>, Status> {
        Err(ALONE.into())
    }

    async fn member_remove(
        &self,
        _: Request<PbMemberRemoveRequest>,
    ) -> Result<Response<PbMemberRemoveResponse>, Status> {
        Err(ALONE.into())
    }

    async fn member_update(
        &self,
        _: Request<PbMemberUpdateRequest>,
    ) -> Result<Response<PbMemberUpdateResponse>, Status> {
        Err(ALONE.into())
    }

    async fn member_promote(
        &self,
        _: Request<PbMemberPromoteRequest>,
    ) -> Result<Response<PbMemberPromoteResponse>, Status> {
        Err(ALONE.into())
    }
}

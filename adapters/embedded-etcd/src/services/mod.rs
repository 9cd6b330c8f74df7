//! The gRPC services of the etcd v3 API, over the store.

mod auth;
mod cluster;
mod kv;
mod lease;
mod maintenance;
mod range;
mod unary;
mod watch;

use std::pin::Pin;
use std::sync::Arc;

use etcd_client::proto::{
    PbClusterServer, PbKvServer, PbLeaseServer, PbMaintenanceServer, PbResponseHeader, PbWatchServer,
};
use tokio_stream::Stream;
use tonic::{Response, Status};

use crate::store::Store;

/// The release of etcd whose answers the contract suite compares with.
pub(crate) const ETCD_VERSION: &str = "3.4.23";
pub(crate) const ETCD_CLUSTER_VERSION: &str = "3.4.0";

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// All services; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ServiceState {
    store: Arc<Store>,
    /// Name in `member list`.
    name: Arc<str>,
    client_urls: Arc<[String]>,
    /// Mark that is recorded with each granted lease.
    owner: Option<Arc<str>>,
}

impl ServiceState {
    pub(crate) fn new(store: Arc<Store>, name: &str, client_urls: &[String]) -> Self {
        Self { store, name: name.into(), client_urls: client_urls.into(), owner: None }
    }

    /// The services of the owner's own client; its leases are recorded with this mark.
    pub(crate) fn for_owner(&self, owner: &str) -> Self {
        Self { owner: Some(owner.into()), ..self.clone() }
    }

    /// Routes of all services, gRPC and HTTP.
    pub(crate) fn router(&self) -> axum::Router {
        let limit = self.store.message_limit();
        let grpc = tonic::service::Routes::new(
            PbKvServer::new(self.clone())
                .max_decoding_message_size(limit)
                .max_encoding_message_size(usize::MAX),
        )
        .add_service(
            PbWatchServer::new(self.clone())
                .max_decoding_message_size(limit)
                .max_encoding_message_size(usize::MAX),
        )
        .add_service(PbLeaseServer::new(self.clone()).max_encoding_message_size(usize::MAX))
        .add_service(PbMaintenanceServer::new(self.clone()))
        .add_service(PbClusterServer::new(self.clone()));
        let grpc = range::add_to(grpc.into_axum_router(), Arc::clone(&self.store))
            .layer(axum::middleware::map_response(unary::refuse_as_etcd));
        let grpc = auth::add_to(grpc, Arc::clone(&self.store));
        crate::net::http::add_health_routes(grpc, Arc::clone(&self.store))
    }

    /// Completes a header that has only its revision.
    fn complete(&self, header: &mut Option<PbResponseHeader>) {
        if let Some(header) = header {
            *header = self.store.response_header(header.revision);
        }
    }
}

fn unexpected_answer() -> Status {
    Status::internal("embedded store: the writer's answer does not fit the request")
}

fn ok_response<T>(answer: T) -> Result<Response<T>, Status> {
    Ok(Response::new(answer))
}

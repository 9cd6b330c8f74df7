//! The gRPC service `Watch`: one task per stream.

use std::sync::Arc;

use etcd_client::proto::{PbWatchRequest, PbWatchResponse, PbWatchService};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Answers, ServiceState, ok_response};
use crate::watch::{MAX_WAITING_RESPONSES, WatchStream};

#[tonic::async_trait]
impl PbWatchService for ServiceState {
    type WatchStream = Answers<PbWatchResponse>;

    async fn watch(
        &self,
        request: Request<Streaming<PbWatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (responses, receiver) = mpsc::channel(MAX_WAITING_RESPONSES);
        tokio::spawn(WatchStream::new(Arc::clone(&self.store), responses).run(request.into_inner()));
        ok_response(Box::pin(ReceiverStream::new(receiver)))
    }
}

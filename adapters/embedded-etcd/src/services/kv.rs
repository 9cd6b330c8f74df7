//! The gRPC service `KV`: ranges, writes, transactions, compaction.

use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteRequest, PbDeleteResponse, PbKvService, PbPutRequest,
    PbPutResponse, PbRangeRequest, PbRangeResponse, PbRangeStreamResponse, PbTxnRequest, PbTxnResponse,
};
use prost::Message;
use tonic::{Request, Response, Status};

use super::{Answers, ServiceState, ok_response, unexpected_answer};
use crate::check::{check_delete, check_put, check_size, check_txn, is_read_only};
use crate::limits::STREAMED_PART_BYTES;
use crate::range::check_range;
use crate::store::{Answer, Operation};

/// The answer to a write.
macro_rules! written {
    ($state:ident, $kind:ident($request:ident)) => {
        match $state.store.write(Operation::$kind($request)).await? {
            Answer::$kind(mut response) => {
                $state.complete(&mut response.header);
                ok_response(response)
            }
            _ => Err(unexpected_answer()),
        }
    };
}

#[tonic::async_trait]
impl PbKvService for ServiceState {
    async fn range(&self, request: Request<PbRangeRequest>) -> Result<Response<PbRangeResponse>, Status> {
        let request = request.into_inner();
        check_range(&request)?;
        ok_response(self.store.read_range(&request)?)
    }

    type RangeStreamStream = Answers<PbRangeStreamResponse>;

    async fn range_stream(
        &self,
        request: Request<PbRangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let request = request.into_inner();
        check_range(&request)?;
        let parts = split_answer(self.store.read_range(&request)?);
        ok_response(Box::pin(tokio_stream::iter(
            parts.into_iter().map(|part| Ok(PbRangeStreamResponse { range_response: Some(part) })),
        )))
    }

    async fn put(&self, request: Request<PbPutRequest>) -> Result<Response<PbPutResponse>, Status> {
        let request = request.into_inner();
        check_put(&request)?;
        check_size(&request, self.store.max_request_bytes)?;
        written!(self, Put(request))
    }

    async fn delete_range(
        &self,
        request: Request<PbDeleteRequest>,
    ) -> Result<Response<PbDeleteResponse>, Status> {
        let request = request.into_inner();
        check_delete(&request)?;
        check_size(&request, self.store.max_request_bytes)?;
        written!(self, Delete(request))
    }

    async fn txn(&self, request: Request<PbTxnRequest>) -> Result<Response<PbTxnResponse>, Status> {
        let request = request.into_inner();
        check_txn(&request)?;
        if is_read_only(&request) {
            return ok_response(self.store.read_txn(&request)?);
        }
        check_size(&request, self.store.max_request_bytes)?;
        written!(self, Txn(request))
    }

    async fn compact(
        &self,
        request: Request<PbCompactionRequest>,
    ) -> Result<Response<PbCompactionResponse>, Status> {
        let PbCompactionRequest { revision, physical } = request.into_inner();
        match self.store.write(Operation::Compact { main: revision, physical }).await? {
            Answer::Done { revision } => {
                ok_response(PbCompactionResponse { header: Some(self.store.response_header(revision)) })
            }
            _ => Err(unexpected_answer()),
        }
    }
}

/// Splits an answer into parts; header, count and `more` are in the last part.
fn split_answer(mut whole: PbRangeResponse) -> Vec<PbRangeResponse> {
    let mut parts = Vec::new();
    let mut part = PbRangeResponse::default();
    let mut bytes = 0;
    for kv in std::mem::take(&mut whole.kvs) {
        let added = kv.encoded_len();
        if !part.kvs.is_empty() && bytes + added > STREAMED_PART_BYTES {
            parts.push(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += added;
        part.kvs.push(kv);
    }
    whole.kvs = part.kvs;
    parts.push(whole);
    parts
}

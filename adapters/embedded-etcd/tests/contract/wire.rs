//! Test support: a client that sends any message of the API unchanged, valid or not, and returns any answer unchanged.

use std::marker::PhantomData;

use bytes::Buf;
use etcd_client::proto::*;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

struct Protobuf<E, D>(PhantomData<(E, D)>);

struct Encode<E>(PhantomData<E>);
struct Decode<D>(PhantomData<D>);

impl<E: Message + 'static, D: Message + Default + 'static> Codec for Protobuf<E, D> {
    type Encode = E;
    type Decode = D;
    type Encoder = Encode<E>;
    type Decoder = Decode<D>;

    fn encoder(&mut self) -> Encode<E> {
        Encode(PhantomData)
    }

    fn decoder(&mut self) -> Decode<D> {
        Decode(PhantomData)
    }
}

impl<E: Message> Encoder for Encode<E> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, item: E, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<D: Message + Default> Decoder for Decode<D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        let message = D::decode(&mut *buffer).map_err(|error| Status::internal(error.to_string()))?;
        assert!(!buffer.has_remaining());
        Ok(Some(message))
    }
}

#[derive(Clone)]
pub(crate) struct Wire {
    channel: Channel,
}

macro_rules! calls {
    ($($name:ident($request:ty) -> $response:ty = $path:literal;)*) => {
        impl Wire {
            $(pub(crate) async fn $name(&self, request: $request) -> Result<$response, Status> {
                self.unary($path, request).await
            })*
        }
    };
}

calls! {
    range(PbRangeRequest) -> PbRangeResponse = "/etcdserverpb.KV/Range";
    put(PbPutRequest) -> PbPutResponse = "/etcdserverpb.KV/Put";
    delete(PbDeleteRequest) -> PbDeleteResponse = "/etcdserverpb.KV/DeleteRange";
    txn(PbTxnRequest) -> PbTxnResponse = "/etcdserverpb.KV/Txn";
    compact(PbCompactionRequest) -> PbCompactionResponse = "/etcdserverpb.KV/Compact";
    grant(PbLeaseGrantRequest) -> PbLeaseGrantResponse = "/etcdserverpb.Lease/LeaseGrant";
    revoke(PbLeaseRevokeRequest) -> PbLeaseRevokeResponse = "/etcdserverpb.Lease/LeaseRevoke";
    time_to_live(PbLeaseTimeToLiveRequest) -> PbLeaseTimeToLiveResponse = "/etcdserverpb.Lease/LeaseTimeToLive";
    leases(PbLeaseLeasesRequest) -> PbLeaseLeasesResponse = "/etcdserverpb.Lease/LeaseLeases";
    hash_kv(PbHashKvRequest) -> PbHashKvResponse = "/etcdserverpb.Maintenance/HashKV";
    status(PbStatusRequest) -> PbStatusResponse = "/etcdserverpb.Maintenance/Status";
    alarm(PbAlarmRequest) -> PbAlarmResponse = "/etcdserverpb.Maintenance/Alarm";
}

impl Wire {
    pub(crate) fn to(url: String) -> Self {
        let endpoint = Endpoint::from_shared(url).expect("a url");
        Self { channel: endpoint.connect_lazy() }
    }

    pub(crate) fn over(channel: Channel) -> Self {
        Self { channel }
    }

    async fn unary<Q, R>(&self, path: &'static str, request: Q) -> Result<R, Status>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let codec = Protobuf::<Q, R>(PhantomData);
        Ok(grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await?.into_inner())
    }

    /// Opens a stream with its first request: a real etcd sends not even headers before it receives one.
    async fn stream<Q, R>(
        &self,
        path: &'static str,
        first: Q,
    ) -> Result<(mpsc::Sender<Q>, Streaming<R>), Status>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let (requests, receiver) = mpsc::channel(16);
        requests.send(first).await.expect("the receiver is there");
        let codec = Protobuf::<Q, R>(PhantomData);
        let responses = grpc
            .streaming(Request::new(ReceiverStream::new(receiver)), PathAndQuery::from_static(path), codec)
            .await?
            .into_inner();
        Ok((requests, responses))
    }

    /// A watch stream; its first response answers a progress request.
    pub(crate) async fn watch(
        &self,
    ) -> Result<(mpsc::Sender<PbWatchRequest>, Streaming<PbWatchResponse>), Status> {
        self.stream("/etcdserverpb.Watch/Watch", progress_request()).await
    }

    /// One keep-alive on its own stream.
    pub(crate) async fn keep_alive(&self, id: i64) -> Result<PbLeaseKeepAliveResponse, Status> {
        let first = PbLeaseKeepAliveRequest { id };
        let (_requests, mut responses) = self.stream("/etcdserverpb.Lease/LeaseKeepAlive", first).await?;
        responses.message().await?.ok_or_else(|| Status::unavailable("the stream ended"))
    }
}

pub(crate) fn progress_request() -> PbWatchRequest {
    PbWatchRequest { request_union: Some(PbWatchRequestUnion::ProgressRequest(Default::default())) }
}

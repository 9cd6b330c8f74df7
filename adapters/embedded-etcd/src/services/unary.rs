//! Calls of one request and one answer that are served without generated code.

use axum::body::Body;
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use http_body_util::{BodyExt, Full, Limited};
use prost::Message;
use tonic::Status;

use super::MESSAGE_OVERHEAD_BYTES;
use crate::options::DEFAULT_MAX_REQUEST_BYTES;

/// Before each message: whether it is compressed, and its length.
pub(super) const PREFIX_BYTES: usize = 5;

/// The one request of a call.
pub(super) async fn request<M: Message + Default>(body: Body) -> Result<M, Status> {
    let body = Limited::new(body, PREFIX_BYTES + DEFAULT_MAX_REQUEST_BYTES + MESSAGE_OVERHEAD_BYTES)
        .collect()
        .await
        .map_err(|error| Status::out_of_range(format!("reading the request: {error}")))?
        .to_bytes();
    let malformed = || Status::internal("the request is not one message of gRPC");
    let (prefix, message) = body.split_first_chunk::<PREFIX_BYTES>().ok_or_else(malformed)?;
    let [compressed, length @ ..] = *prefix;
    if compressed != 0 {
        return Err(Status::unimplemented("compressed requests are not supported"));
    }
    if u32::from_be_bytes(length) as usize != message.len() {
        return Err(malformed());
    }
    M::decode(message).map_err(|error| Status::internal(format!("decoding the request: {error}")))
}

/// An answer that begins with room for its prefix, as the whole of a call that succeeded.
pub(super) fn answer(mut frame: BytesMut) -> Response {
    let length = u32::try_from(frame.len() - PREFIX_BYTES);
    let Ok(length) = length else {
        return Status::out_of_range("the answer is larger than a message of gRPC can be").into_http();
    };
    frame[0] = 0;
    frame[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(Bytes::from(frame)).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// A message with room for its prefix.
pub(super) fn frame(message: &impl Message) -> BytesMut {
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + message.encoded_len());
    frame.put_bytes(0, PREFIX_BYTES);
    frame.extend_from_slice(&message.encode_to_vec());
    frame
}

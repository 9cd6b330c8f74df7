//! Serves unary gRPC calls (one request, one answer) without tonic's generated code, so that refusals have etcd's codes
//! and texts.

use std::fmt::Display;

use axum::body::Body;
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use http_body_util::{BodyExt, Full};
use prost::Message;
use tonic::Status;

/// Length of a message's prefix: a compression flag and the message length.
pub(super) const PREFIX_BYTES: usize = 5;

/// tonic's text for a message above its limit; etcd's gRPC uses another code and text.
const TOO_LARGE_IN_TONIC: &str = "Error, decoded message length too large: found ";

/// gRPC in Go refuses a message above its limit in this way, before etcd reads the message.
fn message_too_large(found: impl Display, limit: impl Display) -> Status {
    Status::resource_exhausted(format!("grpc: received message larger than max ({found} vs. {limit})"))
}

/// Replaces tonic's code and text for oversized messages by etcd's.
pub(super) async fn refuse_as_etcd(response: Response) -> Response {
    let refused = Status::from_header_map(response.headers()).and_then(|status| {
        let sizes = status.message().strip_prefix(TOO_LARGE_IN_TONIC)?.strip_suffix(" bytes")?;
        let (found, limit) = sizes.split_once(" bytes, the limit is: ")?;
        Some(message_too_large(found, limit))
    });
    refused.map_or(response, Status::into_http)
}

/// The single request of a call, of at most `limit` bytes.
pub(super) async fn decode_request<M: Message + Default>(mut body: Body, limit: usize) -> Result<M, Status> {
    let malformed = || Status::internal("the request is not one message of gRPC");
    let mut received = BytesMut::new();
    let mut length = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Status::internal(format!("reading the request: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        received.extend_from_slice(&data);
        if let Some([compressed, bytes @ ..]) = received.first_chunk::<PREFIX_BYTES>() {
            if *compressed != 0 {
                return Err(Status::unimplemented("compressed requests are not supported"));
            }
            let announced = u32::from_be_bytes(*bytes) as usize;
            if announced > limit {
                return Err(message_too_large(announced, limit));
            }
            if received.len() > PREFIX_BYTES + announced {
                return Err(malformed());
            }
            length = Some(announced);
        }
    }
    if length.is_none_or(|length| received.len() < PREFIX_BYTES + length) {
        return Err(malformed());
    }
    M::decode(received.split_off(PREFIX_BYTES))
        .map_err(|error| Status::internal(format!("decoding the request: {error}")))
}

/// A successful answer from a frame with room for its prefix.
pub(super) fn frame_response(mut frame: BytesMut) -> Response {
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
pub(super) fn frame_message(message: &impl Message) -> BytesMut {
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + message.encoded_len());
    frame.put_bytes(0, PREFIX_BYTES);
    frame.extend_from_slice(&message.encode_to_vec());
    frame
}

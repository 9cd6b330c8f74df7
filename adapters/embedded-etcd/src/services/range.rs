//! `KV/Range`, encoded from the file's pages directly into the answer: a large range copies each value once.
//!
//! Produces the same bytes as the generated service (a test compares them). The generated service still serves ranges
//! within transactions and streams.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use bytes::BytesMut;
use etcd_client::proto::PbRangeRequest;
use tonic::Status;

use super::unary;
use crate::range::check_range;
use crate::store::Store;

pub(super) fn add_to(router: Router, store: Arc<Store>) -> Router {
    router.route("/etcdserverpb.KV/Range", post(serve_range).with_state(store))
}

async fn serve_range(State(store): State<Arc<Store>>, body: Body) -> Response {
    match answer_range(&store, body).await {
        Ok(frame) => unary::frame_response(frame),
        Err(status) => status.into_http(),
    }
}

async fn answer_range(store: &Store, body: Body) -> Result<BytesMut, Status> {
    let request: PbRangeRequest = unary::decode_request(body, store.message_limit()).await?;
    check_range(&request)?;
    Ok(store.encode_range(&request, unary::PREFIX_BYTES)?)
}

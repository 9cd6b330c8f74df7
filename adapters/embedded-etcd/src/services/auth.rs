//! Auth: there are no users, and the answers say so as an etcd without users says it.
//!
//! Served by hand: the messages of `AuthStatus` are not among those that etcd-client gives out.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::post;
use bytes::{BufMut, BytesMut};
use etcd_client::proto::{PbAuthDisableResponse, PbAuthUserListResponse, PbResponseHeader};
use http::{HeaderMap, HeaderValue};
use http_body_util::{BodyExt, Full};
use prost::Message;
use tonic::{Code, Status};

use crate::refusal::Refusal;
use crate::store::Store;

const NO_USERS: Refusal =
    Refusal::Unsupported("it has no users and roles; access is limited by its TLS client certificates");

/// `AuthStatusResponse` of the protocol.
#[derive(Clone, PartialEq, Message)]
struct AuthStatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<PbResponseHeader>,
    #[prost(bool, tag = "2")]
    enabled: bool,
    #[prost(uint64, tag = "3")]
    auth_revision: u64,
}

pub(super) fn add_to(router: Router, store: Arc<Store>) -> Router {
    router.route("/etcdserverpb.Auth/{method}", post(answer).with_state(store))
}

async fn answer(Path(method): Path<String>, State(store): State<Arc<Store>>) -> Response {
    let header = Some(store.current_header());
    let refused = |code, text: &str| Status::new(code, text).into_http();
    match method.as_str() {
        "AuthStatus" => message(&AuthStatusResponse { header, enabled: false, auth_revision: 1 }),
        "AuthDisable" => message(&PbAuthDisableResponse { header }),
        // The answer about roles has the same form.
        "UserList" | "RoleList" => message(&PbAuthUserListResponse { header, users: Vec::new() }),
        "AuthEnable" => refused(Code::FailedPrecondition, "etcdserver: root user does not exist"),
        "Authenticate" => refused(Code::FailedPrecondition, "etcdserver: authentication is not enabled"),
        "UserGet" | "UserDelete" | "UserChangePassword" | "UserGrantRole" | "UserRevokeRole" => {
            refused(Code::FailedPrecondition, "etcdserver: user name not found")
        }
        "RoleGet" | "RoleDelete" | "RoleGrantPermission" | "RoleRevokePermission" => {
            refused(Code::FailedPrecondition, "etcdserver: role name not found")
        }
        "UserAdd" | "RoleAdd" => Status::from(NO_USERS).into_http(),
        _ => Status::unimplemented("").into_http(),
    }
}

/// One message as the whole answer of a call that succeeded.
fn message(message: &impl Message) -> Response {
    let mut frame = BytesMut::with_capacity(5 + message.encoded_len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.encoded_len()).expect("these messages are a few bytes"));
    frame.extend_from_slice(&message.encode_to_vec());
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(frame.freeze()).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(axum::body::Body::new(body));
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

//! The gRPC service `Auth`. There are no users: the answers are those of an etcd without users.
//!
//! Implemented by hand, because etcd-client does not export the messages of `AuthStatus`.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::post;
use etcd_client::proto::{PbAuthDisableResponse, PbAuthUserListResponse, PbResponseHeader};
use prost::Message;
use tonic::{Code, Status};

use super::unary;
use crate::request_error::RequestError;
use crate::store::Store;

const NO_USERS: RequestError =
    RequestError::Unsupported("it has no users and roles; access is limited by its TLS client certificates");

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
    router.route("/etcdserverpb.Auth/{method}", post(answer_call).with_state(store))
}

async fn answer_call(Path(method): Path<String>, State(store): State<Arc<Store>>) -> Response {
    let header = Some(store.current_header());
    let refused = |code, text: &str| Status::new(code, text).into_http();
    match method.as_str() {
        "AuthStatus" => unary::frame_response(unary::frame_message(&AuthStatusResponse {
            header,
            enabled: false,
            auth_revision: 1,
        })),
        "AuthDisable" => unary::frame_response(unary::frame_message(&PbAuthDisableResponse { header })),
        // The answer about roles has the same form.
        "UserList" | "RoleList" => {
            unary::frame_response(unary::frame_message(&PbAuthUserListResponse { header, users: Vec::new() }))
        }
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

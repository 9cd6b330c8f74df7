//! Classifies failures of requests to etcd for the caller.

use std::error::Error as _;

use etcd_client::Error;
use madako_domain::store::{StoreError, StoreErrorKind};
use madako_protocol::causes::{error_chain, message_with_causes};
use tonic::Code;

use crate::limits::LONGEST_ERROR;
use crate::telemetry::Operation;

/// etcd's messages for a token that is unknown, expired or missing.
const TOKEN_REFUSALS: [&str; 3] = [
    "etcdserver: invalid auth token",
    "etcdserver: user name is empty",
    "etcdserver: revision of auth store is old",
];
const AUTH_IS_OFF: &str = "etcdserver: authentication is not enabled";
/// Messages for an oversized request: etcd's, and its gRPC library's for even larger ones.
const REQUEST_IS_TOO_LARGE: [&str; 2] = ["request is too large", "received message larger than max"];
/// Message for an ended lease: etcd's for a put ("requested lease not found"), and etcd-client's for a keep-alive.
const LEASE_IS_GONE: &str = "lease not found";
/// etcd's messages for reads of compacted and of future revisions.
const REVISION_IS_GONE: [&str; 2] =
    ["required revision has been compacted", "required revision is a future revision"];

fn error_message(error: &Error) -> &str {
    match error {
        Error::GRpcStatus(status) => status.message(),
        Error::LeaseKeepAliveError(text) | Error::WatchError(text) => text,
        _ => "",
    }
}

/// True if the store refused the token. The request had no effect, and a new token may be accepted.
pub(crate) fn refuses_token(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status)
        if status.code() == Code::Unauthenticated || TOKEN_REFUSALS.contains(&status.message()))
}

pub(crate) fn auth_is_off(error: &Error) -> bool {
    error_message(error) == AUTH_IS_OFF
}

pub(crate) fn lease_is_gone(why: &str) -> bool {
    why.contains(LEASE_IS_GONE)
}

/// True if the store does not have the revision: it was compacted, or the store was reset to an earlier state.
pub(crate) fn revision_is_gone(error: &Error) -> bool {
    REVISION_IS_GONE.iter().any(|text| error_message(error).contains(text))
}

/// True if the answer exceeded the limit of a message.
pub(crate) fn answer_is_too_large(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status)
        if matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted)
            && (status.message().contains("decoded message length too large")
                || status.message().contains("message larger than max")))
}

/// True if no connection could be opened, so that the store cannot have seen the request.
pub(crate) fn was_never_sent(error: &Error) -> bool {
    let Error::GRpcStatus(status) = error else { return false };
    error_chain(status).any(|cause| cause.is::<tonic::ConnectError>())
}

pub(crate) fn classify_error_kind(error: &Error) -> StoreErrorKind {
    let status = match error {
        Error::GRpcStatus(status) => status,
        Error::TransportError(_) | Error::IoError(_) | Error::WatchError(_) => {
            return StoreErrorKind::Unavailable;
        }
        Error::InvalidArgs(_) | Error::LeaseKeepAliveError(_) => return StoreErrorKind::Invalid,
        _ => return StoreErrorKind::Other,
    };
    // A status from a server has no source; this one represents a broken connection.
    if status.source().is_some() {
        return StoreErrorKind::Unavailable;
    }
    if refuses_token(error) || status.message().contains("authentication failed") {
        return StoreErrorKind::Denied;
    }
    match status.code() {
        // `too many requests` is temporary.
        Code::ResourceExhausted if status.message().contains("too many requests") => {
            StoreErrorKind::Unavailable
        }
        Code::ResourceExhausted if status.message().contains("database space exceeded") => {
            StoreErrorKind::Full
        }
        Code::Unavailable | Code::Cancelled | Code::Aborted => StoreErrorKind::Unavailable,
        Code::DeadlineExceeded => StoreErrorKind::Deadline,
        Code::PermissionDenied | Code::Unauthenticated => StoreErrorKind::Denied,
        Code::InvalidArgument
        | Code::OutOfRange
        | Code::FailedPrecondition
        | Code::NotFound
        | Code::ResourceExhausted => StoreErrorKind::Invalid,
        _ => StoreErrorKind::Other,
    }
}

/// The error with its causes, at most [`LONGEST_ERROR`] bytes.
fn describe_cause(error: &Error) -> String {
    let mut text = match error {
        Error::GRpcStatus(status) => {
            let text = message_with_causes(status.message(), status);
            if text.is_empty() { format!("{:?}", status.code()) } else { text }
        }
        other => other.to_string(),
    };
    if REQUEST_IS_TOO_LARGE.iter().any(|refusal| text.contains(refusal)) {
        text.push_str(" (etcd's --max-request-bytes allows for more; its default is 1.5 MiB)");
    }
    text.truncate(text.floor_char_boundary(LONGEST_ERROR));
    text
}

pub(crate) fn store_error(operation: Operation, object: &str, endpoint: &str, error: &Error) -> StoreError {
    StoreError {
        operation: operation.describe_on(object),
        kind: classify_error_kind(error),
        why: format!("{}, from {endpoint}", describe_cause(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Status;

    #[test]
    fn failures_are_classified() {
        let io = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        for (error, expected) in [
            (Status::unavailable("etcdserver: no leader"), StoreErrorKind::Unavailable),
            (Status::unavailable("etcdserver: leader changed"), StoreErrorKind::Unavailable),
            (Status::from_error(Box::new(io)), StoreErrorKind::Unavailable),
            (Status::deadline_exceeded("late"), StoreErrorKind::Deadline),
            (Status::unauthenticated("etcdserver: invalid auth token"), StoreErrorKind::Denied),
            (
                Status::invalid_argument("etcdserver: authentication failed, invalid user ID or password"),
                StoreErrorKind::Denied,
            ),
            (Status::invalid_argument("etcdserver: user name is empty"), StoreErrorKind::Denied),
            (Status::permission_denied("etcdserver: permission denied"), StoreErrorKind::Denied),
            (Status::resource_exhausted("etcdserver: mvcc: database space exceeded"), StoreErrorKind::Full),
            (Status::resource_exhausted("etcdserver: too many requests"), StoreErrorKind::Unavailable),
            (Status::invalid_argument("etcdserver: request is too large"), StoreErrorKind::Invalid),
            (Status::unknown("?"), StoreErrorKind::Other),
        ] {
            let text = error.message().to_owned();
            assert_eq!(classify_error_kind(&Error::GRpcStatus(error)), expected, "{text}");
        }
    }

    #[test]
    fn request_above_the_size_limit_names_the_option_that_raises_it() {
        let error = Error::GRpcStatus(Status::invalid_argument("etcdserver: request is too large"));
        assert!(describe_cause(&error).contains("--max-request-bytes"));
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let error = Error::GRpcStatus(Status::unknown("é".repeat(LONGEST_ERROR)));
        assert!(describe_cause(&error).len() <= LONGEST_ERROR);
    }

    #[test]
    fn only_a_refused_token_calls_for_a_new_one() {
        assert!(refuses_token(&Error::GRpcStatus(Status::unauthenticated("etcdserver: invalid auth token"))));
        assert!(refuses_token(&Error::GRpcStatus(Status::invalid_argument(
            "etcdserver: user name is empty"
        ))));
        assert!(!refuses_token(&Error::GRpcStatus(Status::invalid_argument(
            "etcdserver: authentication failed, invalid user ID or password"
        ))));
    }
}

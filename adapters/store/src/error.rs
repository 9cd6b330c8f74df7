//! What a failure of the store means for the caller.

use std::error::Error as _;
use std::fmt::Write as _;

use etcd_client::Error;
use madako_domain::store::{StoreError, StoreErrorKind};
use tonic::Code;

use crate::limits::LONGEST_ERROR;
use crate::telemetry::Operation;

/// What etcd says when a token is not known to it (any more), or was not sent at all.
const TOKEN_REFUSALS: [&str; 3] = [
    "etcdserver: invalid auth token",
    "etcdserver: user name is empty",
    "etcdserver: revision of auth store is old",
];
/// What etcd says when it knows no passwords at all.
const AUTH_IS_OFF: &str = "etcdserver: authentication is not enabled";
/// What etcd says to a request above its limit, and its gRPC library to one that is larger still.
const REQUEST_IS_TOO_LARGE: [&str; 2] = ["request is too large", "received message larger than max"];
/// What etcd says to a put with a lease that ended ("requested lease not found"), and etcd-client to a
/// keep-alive.
const LEASE_IS_GONE: &str = "lease not found";
/// What etcd says to a read of a revision that was compacted, and of one that is still to come.
const REVISION_IS_GONE: [&str; 2] =
    ["required revision has been compacted", "required revision is a future revision"];

fn message(error: &Error) -> &str {
    match error {
        Error::GRpcStatus(status) => status.message(),
        Error::LeaseKeepAliveError(text) | Error::WatchError(text) => text,
        _ => "",
    }
}

/// Whether the store refused the token: another one may be accepted. Nothing was done.
pub(crate) fn refuses_token(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status)
        if status.code() == Code::Unauthenticated || TOKEN_REFUSALS.contains(&status.message()))
}

/// Whether the store has authentication switched off.
pub(crate) fn auth_is_off(error: &Error) -> bool {
    message(error) == AUTH_IS_OFF
}

/// Whether the lease ended.
pub(crate) fn lease_is_gone(why: &str) -> bool {
    why.contains(LEASE_IS_GONE)
}

/// Whether the store does not have the revision: it was compacted, or the store went back in time.
pub(crate) fn revision_is_gone(error: &Error) -> bool {
    REVISION_IS_GONE.iter().any(|text| message(error).contains(text))
}

/// Whether the answer was larger than the limit of a message.
pub(crate) fn answer_is_too_large(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status)
        if matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted)
            && (status.message().contains("decoded message length too large")
                || status.message().contains("message larger than max")))
}

/// Whether no connection could be made, so that the store cannot have seen the request.
pub(crate) fn never_sent(error: &Error) -> bool {
    let Error::GRpcStatus(status) = error else { return false };
    let mut source = status.source();
    while let Some(cause) = source {
        if cause.is::<tonic::ConnectError>() {
            return true;
        }
        source = cause.source();
    }
    false
}

/// What kind of failure it is.
pub(crate) fn kind(error: &Error) -> StoreErrorKind {
    let status = match error {
        Error::GRpcStatus(status) => status,
        Error::TransportError(_) | Error::IoError(_) | Error::WatchError(_) => {
            return StoreErrorKind::Unavailable;
        }
        Error::InvalidArgs(_) | Error::LeaseKeepAliveError(_) => return StoreErrorKind::Invalid,
        _ => return StoreErrorKind::Other,
    };
    // A status that comes from a server has no source: this one stands for a broken connection.
    if status.source().is_some() {
        return StoreErrorKind::Unavailable;
    }
    if refuses_token(error) || status.message().contains("authentication failed") {
        return StoreErrorKind::Denied;
    }
    match status.code() {
        // `too many requests` passes by itself.
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

/// What happened, with its causes, at most [`LONGEST_ERROR`] bytes.
fn why(error: &Error) -> String {
    let mut text = match error {
        Error::GRpcStatus(status) => {
            let mut text = status.message().to_owned();
            let mut source = status.source();
            while let Some(cause) = source {
                let part = cause.to_string();
                if !text.contains(&part) {
                    // Writing to a string cannot fail.
                    let _ = write!(text, ": {part}");
                }
                source = cause.source();
            }
            if text.is_empty() { format!("{:?}", status.code()) } else { text }
        }
        other => other.to_string(),
    };
    if REQUEST_IS_TOO_LARGE.iter().any(|refusal| text.contains(refusal)) {
        text.push_str(" (etcd's --max-request-bytes allows for more; its default is 1.5 MiB)");
    }
    if text.len() > LONGEST_ERROR {
        let end = (0..=LONGEST_ERROR).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

/// The failure of an operation, told to the caller.
pub(crate) fn store_error(operation: Operation, object: &str, endpoint: &str, error: &Error) -> StoreError {
    StoreError {
        operation: operation.of(object),
        kind: kind(error),
        why: format!("{}, from {endpoint}", why(error)),
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
            assert_eq!(kind(&Error::GRpcStatus(error)), expected, "{text}");
        }
    }

    #[test]
    fn who_meets_the_limit_of_a_request_is_told_how_to_raise_it() {
        let error = Error::GRpcStatus(Status::invalid_argument("etcdserver: request is too large"));
        assert!(why(&error).contains("--max-request-bytes"));
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let error = Error::GRpcStatus(Status::unknown("é".repeat(LONGEST_ERROR)));
        assert!(why(&error).len() <= LONGEST_ERROR);
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

//! Classifies failed requests to etcd as the errors of the port [`EtcdCluster`](madako_protocol::etcd::EtcdCluster).

use std::error::Error as _;

use etcd_client::Error;
use madako_protocol::causes::message_with_causes;
use madako_protocol::etcd::EtcdError;
use tonic::{Code, Status};

use crate::limits::LONGEST_ERROR;

/// Refusals of a change that has happened before.
pub(crate) mod done {
    pub(crate) const PEER_URL_EXISTS: &str = "etcdserver: Peer URLs already exists";
    pub(crate) const MEMBER_NOT_FOUND: &str = "etcdserver: member not found";
    pub(crate) const NOT_A_LEARNER: &str = "etcdserver: can only promote a learner member";
    pub(crate) const USER_EXISTS: &str = "etcdserver: user name already exists";
    pub(crate) const ROLE_EXISTS: &str = "etcdserver: role name already exists";
}

/// A refusal that etcd reports with the code of a lost connection.
const UNHEALTHY: &str = "etcdserver: unhealthy cluster";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No answer, or no answer of etcd itself.
    Unavailable(String),
    /// The message of etcd.
    Refused(String),
}

impl Failure {
    /// True if etcd refused with this message.
    pub(crate) fn has_message(&self, message: &str) -> bool {
        matches!(self, Self::Refused(why) if why == message)
    }

    pub(crate) fn into_error(self, what: &'static str) -> EtcdError {
        match self {
            Self::Unavailable(why) => EtcdError::Unavailable { what, why },
            Self::Refused(why) => EtcdError::Refused { what, why },
        }
    }

    /// One failure for those of several addresses: a refusal is more specific than a silence.
    pub(crate) fn join_failures(failures: Vec<(String, Self)>) -> Self {
        if let Some((_, refused)) = failures.iter().find(|(_, failure)| matches!(failure, Self::Refused(_))) {
            return refused.clone();
        }
        let mut all = Vec::new();
        for (address, failure) in failures {
            let (Self::Unavailable(why) | Self::Refused(why)) = failure;
            all.push(format!("{address}: {why}"));
        }
        Self::Unavailable(if all.is_empty() { "no address".to_owned() } else { cut_to_limit(all.join("; ")) })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::GRpcStatus(status) if is_refusal(&status) => {
                Self::Refused(cut_to_limit(status.message().to_owned()))
            }
            Error::GRpcStatus(status) => {
                Self::Unavailable(cut_to_limit(message_with_causes(status.message(), &status)))
            }
            other => Self::Unavailable(cut_to_limit(other.to_string())),
        }
    }
}

fn is_refusal(status: &Status) -> bool {
    // A status from a server has no source; another represents a broken connection.
    let answered = status.source().is_none();
    let temporary = matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled);
    answered && (!temporary || status.message() == UNHEALTHY)
}

fn cut_to_limit(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(LONGEST_ERROR));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_etcd_differ_from_silence() {
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        for (status, refused) in [
            (Status::failed_precondition(done::PEER_URL_EXISTS), true),
            (Status::not_found(done::MEMBER_NOT_FOUND), true),
            (Status::permission_denied("etcdserver: permission denied"), true),
            (Status::unavailable(UNHEALTHY), true),
            (Status::unavailable("etcdserver: no leader"), false),
            (Status::unavailable("etcdserver: request timed out"), false),
            (Status::deadline_exceeded("late"), false),
            (Status::from_error(Box::new(reset)), false),
        ] {
            let message = status.message().to_owned();
            let failure = Failure::from(Error::GRpcStatus(status));
            assert_eq!(matches!(failure, Failure::Refused(_)), refused, "{message}: {failure:?}");
            assert_eq!(failure.has_message(&message), refused, "{message}");
        }
    }

    #[test]
    fn a_refusal_counts_before_silence_and_messages_are_cut() {
        let silent = |at: &str| (at.to_owned(), Failure::Unavailable("connection refused".into()));
        let both = vec![silent("10.0.0.1"), silent("10.0.0.2")];
        let expected = "10.0.0.1: connection refused; 10.0.0.2: connection refused";
        assert_eq!(Failure::join_failures(both.clone()), Failure::Unavailable(expected.into()));
        let refused = Failure::Refused("etcdserver: permission denied".into());
        let mixed = [both, vec![("10.0.0.3".to_owned(), refused.clone())]].concat();
        assert_eq!(Failure::join_failures(mixed), refused);
        let Failure::Unavailable(long) = Failure::from(Error::Internal("é".repeat(LONGEST_ERROR))) else {
            panic!("no refusal");
        };
        assert!(long.len() <= LONGEST_ERROR);
    }
}

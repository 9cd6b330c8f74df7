//! Refusals of requests, with etcd's codes and texts.
//!
//! The texts are part of the protocol: clients compare them, so they equal etcd's texts exactly. Texts without a
//! counterpart in etcd state the reason and the next step.

use tonic::{Code, Status};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    #[error("etcdserver: key not found")]
    KeyNotFound,
    #[error("etcdserver: value is provided")]
    ValueProvided,
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    #[error("etcdserver: too many operations in txn request")]
    TooManyOperations,
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    #[error("etcdserver: request is too large")]
    RequestTooLarge,
    #[error("etcdserver: corrupt cluster")]
    Corrupt,
    #[error("etcdserver: request timed out")]
    TimedOut,
    #[error("etcdserver: server stopped")]
    Stopped,
    #[error("embedded store: its file failed ({0}); the store takes no write until the process restarts")]
    Failed(String),
    #[error("embedded store: the write did not reach the file ({0}) and was rolled back; try again")]
    TakenBack(String),
    #[error("embedded store: {0}")]
    Unsupported(&'static str),
}

impl RequestError {
    fn grpc_code(&self) -> Code {
        match self {
            Self::EmptyKey
            | Self::KeyNotFound
            | Self::ValueProvided
            | Self::LeaseProvided
            | Self::TooManyOperations
            | Self::DuplicateKey
            | Self::InvalidSortOption
            | Self::RequestTooLarge => Code::InvalidArgument,
            Self::Compacted | Self::FutureRevision | Self::LeaseTtlTooLarge => Code::OutOfRange,
            Self::NoSpace => Code::ResourceExhausted,
            Self::LeaseNotFound => Code::NotFound,
            Self::LeaseExists => Code::FailedPrecondition,
            Self::Corrupt => Code::DataLoss,
            Self::TimedOut | Self::Stopped | Self::Failed(_) | Self::TakenBack(_) => Code::Unavailable,
            Self::Unsupported(_) => Code::Unimplemented,
        }
    }
}

impl From<RequestError> for Status {
    fn from(refusal: RequestError) -> Self {
        Status::new(refusal.grpc_code(), refusal.to_string())
    }
}

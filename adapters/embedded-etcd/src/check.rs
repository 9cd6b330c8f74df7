//! Validates write requests before any lookup of a key: etcd's checks, in etcd's order.

use std::collections::BTreeSet;

use etcd_client::proto::{PbDeleteRequest, PbPutRequest, PbTxnOpRequest, PbTxnRequest, PbTxnRequestOp};
use prost::Message;

pub(crate) use crate::limits::MAX_TXN_OPERATIONS;
use crate::range::check_range;
use crate::request_error::RequestError;
use crate::span::Ranges;

/// Bytes that etcd adds to a request before it measures the size: a header with an id, and tags with lengths.
const ENVELOPE_BYTES: usize = 20;

pub(crate) fn check_size(request: &impl Message, max_request_bytes: usize) -> Result<(), RequestError> {
    if request.encoded_len() + ENVELOPE_BYTES > max_request_bytes {
        Err(RequestError::RequestTooLarge)
    } else {
        Ok(())
    }
}

pub(crate) fn check_put(request: &PbPutRequest) -> Result<(), RequestError> {
    if request.key.is_empty() {
        return Err(RequestError::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(RequestError::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(RequestError::LeaseProvided);
    }
    Ok(())
}

pub(crate) fn check_delete(request: &PbDeleteRequest) -> Result<(), RequestError> {
    if request.key.is_empty() { Err(RequestError::EmptyKey) } else { Ok(()) }
}

pub(crate) fn check_txn(request: &PbTxnRequest) -> Result<(), RequestError> {
    check_operations(request, MAX_TXN_OPERATIONS)?;
    // This check follows the size checks, so its work is bounded.
    written_keys(&request.success)?;
    written_keys(&request.failure)?;
    Ok(())
}

/// True if a transaction only reads. Such a transaction bypasses the writer.
pub(crate) fn is_read_only(request: &PbTxnRequest) -> bool {
    request
        .success
        .iter()
        .chain(&request.failure)
        .all(|operation| matches!(operation.request, Some(PbTxnOpRequest::RequestRange(_))))
}

fn check_operations(request: &PbTxnRequest, allowed: usize) -> Result<(), RequestError> {
    let operations = request.compare.len().max(request.success.len()).max(request.failure.len());
    // A nested transaction may use the remaining operations of its parent.
    let Some(left) = allowed.checked_sub(operations) else { return Err(RequestError::TooManyOperations) };
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(RequestError::EmptyKey);
    }
    for operation in request.success.iter().chain(&request.failure) {
        match &operation.request {
            Some(PbTxnOpRequest::RequestRange(range)) => check_range(range)?,
            Some(PbTxnOpRequest::RequestPut(put)) => check_put(put)?,
            Some(PbTxnOpRequest::RequestDeleteRange(delete)) => check_delete(delete)?,
            Some(PbTxnOpRequest::RequestTxn(nested)) => check_operations(nested, left)?,
            None => return Err(RequestError::KeyNotFound),
        }
    }
    Ok(())
}

/// The keys that a branch puts and deletes. Refuses a key that is put twice, or put and deleted.
///
/// As in etcd, the two branches of a nested transaction may put the same key, and a key that one nested transaction
/// puts may be deleted by a later one.
fn written_keys(operations: &[PbTxnRequestOp]) -> Result<(BTreeSet<&[u8]>, Ranges<'_>), RequestError> {
    let mut deleted = Ranges::default();
    for operation in operations {
        if let Some(PbTxnOpRequest::RequestDeleteRange(delete)) = &operation.request {
            deleted.insert(&delete.key, &delete.range_end);
        }
    }
    let mut put: BTreeSet<&[u8]> = BTreeSet::new();
    for operation in operations {
        if let Some(PbTxnOpRequest::RequestTxn(nested)) = &operation.request {
            let (put_then, deleted_then) = written_keys(&nested.success)?;
            let (put_else, deleted_else) = written_keys(&nested.failure)?;
            let both: BTreeSet<_> = put_then.union(&put_else).copied().collect();
            if both.iter().any(|key| put.contains(key) || deleted.contains(key)) {
                return Err(RequestError::DuplicateKey);
            }
            put.extend(both);
            deleted.merge(deleted_then);
            deleted.merge(deleted_else);
        }
    }
    for operation in operations {
        if let Some(PbTxnOpRequest::RequestPut(request)) = &operation.request
            && (deleted.contains(&request.key) || !put.insert(&request.key))
        {
            return Err(RequestError::DuplicateKey);
        }
    }
    Ok((put, deleted))
}

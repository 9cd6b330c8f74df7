//! Evaluates the comparisons of a transaction, and runs read-only transactions.
//!
//! As in etcd, all comparisons, including those of nested transactions, use the state before the transaction.

use std::cmp::Ordering;

use etcd_client::proto::{
    PbCompare, PbResponseHeader, PbResponseOp, PbTargetUnion, PbTxnOpRequest, PbTxnOpResponse, PbTxnRequest,
    PbTxnRequestOp, PbTxnResponse,
};

use madako_domain::canary::{Canary, is_planted};

use crate::index::{Change, Index};
use crate::range::{RangePlan, ReadableRevisions, RecordSource};
use crate::request_error::RequestError;
use crate::span::Span;

/// `Compare.target` and `Compare.result` of the protocol.
const TARGET_VERSION: i32 = 0;
const TARGET_CREATE: i32 = 1;
const TARGET_MOD: i32 = 2;
const TARGET_VALUE: i32 = 3;
const TARGET_LEASE: i32 = 4;
const EQUAL: i32 = 0;
const GREATER: i32 = 1;
const LESS: i32 = 2;
const NOT_EQUAL: i32 = 3;

/// Chosen branch of a transaction, and those of its nested transactions in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) succeeded: bool,
    pub(crate) nested: Vec<Path>,
}

impl Path {
    /// Evaluates the comparisons on the state at `current`.
    pub(crate) fn decide(
        index: &Index,
        current: i64,
        values: &impl RecordSource,
        request: &PbTxnRequest,
    ) -> Result<Self, RequestError> {
        let mut succeeded = true;
        let compared = if is_planted(Canary::FirstComparisonOnly) { 1 } else { usize::MAX };
        for compare in request.compare.iter().take(compared) {
            if !comparison_holds(index, current, values, compare)? {
                succeeded = false;
                break;
            }
        }
        let mut nested = Vec::new();
        for operation in select_branch(request, succeeded) {
            if let Some(PbTxnOpRequest::RequestTxn(inner)) = &operation.request {
                nested.push(Self::decide(index, current, values, inner)?);
            }
        }
        Ok(Self { succeeded, nested })
    }
}

pub(crate) fn select_branch(request: &PbTxnRequest, succeeded: bool) -> &[PbTxnRequestOp] {
    if succeeded { &request.success } else { &request.failure }
}

/// Checks the revisions of the ranges in a branch before any change.
pub(crate) fn check_ranges(
    request: &PbTxnRequest,
    path: &Path,
    view: ReadableRevisions,
) -> Result<(), RequestError> {
    let mut nested = path.nested.iter();
    for operation in select_branch(request, path.succeeded) {
        match &operation.request {
            Some(PbTxnOpRequest::RequestRange(range)) if range.revision > view.current => {
                return Err(RequestError::FutureRevision);
            }
            Some(PbTxnOpRequest::RequestRange(range))
                if range.revision != 0 && range.revision < view.compacted =>
            {
                return Err(RequestError::Compacted);
            }
            Some(PbTxnOpRequest::RequestTxn(inner)) => {
                if let Some(path) = nested.next() {
                    check_ranges(inner, path, view)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Runs a read-only transaction. The caller adds the header.
pub(crate) fn run_read_only(
    index: &Index,
    view: ReadableRevisions,
    values: &impl RecordSource,
    request: &PbTxnRequest,
) -> Result<PbTxnResponse, RequestError> {
    let path = Path::decide(index, view.current, values, request)?;
    check_ranges(request, &path, view)?;
    let mut responses = Vec::new();
    for operation in select_branch(request, path.succeeded) {
        if let Some(PbTxnOpRequest::RequestRange(range)) = &operation.request {
            let response =
                RangePlan::new(index, view, range)?.finish(values, header_with_revision(view.current))?;
            responses.push(PbResponseOp { response: Some(PbTxnOpResponse::ResponseRange(response)) });
        }
    }
    Ok(PbTxnResponse { header: None, succeeded: path.succeeded, responses })
}

/// The header of an answer within a transaction.
pub(crate) fn header_with_revision(revision: i64) -> PbResponseHeader {
    PbResponseHeader { revision, ..PbResponseHeader::default() }
}

fn comparison_holds(
    index: &Index,
    current: i64,
    values: &impl RecordSource,
    compare: &PbCompare,
) -> Result<bool, RequestError> {
    let mut found = false;
    for (_, change) in index.changes_in_range(Span::new(&compare.key, &compare.range_end), current) {
        found = true;
        if !holds_for(Some(change), values, compare)? {
            return Ok(false);
        }
    }
    if found {
        return Ok(true);
    }
    // The comparison would treat a missing value as an empty one, so a value comparison without a pair is always false.
    if compare.target == TARGET_VALUE { Ok(false) } else { holds_for(None, values, compare) }
}

fn holds_for(
    change: Option<&Change>,
    values: &impl RecordSource,
    compare: &PbCompare,
) -> Result<bool, RequestError> {
    let number = |of: fn(&Change) -> i64, wanted: i64| change.map_or(0, of).cmp(&wanted);
    let wanted =
        |read: fn(&PbTargetUnion) -> Option<i64>| compare.target_union.as_ref().and_then(read).unwrap_or(0);
    let ordering = match compare.target {
        TARGET_VALUE => {
            let wanted = match &compare.target_union {
                Some(PbTargetUnion::Value(value)) => value.as_slice(),
                _ => &[],
            };
            match change {
                Some(change) => values.key_value_at(change.revision)?.value.as_slice().cmp(wanted),
                None => [].as_slice().cmp(wanted),
            }
        }
        TARGET_VERSION => number(
            |change| change.version,
            wanted(|union| if let PbTargetUnion::Version(version) = union { Some(*version) } else { None }),
        ),
        TARGET_CREATE => number(
            |change| change.create,
            wanted(
                |union| if let PbTargetUnion::CreateRevision(create) = union { Some(*create) } else { None },
            ),
        ),
        TARGET_MOD => number(
            |change| change.revision.main,
            wanted(|union| if let PbTargetUnion::ModRevision(main) = union { Some(*main) } else { None }),
        ),
        TARGET_LEASE => number(
            |change| change.lease,
            wanted(|union| if let PbTargetUnion::Lease(lease) = union { Some(*lease) } else { None }),
        ),
        // As in etcd for an unknown target.
        _ => Ordering::Equal,
    };
    Ok(match compare.result {
        EQUAL => ordering.is_eq(),
        GREATER => ordering.is_gt(),
        LESS => ordering.is_lt(),
        NOT_EQUAL => ordering.is_ne(),
        _ => true,
    })
}

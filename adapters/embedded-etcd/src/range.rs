//! Range requests, in two steps, so that only the first locks the index: [`RangePlan::new`] selects the pairs from the
//! index, [`RangePlan::finish`] reads their values.

use bytes::{BufMut, BytesMut};
use etcd_client::proto::{PbKeyValue, PbRangeRequest, PbRangeResponse, PbResponseHeader};

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

use crate::index::{Change, Index};
use crate::record::{Record, Revision};
use crate::request_error::RequestError;
use crate::span::Span;

pub(crate) trait RecordSource {
    /// Calls `show` with the record that was written at `revision`.
    fn record<T>(&self, revision: Revision, show: impl FnOnce(Record<'_>) -> T) -> Result<T, RequestError>;

    /// The pair that was written at `revision`.
    fn key_value_at(&self, revision: Revision) -> Result<PbKeyValue, RequestError> {
        self.record(revision, |record| record.to_key_value(revision))
    }
}

/// `sort_order` and `sort_target` of the protocol.
const DESCENDING: i32 = 2;
const BY_KEY: i32 = 0;
const BY_VERSION: i32 = 1;
const BY_CREATE: i32 = 2;
const BY_MOD: i32 = 3;
const BY_VALUE: i32 = 4;

/// The range of revisions that a reader may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadableRevisions {
    pub(crate) current: i64,
    pub(crate) compacted: i64,
}

impl ReadableRevisions {
    /// The revision that a request means; 0 or less is the current one.
    pub(crate) fn resolve(self, requested: i64) -> Result<i64, RequestError> {
        if requested > self.current {
            return Err(RequestError::FutureRevision);
        }
        let revision = if requested <= 0 { self.current } else { requested };
        if revision < self.compacted { Err(RequestError::Compacted) } else { Ok(revision) }
    }
}

pub(crate) fn check_range(request: &PbRangeRequest) -> Result<(), RequestError> {
    if request.key.is_empty() {
        return Err(RequestError::EmptyKey);
    }
    if !(0..=DESCENDING).contains(&request.sort_order) || !(BY_KEY..=BY_VALUE).contains(&request.sort_target)
    {
        return Err(RequestError::InvalidSortOption);
    }
    Ok(())
}

/// Selected pairs, with their keys if no value needs to be read.
enum Pairs {
    WithoutValues(Vec<(Vec<u8>, Change)>),
    WithValues(Vec<Change>),
}

pub(crate) struct RangePlan {
    pairs: Pairs,
    count: i64,
    more: bool,
    /// Sorting and limit that need the values.
    by_value: Option<SortByValue>,
}

struct SortByValue {
    descending: bool,
    limit: usize,
    keys_only: bool,
}

impl RangePlan {
    pub(crate) fn new(
        index: &Index,
        view: ReadableRevisions,
        request: &PbRangeRequest,
    ) -> Result<Self, RequestError> {
        let revision = view.resolve(request.revision)?;
        let found = index.changes_in_range(Span::new(&request.key, &request.range_end), revision);
        if request.count_only {
            let count = found.count() as i64;
            return Ok(Self { pairs: Pairs::WithValues(Vec::new()), count, more: false, by_value: None });
        }
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let sorted = request.sort_order != 0 || request.sort_target != BY_KEY;
        // Without a sort order the answer is in key order, so pairs beyond the limit can be dropped here.
        let keep = if sorted { usize::MAX } else { limit.saturating_add(1) };
        let mut count = 0;
        let mut kept: Vec<(&[u8], &Change)> = Vec::new();
        for (key, change) in found {
            count += 1;
            if kept.len() < keep && is_within(request, change) {
                kept.push((key, change));
            }
        }
        let mut by_value = None;
        if sorted {
            let descending = request.sort_order == DESCENDING;
            match request.sort_target {
                BY_VERSION => sort_by(&mut kept, descending, |change| change.version),
                BY_CREATE => sort_by(&mut kept, descending, |change| change.create),
                BY_MOD => sort_by(&mut kept, descending, |change| change.revision.main),
                BY_VALUE => by_value = Some(SortByValue { descending, limit, keys_only: request.keys_only }),
                _ if descending => kept.reverse(),
                _ => {}
            }
        }
        let more = kept.len() > limit;
        if by_value.is_none() {
            kept.truncate(limit);
        }
        let pairs = if request.keys_only && by_value.is_none() {
            Pairs::WithoutValues(kept.into_iter().map(|(key, change)| (key.to_vec(), *change)).collect())
        } else {
            Pairs::WithValues(kept.into_iter().map(|(_, change)| *change).collect())
        };
        Ok(Self { pairs, count, more, by_value })
    }

    pub(crate) fn finish(
        self,
        values: &impl RecordSource,
        header: PbResponseHeader,
    ) -> Result<PbRangeResponse, RequestError> {
        let mut kvs = match self.pairs {
            Pairs::WithoutValues(pairs) => pairs
                .into_iter()
                .map(|(key, change)| PbKeyValue {
                    key,
                    create_revision: change.create,
                    mod_revision: change.revision.main,
                    version: change.version,
                    value: Vec::new(),
                    lease: change.lease,
                })
                .collect(),
            Pairs::WithValues(changes) => changes
                .into_iter()
                .map(|change| values.key_value_at(change.revision))
                .collect::<Result<Vec<_>, _>>()?,
        };
        if let Some(sort) = self.by_value {
            if sort.descending {
                kvs.sort_by(|a, b| b.value.cmp(&a.value));
            } else {
                kvs.sort_by(|a, b| a.value.cmp(&b.value));
            }
            kvs.truncate(sort.limit);
            if sort.keys_only {
                kvs.iter_mut().for_each(|kv| kv.value = Vec::new());
            }
        }
        Ok(PbRangeResponse { header: Some(header), kvs, more: self.more, count: self.count })
    }

    /// The answer as a message, with `room` bytes before it.
    pub(crate) fn encode(
        self,
        values: &impl RecordSource,
        header: PbResponseHeader,
        room: usize,
    ) -> Result<BytesMut, RequestError> {
        let mut bytes = BytesMut::new();
        match (&self.pairs, &self.by_value) {
            (Pairs::WithValues(changes), None) => {
                // All fields except the values need less than this, so the buffer is not moved while it grows.
                let numbers = changes.len() * 80 + header.encoded_len() + 40;
                let data: usize = changes.iter().map(|change| change.bytes as usize).sum();
                bytes.reserve(room + numbers + data);
                bytes.put_bytes(0, room);
                put_bytes_header(HEADER_FIELD, header.encoded_len(), &mut bytes);
                header.encode_raw(&mut bytes);
                for change in changes {
                    values
                        .record(change.revision, |record| encode_pair(record, change.revision, &mut bytes))?;
                }
                put_number(MORE_FIELD, i64::from(self.more), &mut bytes);
                put_number(COUNT_FIELD, self.count, &mut bytes);
            }
            _ => {
                let response = self.finish(values, header)?;
                bytes.reserve(room + response.encoded_len());
                bytes.put_bytes(0, room);
                response.encode_raw(&mut bytes);
            }
        }
        Ok(bytes)
    }
}

/// Field numbers of `RangeResponse`, and of `KeyValue` in it.
const HEADER_FIELD: u32 = 1;
const KVS_FIELD: u32 = 2;
const MORE_FIELD: u32 = 3;
const COUNT_FIELD: u32 = 4;
const KEY_FIELD: u32 = 1;
const CREATE_FIELD: u32 = 2;
const MOD_FIELD: u32 = 3;
const VERSION_FIELD: u32 = 4;
const VALUE_FIELD: u32 = 5;
const LEASE_FIELD: u32 = 6;

fn encode_pair(record: Record<'_>, revision: Revision, out: &mut BytesMut) {
    let numbers = [
        (CREATE_FIELD, record.create),
        (MOD_FIELD, revision.main),
        (VERSION_FIELD, record.version),
        (LEASE_FIELD, record.lease),
    ];
    let length = |number: i64| if number == 0 { 0 } else { 1 + encoded_len_varint(number as u64) };
    let bytes = |bytes: &[u8]| match bytes.len() {
        0 => 0,
        len => 1 + encoded_len_varint(len as u64) + len,
    };
    let whole = bytes(record.key)
        + bytes(record.value)
        + numbers.iter().map(|(_, number)| length(*number)).sum::<usize>();
    put_bytes_header(KVS_FIELD, whole, out);
    put_bytes(KEY_FIELD, record.key, out);
    for (field, number) in &numbers[..3] {
        put_number(*field, *number, out);
    }
    put_bytes(VALUE_FIELD, record.value, out);
    put_number(LEASE_FIELD, record.lease, out);
}

fn put_number(field: u32, number: i64, out: &mut BytesMut) {
    if number != 0 {
        encode_key(field, WireType::Varint, out);
        encode_varint(number as u64, out);
    }
}

fn put_bytes(field: u32, bytes: &[u8], out: &mut BytesMut) {
    if !bytes.is_empty() {
        put_bytes_header(field, bytes.len(), out);
        out.extend_from_slice(bytes);
    }
}

fn put_bytes_header(field: u32, length: usize, out: &mut BytesMut) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(length as u64, out);
}

fn is_within(request: &PbRangeRequest, change: &Change) -> bool {
    let main = change.revision.main;
    (request.max_mod_revision == 0 || main <= request.max_mod_revision)
        && (request.min_mod_revision == 0 || main >= request.min_mod_revision)
        && (request.max_create_revision == 0 || change.create <= request.max_create_revision)
        && (request.min_create_revision == 0 || change.create >= request.min_create_revision)
}

/// Stable in both directions: equal pairs stay in key order.
fn sort_by(kept: &mut [(&[u8], &Change)], descending: bool, by: impl Fn(&Change) -> i64) {
    if descending {
        kept.sort_by_key(|(_, change)| std::cmp::Reverse(by(change)));
    } else {
        kept.sort_by_key(|(_, change)| by(change));
    }
}

#[cfg(test)]
mod tests;

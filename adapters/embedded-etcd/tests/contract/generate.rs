//! Generates random requests for the comparison with etcd, with few keys, few values and many unusual arguments, so
//! that steps affect each other.

use etcd_client::proto::*;

/// One operation on both sides.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Range(PbRangeRequest),
    Put(PbPutRequest),
    Delete(PbDeleteRequest),
    Txn(PbTxnRequest),
    Compact(PbCompactionRequest),
    Grant(PbLeaseGrantRequest),
    Revoke(PbLeaseRevokeRequest),
    TimeToLive(PbLeaseTimeToLiveRequest),
    Leases,
    KeepAlive(i64),
    HashKv(PbHashKvRequest),
    Watch(PbWatchRequest),
}

/// Random numbers of a seed (SplitMix64).
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// All keys that steps write.
pub(crate) const KEYS: [&[u8]; 9] = [b"\0", b"a", b"a\0", b"ab", b"b", b"ba", b"c", b"\xfe", b"\xff\xff"];
const VALUES: [&[u8]; 5] = [b"", b"x", b"y", b"\0\xff", b"a longer value of some bytes"];
const LEASES: [i64; 5] = [1, 2, 77, -9, i64::MAX];

/// State that the generator needs to choose arguments near limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) current: i64,
    pub(crate) compacted: i64,
}

impl Known {
    /// A revision: old, new, compacted, future, or none.
    fn revision(self, dice: &mut Dice) -> i64 {
        match dice.below(10) {
            0 => self.current + 1,
            1 => -1,
            2 => 1,
            3 => self.compacted,
            4 => self.compacted - 1,
            5 => self.compacted + 1,
            _ => self.current - dice.below(12) as i64,
        }
    }
}

fn key(dice: &mut Dice) -> Vec<u8> {
    if dice.one_in(40) { Vec::new() } else { dice.pick(&KEYS).to_vec() }
}

/// No end, all keys from the key on, or before another key, which may be smaller.
fn range_end(dice: &mut Dice) -> Vec<u8> {
    match dice.below(4) {
        0 => b"\0".to_vec(),
        1 => dice.pick(&KEYS).to_vec(),
        _ => Vec::new(),
    }
}

fn value(dice: &mut Dice) -> Vec<u8> {
    dice.pick(&VALUES).to_vec()
}

fn range(dice: &mut Dice, known: Known) -> PbRangeRequest {
    let mut request = PbRangeRequest {
        key: key(dice),
        range_end: range_end(dice),
        limit: *dice.pick(&[0, 0, 0, 1, 2, 100, -1]),
        serializable: dice.one_in(2),
        keys_only: dice.one_in(5),
        count_only: dice.one_in(6),
        ..PbRangeRequest::default()
    };
    if dice.one_in(3) {
        request.revision = known.revision(dice);
    }
    if dice.one_in(3) {
        request.sort_order = dice.below(3) as i32;
        request.sort_target = dice.below(5) as i32;
    }
    if dice.one_in(4) {
        for bound in [
            &mut request.min_mod_revision,
            &mut request.max_mod_revision,
            &mut request.min_create_revision,
            &mut request.max_create_revision,
        ] {
            if dice.one_in(3) {
                *bound = known.current - dice.below(10) as i64;
            }
        }
    }
    request
}

fn put(dice: &mut Dice) -> PbPutRequest {
    PbPutRequest {
        key: key(dice),
        value: value(dice),
        lease: if dice.one_in(4) { *dice.pick(&LEASES) } else { 0 },
        prev_kv: dice.one_in(3),
        ignore_value: dice.one_in(12),
        ignore_lease: dice.one_in(12),
    }
}

fn delete(dice: &mut Dice) -> PbDeleteRequest {
    PbDeleteRequest { key: key(dice), range_end: range_end(dice), prev_kv: dice.one_in(2) }
}

fn compare(dice: &mut Dice, known: Known) -> PbCompare {
    let number = match dice.below(4) {
        0 => 0,
        1 => dice.below(4) as i64,
        2 => *dice.pick(&LEASES),
        _ => known.current - dice.below(8) as i64,
    };
    let target = dice.below(5) as i32;
    // Sometimes the operand does not match the target, or is missing.
    let operand = if dice.one_in(15) { dice.below(6) as i32 } else { target };
    PbCompare {
        result: dice.below(4) as i32,
        target,
        key: key(dice),
        range_end: if dice.one_in(4) { range_end(dice) } else { Vec::new() },
        target_union: match operand {
            0 => Some(PbTargetUnion::Version(number)),
            1 => Some(PbTargetUnion::CreateRevision(number)),
            2 => Some(PbTargetUnion::ModRevision(number)),
            3 => Some(PbTargetUnion::Value(value(dice))),
            4 => Some(PbTargetUnion::Lease(number)),
            _ => None,
        },
    }
}

fn operations(dice: &mut Dice, known: Known, depth: u64) -> Vec<PbTxnRequestOp> {
    let mut from_key_deleted = false;
    (0..dice.below(4))
        .map(|_| {
            let request = match dice.below(9) {
                0..=3 => PbTxnOpRequest::RequestPut(put(dice)),
                4 | 5 => PbTxnOpRequest::RequestDeleteRange(delete(dice)),
                6 | 7 => PbTxnOpRequest::RequestRange(range(dice, known)),
                _ if depth > 0 => PbTxnOpRequest::RequestTxn(txn(dice, known, depth - 1)),
                _ => PbTxnOpRequest::RequestPut(put(dice)),
            };
            if let PbTxnOpRequest::RequestDeleteRange(delete) = &request {
                from_key_deleted |= delete.range_end == b"\0";
            }
            request
        })
        .map(|request| PbTxnRequestOp { request: Some(request) })
        .collect()
}

fn txn(dice: &mut Dice, known: Known, depth: u64) -> PbTxnRequest {
    let mut request = PbTxnRequest {
        compare: (0..dice.below(3)).map(|_| compare(dice, known)).collect(),
        success: operations(dice, known, depth),
        failure: operations(dice, known, depth),
    };
    if dice.one_in(60) {
        request.success.push(PbTxnRequestOp { request: None });
    }
    request
}

/// True if a real etcd would panic on this transaction: a put with `ignore_value` or `ignore_lease` on a pair (checked
/// before) that a preceding deletion removes without etcd's duplicate check noticing. The embedded store refuses it.
fn upsets_etcd(operations: &[PbTxnRequestOp]) -> bool {
    fn any(operations: &[PbTxnRequestOp], of: &dyn Fn(&PbTxnOpRequest) -> bool) -> bool {
        operations.iter().filter_map(|operation| operation.request.as_ref()).any(|request| match request {
            PbTxnOpRequest::RequestTxn(inner) => any(&inner.success, of) || any(&inner.failure, of),
            other => of(other),
        })
    }
    any(operations, &|request| matches!(request, PbTxnOpRequest::RequestDeleteRange(_)))
        && any(
            operations,
            &|request| matches!(request, PbTxnOpRequest::RequestPut(put) if put.ignore_value || put.ignore_lease),
        )
}

/// A watch request with the requested id.
pub(crate) fn watch_request(
    key: &[u8],
    range_end: &[u8],
    start_revision: i64,
    id: i64,
    filters: &[i32],
    prev_kv: bool,
) -> PbWatchRequest {
    let mut union = PbWatchRequestUnion::CreateRequest(Default::default());
    if let PbWatchRequestUnion::CreateRequest(create) = &mut union {
        create.key = key.to_vec();
        create.range_end = range_end.to_vec();
        create.start_revision = start_revision;
        create.watch_id = id;
        create.filters = filters.to_vec();
        create.prev_kv = prev_kv;
    }
    PbWatchRequest { request_union: Some(union) }
}

fn watch(dice: &mut Dice, known: Known) -> PbWatchRequest {
    let start = match dice.below(6) {
        0 | 1 => 0,
        2 => known.current + 1 + dice.below(4) as i64,
        3 => known.compacted - 1 - dice.below(3) as i64,
        _ => (known.current - dice.below(15) as i64).max(1),
    };
    // A real etcd 3.4 forgets a deletion at the compacted revision itself; the embedded store does not.
    let start = if start == known.compacted { start + 1 } else { start };
    let id = if dice.one_in(3) { 1 + dice.below(6) as i64 } else { 0 };
    let filters: &[i32] = match dice.below(8) {
        0 => &[0],
        1 => &[1],
        2 => &[0, 1],
        _ => &[],
    };
    // etcd gives no sign when it has caught up with a watch that filters all events; a compaction before that ends the
    // watch.
    let start = if filters.len() == 2 { 0 } else { start };
    watch_request(&key(dice), &range_end(dice), start, id, filters, dice.one_in(2))
}

/// The next step. Compactions wait until they are complete, because the hash of a real etcd depends on their progress.
pub(crate) fn step(dice: &mut Dice, known: Known) -> Step {
    match dice.below(100) {
        0..=24 => Step::Put(put(dice)),
        25..=39 => Step::Range(range(dice, known)),
        40..=49 => Step::Delete(delete(dice)),
        50..=71 => loop {
            let request = txn(dice, known, 2);
            if !upsets_etcd(&request.success) && !upsets_etcd(&request.failure) {
                break Step::Txn(request);
            }
        },
        72..=74 => Step::Compact(PbCompactionRequest { revision: known.revision(dice), physical: true }),
        75..=80 => Step::Grant(PbLeaseGrantRequest {
            id: *dice.pick(&LEASES),
            ttl: *dice.pick(&[600, 3600, 9_000_000_000, 9_000_000_001]),
        }),
        81..=83 => Step::Revoke(PbLeaseRevokeRequest { id: *dice.pick(&LEASES) }),
        84..=86 => {
            Step::TimeToLive(PbLeaseTimeToLiveRequest { id: *dice.pick(&LEASES), keys: dice.one_in(2) })
        }
        87 => Step::Leases,
        88..=89 => Step::KeepAlive(*dice.pick(&LEASES)),
        90..=91 => {
            Step::HashKv(PbHashKvRequest { revision: if dice.one_in(2) { 0 } else { known.revision(dice) } })
        }
        _ => Step::Watch(watch(dice, known)),
    }
}

//! Range requests: what they find in the index, and how the answer is put together.
//!
//! In two steps, so that the index is locked only for the first: [`RangePlan::new`] decides from the index which pairs
//! are meant, [`RangePlan::finish`] reads their values.

use etcd_client::proto::{PbKeyValue, PbRangeRequest, PbRangeResponse, PbResponseHeader};

use crate::index::{Change, Index};
use crate::record::Revision;
use crate::refusal::Refusal;
use crate::span::Span;

/// Reads pairs from the file.
pub(crate) trait Values {
    /// The pair that was written at `revision`.
    fn pair(&self, revision: Revision) -> Result<PbKeyValue, Refusal>;
}

/// `sort_order` and `sort_target` of the protocol.
const DESCENDING: i32 = 2;
const BY_KEY: i32 = 0;
const BY_VERSION: i32 = 1;
const BY_CREATE: i32 = 2;
const BY_MOD: i32 = 3;
const BY_VALUE: i32 = 4;

/// The revisions that a reader may ask about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) current: i64,
    pub(crate) compacted: i64,
}

impl View {
    /// The revision that a request means; 0 and less is the current one.
    pub(crate) fn resolve(self, asked: i64) -> Result<i64, Refusal> {
        if asked > self.current {
            return Err(Refusal::FutureRevision);
        }
        let revision = if asked <= 0 { self.current } else { asked };
        if revision < self.compacted { Err(Refusal::Compacted) } else { Ok(revision) }
    }
}

pub(crate) fn check_range(request: &PbRangeRequest) -> Result<(), Refusal> {
    if request.key.is_empty() {
        return Err(Refusal::EmptyKey);
    }
    if !(0..=DESCENDING).contains(&request.sort_order) || !(BY_KEY..=BY_VALUE).contains(&request.sort_target)
    {
        return Err(Refusal::InvalidSortOption);
    }
    Ok(())
}

/// Pairs that were found: with their keys where nothing needs to be read for them.
enum Pairs {
    WithoutValues(Vec<(Vec<u8>, Change)>),
    WithValues(Vec<Revision>),
}

/// What a range request found.
pub(crate) struct RangePlan {
    pairs: Pairs,
    count: i64,
    more: bool,
    /// Order and limit that wait for the values.
    by_value: Option<SortByValue>,
}

struct SortByValue {
    descending: bool,
    limit: usize,
    keys_only: bool,
}

impl RangePlan {
    pub(crate) fn new(index: &Index, view: View, request: &PbRangeRequest) -> Result<Self, Refusal> {
        let revision = view.resolve(request.revision)?;
        let found = index.range(Span::new(&request.key, &request.range_end), revision);
        if request.count_only {
            let count = found.count() as i64;
            return Ok(Self { pairs: Pairs::WithValues(Vec::new()), count, more: false, by_value: None });
        }
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let sorted = request.sort_order != 0 || request.sort_target != BY_KEY;
        // Without an order of its own the answer is in the order of keys: what is over the limit need not be kept.
        let keep = if sorted { usize::MAX } else { limit.saturating_add(1) };
        let mut count = 0;
        let mut kept: Vec<(&[u8], &Change)> = Vec::new();
        for (key, change) in found {
            count += 1;
            if kept.len() < keep && within(request, change) {
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
            Pairs::WithValues(kept.into_iter().map(|(_, change)| change.revision).collect())
        };
        Ok(Self { pairs, count, more, by_value })
    }

    pub(crate) fn finish(
        self,
        values: &impl Values,
        header: PbResponseHeader,
    ) -> Result<PbRangeResponse, Refusal> {
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
            Pairs::WithValues(revisions) => {
                revisions.into_iter().map(|revision| values.pair(revision)).collect::<Result<Vec<_>, _>>()?
            }
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
}

fn within(request: &PbRangeRequest, change: &Change) -> bool {
    let main = change.revision.main;
    (request.max_mod_revision == 0 || main <= request.max_mod_revision)
        && (request.min_mod_revision == 0 || main >= request.min_mod_revision)
        && (request.max_create_revision == 0 || change.create <= request.max_create_revision)
        && (request.min_create_revision == 0 || change.create >= request.min_create_revision)
}

/// Stable in both directions: pairs that are equal stay in the order of their keys.
fn sort_by(kept: &mut [(&[u8], &Change)], descending: bool, by: impl Fn(&Change) -> i64) {
    if descending {
        kept.sort_by_key(|(_, change)| std::cmp::Reverse(by(change)));
    } else {
        kept.sort_by_key(|(_, change)| by(change));
    }
}

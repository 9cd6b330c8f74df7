//! Selection of keys by a request: one key, a range, or all keys from a key on.

use std::collections::BTreeMap;
use std::ops::Bound;

/// The keys that a request's `key` and `range_end` select.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Span<'a> {
    One(&'a [u8]),
    Between(&'a [u8], &'a [u8]),
    From(&'a [u8]),
}

pub(crate) type RangeBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

impl<'a> Span<'a> {
    /// As in etcd: an empty end means one key, a single zero byte as the end means all keys from `key` on.
    pub(crate) fn new(key: &'a [u8], range_end: &'a [u8]) -> Self {
        match range_end {
            [] => Self::One(key),
            [0] => Self::From(key),
            end => Self::Between(key, end),
        }
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::One(one) => key == *one,
            Self::Between(start, end) => *start <= key && key < *end,
            Self::From(start) => *start <= key,
        }
    }

    /// The bounds of the span; `None` if it is empty.
    pub(crate) fn bounds(&self) -> Option<RangeBounds<'a>> {
        match *self {
            Self::One(key) => Some((Bound::Included(key), Bound::Included(key))),
            Self::Between(start, end) => {
                (start < end).then_some((Bound::Included(start), Bound::Excluded(end)))
            }
            Self::From(start) => Some((Bound::Included(start), Bound::Unbounded)),
        }
    }
}

/// A set of half-open key ranges, merged so that a lookup needs one search.
#[derive(Debug, Default)]
pub(crate) struct Ranges<'a> {
    /// Start of a range to its end; ranges neither touch nor overlap.
    ends: BTreeMap<&'a [u8], RangeEnd<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RangeEnd<'a> {
    After(&'a [u8]),
    Before(&'a [u8]),
}

impl<'a> RangeEnd<'a> {
    fn includes(self, key: &[u8]) -> bool {
        match self {
            Self::After(last) => key <= last,
            Self::Before(end) => key < end,
        }
    }

    fn reaches_further_than(self, other: Self) -> bool {
        match (self, other) {
            (Self::After(a), Self::After(b)) | (Self::Before(a), Self::Before(b)) => a > b,
            (Self::After(a), Self::Before(b)) => a >= b,
            (Self::Before(a), Self::After(b)) => a > b,
        }
    }
}

impl<'a> Ranges<'a> {
    /// Adds the keys of a deletion, interpreted as in etcd's duplicate check: that check uses the bytes of the end, so
    /// the end that means "all keys from here" gives an empty range.
    pub(crate) fn insert(&mut self, key: &'a [u8], range_end: &'a [u8]) {
        let end = match range_end {
            [] => RangeEnd::After(key),
            end if key < end => RangeEnd::Before(end),
            _ => return,
        };
        self.add(key, end);
    }

    pub(crate) fn merge(&mut self, other: Ranges<'a>) {
        for (start, end) in other.ends {
            self.add(start, end);
        }
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.ends
            .range::<[u8], _>((Bound::Unbounded, Bound::Included(key)))
            .next_back()
            .is_some_and(|(_, end)| end.includes(key))
    }

    fn add(&mut self, mut start: &'a [u8], mut end: RangeEnd<'a>) {
        if let Some((&before, &reach)) =
            self.ends.range::<[u8], _>((Bound::Unbounded, Bound::Included(start))).next_back()
            && reach.includes(start)
        {
            start = before;
            if reach.reaches_further_than(end) {
                end = reach;
            }
        }
        while let Some((&next, &reach)) =
            self.ends.range::<[u8], _>((Bound::Included(start), Bound::Unbounded)).next()
            && end.includes(next)
        {
            if reach.reaches_further_than(end) {
                end = reach;
            }
            self.ends.remove(next);
        }
        self.ends.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::{Ranges, Span};
    use proptest::prelude::*;

    #[test]
    fn reads_range_ends_as_etcd_does() {
        assert_eq!(Span::new(b"a", b""), Span::One(b"a"));
        assert_eq!(Span::new(b"a", b"\0"), Span::From(b"a"));
        assert_eq!(Span::new(b"a", b"c"), Span::Between(b"a", b"c"));
        assert!(Span::new(b"c", b"a").bounds().is_none());
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..3, 1..3)
    }

    proptest! {
        #[test]
        fn merged_ranges_hold_the_keys_of_the_single_ones(
            deletions in prop::collection::vec((key(), prop_oneof![Just(vec![]), key()]), 0..8),
            probe in key(),
        ) {
            let mut ranges = Ranges::default();
            for (start, end) in &deletions {
                ranges.insert(start, end);
            }
            let expected = deletions.iter().any(|(start, end)| {
                if end.is_empty() { *start == probe } else { *start <= probe && probe < *end }
            });
            prop_assert_eq!(ranges.contains(&probe), expected);
        }
    }
}

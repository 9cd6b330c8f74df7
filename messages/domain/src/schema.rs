//! Kinds of fields of CKE's inputs (its `docs/cluster.md`; types of release line 1.30).

use madako_json::strict::Kind;

use crate::limits::{MAX_COUNT, MAX_SECONDS};

pub(crate) const TEXTS: Kind = Kind::List(&Kind::Text);
pub(crate) const COUNT: Kind = Kind::Whole(0, MAX_COUNT);
pub(crate) const POSITIVE_COUNT: Kind = Kind::Whole(1, MAX_COUNT);
pub(crate) const SECONDS: Kind = Kind::Whole(0, MAX_SECONDS);
pub(crate) const POSITIVE_SECONDS: Kind = Kind::Whole(1, MAX_SECONDS);
/// GraphQL's Int has 32 bits.
pub(crate) const INT: Kind = Kind::Whole(i32::MIN as i64, i32::MAX as i64);

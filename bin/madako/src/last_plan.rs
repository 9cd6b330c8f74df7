//! Reads the last committed plan, as the leader stored it.

use madako_domain::keys;
use madako_domain::store::Entry;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::access::decode;
use crate::failure::Failure;

/// The stored plan. Unknown fields are those of later versions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LastPlan {
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) at: OffsetDateTime,
    pub(crate) epoch: i64,
    #[serde(default)]
    pub(crate) action: Option<String>,
    #[serde(default)]
    pub(crate) changes_total: u64,
}

/// # Errors
/// The stored value has another form.
pub(crate) fn last_plan(entry: Option<&Entry>) -> Result<Option<LastPlan>, Failure> {
    entry.map(|entry| decode(keys::LAST_PLAN, entry)).transpose()
}

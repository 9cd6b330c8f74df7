//! JSON as Go's `encoding/json` reads and writes it, for the values that CKE and ckecli keep in etcd.
//!
//! Guarantees: a missing or `null` field has Go's zero value. Field names match in any case when no exact match is
//! there. A field unknown to the type is kept as its original text and written back after the known fields, so
//! neither its numbers nor its order change.
//! Assumes: CKE, ckecli or an operator who knows them wrote the text. Nothing here checks meaning; [`crate::strict`]
//! checks typed input.
//! Does not: resolve duplicate keys as Go does when they hold objects (Go merges those; here the last one wins).

mod document;
mod object;
mod open_enum;
mod raw;
mod scalar;
mod stored;

pub use document::{to_pretty_json, to_yaml};
pub use object::{FieldName, add_field_to_error, go_object};
pub use open_enum::open_enum;
pub use raw::{RawJson, UnknownFields};
pub use scalar::ZERO_TIME;
pub use scalar::{Decimal, OptionalTime, Time, is_zero};
pub use stored::{escape_html, stored_json, with_every_field};

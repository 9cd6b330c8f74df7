//! JSON as Go's `encoding/json` reads and writes it, for what CKE and ckecli keep in etcd.
//!
//! Guarantees: a field that is missing or `null` has Go's zero value; field names match in any case
//! when no exact match is there; what a type does not know is kept as the text it was, and is written
//! back after the known fields, so neither numbers nor the order within them change.
//! Assumes: the text came from one of the two programs or from somebody who knows them; nothing here
//! checks meaning (see [`crate::strict`] for what people type).
//! Does not: resolve duplicate keys as Go does when they hold objects (Go merges those; here the last one wins).

mod document;
mod object;
mod open_enum;
mod raw;
mod scalar;
mod stored;

pub use document::{to_pretty_json, to_yaml};
pub use object::{FieldName, go_object, in_field};
pub use open_enum::open_enum;
pub use raw::{RawJson, UnknownFields};
pub use scalar::ZERO_TIME;
pub use scalar::{Decimal, OptionalTime, Time, is_zero};
pub use stored::{escaped, stored_json, with_every_field};

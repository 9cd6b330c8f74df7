//! JSON as Krake 1.0 reads and writes it: one declaration of an object ([`object!`](crate::object)) gives reading,
//! writing, updating, defaults and the schema.
//!
//! Guarantees: a request is read strictly, and the error names every wrong field ([`document::from_request`]). A
//! stored value is read leniently, and unknown members are kept ([`document::from_stored`]). The written text has
//! Krake's order, defaults and nulls ([`json::to_text`]).

pub mod document;
pub mod entries;
pub mod free;
pub mod json;
pub mod named_enum;
pub mod object;
pub mod reader;
pub mod scalar;
pub mod schema;
pub mod tagged;
pub mod timestamp;
pub mod update;

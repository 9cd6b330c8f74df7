//! Tests of the domain types on CKE's JSON and on documents that operators type.

mod stored_json;
mod typed_documents;

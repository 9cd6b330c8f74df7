//! CKE's JSON and typed documents, on the domain's types.

mod stored_json;
mod typed_documents;

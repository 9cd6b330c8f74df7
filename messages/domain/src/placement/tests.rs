//! Tests of the wire format of all resources: Krake's documents are read and written back, requests with invalid fields
//! are refused by name, and all stored documents are read.

mod documents;
mod krake;
mod krakectl;
mod properties;
mod requests;
mod site;
mod stored;
mod update;

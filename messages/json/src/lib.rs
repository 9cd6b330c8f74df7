//! Reading and writing the JSON of CKE and of Krake, and typed YAML and JSON.
//!
//! Depends on no other crate of the workspace. Does no I/O, reads no clock, draws no random number.

#![warn(missing_docs)]

pub mod duration;
pub mod go;
pub mod input;
pub mod krake;
mod limits;
mod named;
pub mod strict;

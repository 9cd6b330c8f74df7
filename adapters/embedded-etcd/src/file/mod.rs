//! The file: where it is, what is in it, and how it is opened without ever spoiling it.

mod disk;
mod load;
mod offline;
mod open;
mod progress;
mod tables;

pub(crate) use disk::Disk;
pub(crate) use load::Loaded;
pub use offline::{Verified, restore, save, verify};
pub(crate) use open::{Opened, open, reopen, reopen_aside};
pub(crate) use tables::{Identity, LEASES, META, OWNED_LEASES, REVISIONS, StoredValues, meta};

//! The file of the embedded store: its location, its tables, and opening it without damage.

mod disk;
mod load;
mod offline;
mod open;
mod progress;
mod tables;

pub(crate) use disk::Disk;
pub(crate) use load::LoadedFile;
pub use offline::{VerifiedFile, restore, save_snapshot, verify};
pub(crate) use open::{OpenedFile, open_store, reopen_aside, reopen_file};
pub(crate) use tables::{Identity, LEASES, META, OWNED_LEASES, REVISIONS, StoredValues, meta};

//! Placement's resources as etcd holds them, and changes of them.

use std::sync::Arc;

use bytes::Bytes;

use super::kind::ObjectKey;
use super::object_value::Object;

/// A resource as it is stored.
#[derive(Debug)]
pub struct Stored {
    /// Which resource.
    pub key: ObjectKey,
    /// Revision of its creation.
    pub create_revision: i64,
    /// Revision of its last change.
    pub mod_revision: i64,
    /// What it is.
    pub object: Object,
    /// Its JSON, with all fields and defaults, on one line, as the API answers it: written once, sent often.
    pub wire: Bytes,
}

/// A value that stands at a resource's key and cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Revision of its last change.
    pub mod_revision: i64,
    /// What is wrong with it, without values.
    pub why: String,
    /// Whether it is in order, and encrypted with a key that is not configured here.
    pub sealed: bool,
}

/// One change of one resource.
#[derive(Debug, Clone)]
pub struct Change {
    /// The revision of the store that brought it.
    pub revision: i64,
    /// Which resource.
    pub key: ObjectKey,
    /// What was there before, as far as it could be read.
    pub before: Option<Arc<Stored>>,
    /// What is there now; `None`: it was deleted, or cannot be read.
    pub after: Option<Arc<Stored>>,
}

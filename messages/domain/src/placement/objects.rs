//! Placement's resources as etcd holds them, and their changes.

use std::sync::Arc;

use bytes::Bytes;

use super::kind::ObjectKey;
use super::object_value::Object;

/// A stored resource with its revisions.
#[derive(Debug)]
pub struct Stored {
    /// Identity of the resource.
    pub key: ObjectKey,
    /// Revision of its creation.
    pub create_revision: i64,
    /// Revision of its last change.
    pub mod_revision: i64,
    /// The resource as read from the stored value.
    pub object: Object,
    /// The JSON of the API's answers, with all fields and defaults, on one line: serialized once, sent often.
    pub wire: Bytes,
}

/// A value at a resource's key that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadResource {
    /// Revision of its last change.
    pub mod_revision: i64,
    /// The fault, without values.
    pub why: String,
    /// True if the value is valid but encrypted with a key that is not configured here.
    pub encrypted: bool,
}

/// A change of one resource.
#[derive(Debug, Clone)]
pub struct Change {
    /// The store's revision of the change.
    pub revision: i64,
    /// Identity of the resource.
    pub key: ObjectKey,
    /// The previous resource, if it could be read.
    pub before: Option<Arc<Stored>>,
    /// The new resource; `None` if it was deleted or cannot be read.
    pub after: Option<Arc<Stored>>,
}

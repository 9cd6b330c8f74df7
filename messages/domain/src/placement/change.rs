//! A change of placement that an actor asks the leader to commit: resources and the scheduler's state, not keys.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::kind::{Kind, ObjectKey};
use super::object_value::Object;
use crate::invariants::BindingEvidence;
use crate::keys;
use crate::store::{Condition, Write};

/// A resource in its stored form: JSON on one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject(Bytes);

impl StoredObject {
    /// The stored form of a resource.
    #[must_use]
    pub fn from_object(object: &Object) -> Self {
        Self(object.to_json().into())
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.len()
    }
}

/// The parts of the scheduler's state below the leader's prefix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeptState {
    /// The remembered state of a cluster.
    Cluster(ObjectKey),
    /// The last decision on an application.
    Decision(ObjectKey),
    /// The recent moves of applications.
    Moves,
}

impl KeptState {
    /// The key, relative to the prefix.
    #[must_use]
    pub fn key(&self) -> String {
        let below = |prefix, of: &ObjectKey| {
            format!("{prefix}{}/{}", of.namespace.as_deref().unwrap_or_default(), of.name)
        };
        match self {
            Self::Cluster(cluster) => below(keys::PLACEMENT_CLUSTERS, cluster),
            Self::Decision(application) => below(keys::PLACEMENT_DECISIONS, application),
            Self::Moves => keys::PLACEMENT_MOVES.to_owned(),
        }
    }
}

/// A change of placement: one transaction. [`super::limits`] limits its size.
#[derive(Debug, Clone, Default)]
pub struct PlacementMutation {
    /// Resources that must still have these mod revisions; 0 means absent.
    pub unchanged: BTreeMap<ObjectKey, i64>,
    /// The mod revision that [`KeptState::Moves`] must still have; 0 means absent.
    pub moves_revision: Option<i64>,
    /// The transaction fails if any application was written after this revision.
    pub applications: Option<i64>,
    /// Resources to write; `None` deletes the resource.
    pub objects: BTreeMap<ObjectKey, Option<StoredObject>>,
    /// New state as JSON; `None` deletes it.
    pub kept: BTreeMap<KeptState, Option<Bytes>>,
    /// The evidence of the new bindings.
    pub evidence: Vec<BindingEvidence>,
}

impl PlacementMutation {
    /// The conditions with absolute keys, for a leader with this prefix.
    #[must_use]
    pub fn conditions(&self, prefix: &str) -> Vec<Condition> {
        let unchanged = self
            .unchanged
            .iter()
            .map(|(key, revision)| Condition::Unchanged { key: key.etcd_key(), revision: *revision });
        let moves = self.moves_revision.map(|revision| {
            let key = format!("{prefix}{}", KeptState::Moves.key());
            Condition::Unchanged { key, revision }
        });
        let applications = self.applications.map(|revision| {
            let prefix = Kind::Application.prefix().to_owned();
            Condition::NoneSince { prefix, revision }
        });
        unchanged.chain(moves).chain(applications).collect()
    }

    /// The writes with absolute keys, for a leader with this prefix.
    #[must_use]
    pub fn writes(&self, prefix: &str) -> Vec<Write> {
        let objects =
            self.objects.iter().map(|(key, object)| (key.etcd_key(), object.as_ref().map(|it| &it.0)));
        let kept: BTreeMap<String, Option<&Bytes>> = self
            .kept
            .iter()
            .map(|(kept, value)| (format!("{prefix}{}", kept.key()), value.as_ref()))
            .collect();
        let write = |(key, value): (String, Option<&Bytes>)| match value {
            Some(value) => Write::Put { key, value: value.clone(), lease: 0 },
            None => Write::Delete { key },
        };
        objects.chain(kept).map(write).collect()
    }

    /// The first resource whose key would name another resource or none when read back from etcd.
    #[must_use]
    pub fn find_misnamed_object(&self) -> Option<&ObjectKey> {
        self.objects.keys().find(|key| ObjectKey::from_etcd_key(&key.etcd_key()).as_ref() != Some(*key))
    }
}

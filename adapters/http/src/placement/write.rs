//! Writes a resource only over the version that was read, and otherwise refuses or repeats the request.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{HeaderMap, header};
use madako_domain::canary::{Canary, is_planted};
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::object_value::Object;
use madako_domain::placement::objects::Stored;
use madako_domain::store::{Condition, Outcome, Transaction, Write};

use super::change::{Change, Effect};
use super::problem::Problem;
use super::service::Service;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ExpectedTag {
    /// No requirement.
    Any,
    /// Any existing version (`*`).
    Existing,
    Tags(Vec<String>),
}

impl ExpectedTag {
    /// Parses `If-Match`. Weak and malformed tags never match (RFC 9110, 13.1.1).
    pub(super) fn read(headers: &HeaderMap) -> Self {
        let values = headers.get_all(header::IF_MATCH);
        let mut tags = Vec::new();
        let mut given = false;
        for value in values {
            given = true;
            for tag in value.to_str().unwrap_or_default().split(',').map(str::trim) {
                if tag == "*" {
                    return Self::Existing;
                }
                let bare = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
                tags.extend(bare.map(str::to_owned));
            }
        }
        if given && !is_planted(Canary::IfMatchIgnored) { Self::Tags(tags) } else { Self::Any }
    }

    /// Refuses a version that the client does not allow; `None` is an absent resource.
    pub(super) fn check_revision(&self, revision: Option<i64>) -> Result<(), Problem> {
        match revision {
            _ if *self == Self::Any => Ok(()),
            Some(revision) if self.matches(revision) => Ok(()),
            revision => Err(Problem::failed_precondition(revision)),
        }
    }

    fn matches(&self, revision: i64) -> bool {
        match self {
            Self::Any | Self::Existing => true,
            Self::Tags(tags) => tags.contains(&revision.to_string()),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct WrittenResource {
    pub(super) key: ObjectKey,
    /// Revision of its last change, or of its deletion.
    pub(super) revision: i64,
    pub(super) gone: bool,
    pub(super) shown: AnsweredResource,
}

#[derive(Debug, Clone)]
pub(super) enum AnsweredResource {
    /// Read from the view.
    Stored(Arc<Stored>),
    /// Just written, with its JSON.
    New(Box<Object>, Bytes),
}

impl WrittenResource {
    pub(super) fn written_object(&self) -> &Object {
        match &self.shown {
            AnsweredResource::Stored(stored) => &stored.object,
            AnsweredResource::New(object, _) => object,
        }
    }

    pub(super) fn serialized_object(&self) -> Bytes {
        match &self.shown {
            AnsweredResource::Stored(stored) => stored.wire.clone(),
            AnsweredResource::New(_, wire) => wire.clone(),
        }
    }
}

impl Service {
    /// Creates a resource that does not exist yet.
    pub(super) async fn create(&self, object: Object) -> Result<WrittenResource, Problem> {
        let key = object.key();
        let path = key.etcd_key();
        let value = Bytes::from(object.to_json());
        let transaction = Transaction {
            conditions: vec![Condition::Unchanged { key: path.clone(), revision: 0 }],
            writes: vec![Write::Put { key: path, value: value.clone(), lease: 0 }],
        };
        match self.commit(transaction).await? {
            Some(revision) => {
                tracing::debug!(%key, uid = object.metadata().uid, "a resource is created");
                Ok(WrittenResource {
                    key,
                    revision,
                    gone: false,
                    shown: AnsweredResource::New(Box::new(object), value),
                })
            }
            None => {
                self.refresh().await?;
                Err(match self.api.objects.unread_resource(&key) {
                    Some(unread) => Problem::unreadable_resource(&key, &unread.why),
                    None => Problem::already_exists(&key),
                })
            }
        }
    }

    /// Changes a resource. The view is already fresh; after a conflict it is refreshed again, up to the configured
    /// number of retries.
    pub(super) async fn change(
        &self,
        key: &ObjectKey,
        expected: &ExpectedTag,
        change: &Change,
    ) -> Result<WrittenResource, Problem> {
        for attempt in 0..=self.api.settings.retry_transactions {
            if attempt > 0 {
                self.refresh().await?;
            }
            if let Some(written) = self.attempt_change(key, expected, change).await? {
                return Ok(written);
            }
            tracing::debug!(%key, attempt, "another client wrote the resource at the same time");
        }
        // A client that requires a version must learn that it has changed.
        self.refresh().await?;
        match self.api.objects.get(key) {
            Some(stored) => {
                expected.check_revision(Some(stored.mod_revision)).and(Err(Problem::concurrent_write()))
            }
            None => Err(Problem::concurrent_write()),
        }
    }

    /// `None` after a conflict with a concurrent write.
    async fn attempt_change(
        &self,
        key: &ObjectKey,
        expected: &ExpectedTag,
        change: &Change,
    ) -> Result<Option<WrittenResource>, Problem> {
        let stored = self.api.objects.get(key).ok_or_else(|| self.absent_problem(key))?;
        expected.check_revision(Some(stored.mod_revision))?;
        let path = key.etcd_key();
        let (object, gone) = match change(&stored.object, &self.now())? {
            Effect::Keep => {
                let (key, revision) = (key.clone(), stored.mod_revision);
                return Ok(Some(WrittenResource {
                    key,
                    revision,
                    gone: false,
                    shown: AnsweredResource::Stored(stored),
                }));
            }
            Effect::Put(object) => (object, false),
            Effect::Delete(object) => (object, true),
        };
        let wire = Bytes::from(object.to_json());
        let write = match gone {
            false => Write::Put { key: path.clone(), value: wire.clone(), lease: 0 },
            true => Write::Delete { key: path.clone() },
        };
        let unchanged = Condition::Unchanged { key: path, revision: stored.mod_revision };
        let conditions =
            Some(unchanged).into_iter().filter(|_| !is_planted(Canary::RequestNotCompared)).collect();
        let committed = self.commit(Transaction { conditions, writes: vec![write] }).await?;
        Ok(committed.map(|revision| {
            let uid = &object.metadata().uid;
            match gone {
                // A deleted resource can no longer be inspected, so its deletion is logged.
                true => tracing::info!(%key, uid, "a resource is deleted"),
                false => tracing::debug!(%key, uid, "a resource is changed"),
            }
            WrittenResource {
                key: key.clone(),
                revision,
                gone,
                shown: AnsweredResource::New(Box::new(object), wire),
            }
        }))
    }

    /// The revision of the writes; `None` if a condition did not hold.
    async fn commit(&self, transaction: Transaction) -> Result<Option<i64>, Problem> {
        match self.api.objects.commit(transaction).await {
            Ok(Outcome::Committed { revision }) => Ok(Some(revision)),
            Ok(Outcome::Refused { .. }) => Ok(None),
            Err(error) => Err(Problem::store(&error)),
        }
    }

    /// The answer about a resource that is not available. An unreadable value is not a resource, but it exists.
    pub(super) fn absent_problem(&self, key: &ObjectKey) -> Problem {
        match self.api.objects.unread_resource(key) {
            Some(unread) => Problem::unreadable_resource(key, &unread.why),
            None => Problem::resource_not_found(key),
        }
    }

    /// The revision of the value at a key, readable or not.
    pub(super) fn revision_of(&self, key: &ObjectKey) -> Option<i64> {
        let objects = &self.api.objects;
        let readable = objects.get(key).map(|stored| stored.mod_revision);
        readable.or_else(|| objects.unread_resource(key).map(|unread| unread.mod_revision))
    }

    /// Deletes an unreadable value at a resource's key. `false` if there is none.
    pub(super) async fn discard(&self, key: &ObjectKey, expected: &ExpectedTag) -> Result<bool, Problem> {
        for _ in 0..=self.api.settings.retry_transactions {
            self.refresh().await?;
            let Some(unread) = self.api.objects.unread_resource(key) else { return Ok(false) };
            expected.check_revision(Some(unread.mod_revision))?;
            if unread.encrypted {
                // An instance with the encryption key can read the value and delete it as usual.
                return Err(Problem::unreadable_resource(key, &unread.why));
            }
            let path = key.etcd_key();
            let conditions = vec![Condition::Unchanged { key: path.clone(), revision: unread.mod_revision }];
            let transaction = Transaction { conditions, writes: vec![Write::Delete { key: path }] };
            if self.commit(transaction).await?.is_some() {
                tracing::warn!(%key, why = unread.why, "an unreadable resource is deleted by force");
                return Ok(true);
            }
        }
        Err(Problem::concurrent_write())
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_version_is_named_by_its_tag() {
        let read = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::IF_MATCH, HeaderValue::from_static(value));
            }
            ExpectedTag::read(&headers)
        };
        for (values, matches) in [
            (&[][..], true),
            (&["*"], true),
            (&["\"7\""], true),
            (&["\"6\", \"7\""], true),
            (&["\"6\"", "\"7\""], true),
            (&["\"6\""], false),
            (&["7"], false),
            (&["W/\"7\""], false),
            (&[""], false),
            (&["\"07\""], false),
        ] {
            assert_eq!(read(values).matches(7), matches, "{values:?}");
        }
    }
}

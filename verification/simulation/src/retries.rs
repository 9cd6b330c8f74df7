//! Applications that nothing fits: which of their writes are retries that the service may make in peace.
//!
//! Such a write changes nothing but how often and when it is tried again: it comes when the version before it said that the next
//! attempt is due, still finds no place, and either leaves fewer attempts or says that there is no time of another one. So their number
//! is bounded by the application's own back-off, and any other write of it is one as of everything else.

use std::collections::BTreeMap;

use madako_domain::keys;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::kubernetes::Application;
use madako_domain::placement::metadata::ResourceRef;
use madako_json::krake::timestamp::Timestamp;
use time::OffsetDateTime;

use crate::world::PREFIX;

/// What a version of an application says of its next attempt.
struct Attempt {
    due: Option<OffsetDateTime>,
    left: Option<i64>,
    bound: Option<ResourceRef>,
}

/// The attempts of all applications that were seen.
#[derive(Default)]
pub(crate) struct Retries(BTreeMap<ObjectKey, Attempt>);

impl Retries {
    /// An application is written, or gone (`None`), or something that cannot be read. Whether that is a retry.
    pub(crate) fn wrote(
        &mut self,
        key: &ObjectKey,
        application: Option<&Application>,
        now: OffsetDateTime,
    ) -> bool {
        let before = self.0.remove(key);
        let Some(Application { status, metadata, .. }) = application else { return false };
        let next = status.scheduled_retry.as_ref().map(Timestamp::instant);
        let after = Attempt { due: next, left: status.retries, bound: status.scheduled_to.clone() };
        let is_retry = before.is_some_and(|before| {
            let was_due = before.due.is_some_and(|due| due <= now);
            let is_last = after.due.is_none() || after.left < before.left;
            let fits_nowhere = status.reason.is_some() && before.bound == after.bound;
            was_due && is_last && fits_nowhere && metadata.deleted.is_none()
        });
        self.0.insert(key.clone(), after);
        is_retry
    }
}

/// The keys that a retry of an application writes: its own, and that of the decision on it.
pub(crate) fn keys_of(application: &ObjectKey) -> [String; 2] {
    let name = format!("{}/{}", application.namespace.as_deref().unwrap_or_default(), application.name);
    [application.etcd_key(), format!("{PREFIX}{}{name}", keys::PLACEMENT_DECISIONS)]
}

#[cfg(test)]
mod tests {
    use madako_domain::placement::kind::Kind;
    use madako_domain::placement::object_value::{Object, Resource as _};
    use serde_json::{Value, json};
    use time::macros::datetime;

    use super::*;

    /// A version of an application that nothing fits.
    fn version(retries: i64, retry: Option<&str>, to: Option<&str>, fails: bool) -> Object {
        let to =
            to.map(|name| json!({"api": "kubernetes", "kind": "Cluster", "namespace": "n", "name": name}));
        let reason: Value = if fails {
            json!({"code": "NO_SUITABLE_RESOURCE", "message": "No matching Kubernetes cluster found"})
        } else {
            Value::Null
        };
        let text = json!({
            "api": "kubernetes", "kind": "Application",
            "metadata": {"name": "app", "namespace": "n", "uid": "app", "finalizers": [],
                "created": "2026-01-01T00:00:00+00:00", "modified": "2026-01-01T00:00:00+00:00"},
            "spec": {"manifest": [], "constraints": {"cluster": {}, "migration": true}},
            "status": {"state": "DEGRADED", "reason": reason, "retries": retries, "scheduled_retry": retry,
                "scheduled_to": to},
        });
        Object::from_stored(Kind::Application, &text.to_string()).unwrap()
    }

    /// Whether each but the first of these versions, all written at ten minutes past, is a retry.
    fn retries(versions: &[Object]) -> Vec<bool> {
        let (key, now) =
            (ObjectKey::new(Kind::Application, Some("n"), "app"), datetime!(2026-01-01 00:10 UTC));
        let mut retries = Retries::default();
        let told = versions.iter().map(|version| retries.wrote(&key, Application::of(version), now));
        told.collect::<Vec<bool>>().split_off(1)
    }

    #[test]
    fn a_retry_is_one_that_was_due_and_as_often_as_there_are_attempts() {
        let (due, later) = (Some("2026-01-01T00:10:00+00:00"), Some("2026-01-01T00:10:20+00:00"));
        let of = |left: i64, retry| version(left, retry, None, true);
        assert_eq!(retries(&[of(3, due), of(2, due), of(1, due), of(0, None)]), [true; 3]);
        assert_eq!(retries(&[of(3, later), of(2, later)]), [false], "it was not due");
        assert_eq!(retries(&[of(3, due), of(3, due)]), [false], "no attempt less");
        // For ever, there is one that has a time.
        assert_eq!(retries(&[of(-1, due), of(-1, None), of(-1, None)]), [true, false]);
        assert_eq!(retries(&[of(-1, due), of(-1, due), of(-1, due)]), [false, false], "at any rate");
    }

    #[test]
    fn what_changes_more_than_an_attempt_is_none() {
        let due = Some("2026-01-01T00:10:00+00:00");
        let failing = || version(2, due, None, true);
        assert_eq!(retries(&[failing(), version(5, None, Some("one"), false)]), [false], "it is bound");
        let moved = [version(2, due, Some("one"), true), version(1, None, Some("two"), true)];
        assert_eq!(retries(&moved), [false], "it moved");
        assert_eq!(retries(&[failing(), version(5, None, None, false)]), [false], "it fits again");
    }
}

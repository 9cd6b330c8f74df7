//! Detects permitted retries of applications that no cluster fits; such writes do not end a quiet period.
//!
//! A retry changes only the number and the time of the attempts. The former version says that the attempt is due, the
//! application still fits nowhere, and the new version has fewer attempts left or no time of a next one. So the
//! application's own back-off bounds the number of retries; any other write counts as a change.

use std::collections::BTreeMap;

use madako_domain::keys;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::kubernetes::Application;
use madako_domain::placement::metadata::ResourceRef;
use madako_json::krake::timestamp::Timestamp;
use time::OffsetDateTime;

use crate::world::PREFIX;

/// The next attempt according to a version of an application.
struct NextAttempt {
    due: Option<OffsetDateTime>,
    left: Option<i64>,
    bound: Option<ResourceRef>,
}

#[derive(Default)]
pub(crate) struct Retries(BTreeMap<ObjectKey, NextAttempt>);

impl Retries {
    /// Records a version of an application, and returns true if it is a retry; `None` is a deleted or unreadable
    /// application.
    pub(crate) fn record_version(
        &mut self,
        key: &ObjectKey,
        application: Option<&Application>,
        now: OffsetDateTime,
    ) -> bool {
        let before = self.0.remove(key);
        let Some(Application { status, metadata, .. }) = application else { return false };
        let next = status.scheduled_retry.as_ref().map(Timestamp::instant);
        let after = NextAttempt { due: next, left: status.retries, bound: status.scheduled_to.clone() };
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

/// Keys that a retry of an application writes: the application and its decision.
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

    /// A version of an application that no cluster fits.
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

    /// True for each version except the first that is a retry; all are written at ten minutes past.
    fn retries(versions: &[Object]) -> Vec<bool> {
        let (key, now) =
            (ObjectKey::new(Kind::Application, Some("n"), "app"), datetime!(2026-01-01 00:10 UTC));
        let mut retries = Retries::default();
        let reported = versions
            .iter()
            .map(|version| retries.record_version(&key, Application::from_object(version), now));
        reported.collect::<Vec<bool>>().split_off(1)
    }

    #[test]
    fn retry_is_due_and_within_the_number_of_attempts() {
        let (due, later) = (Some("2026-01-01T00:10:00+00:00"), Some("2026-01-01T00:10:20+00:00"));
        let of = |left: i64, retry| version(left, retry, None, true);
        assert_eq!(retries(&[of(3, due), of(2, due), of(1, due), of(0, None)]), [true; 3]);
        assert_eq!(retries(&[of(3, later), of(2, later)]), [false], "it was not due");
        assert_eq!(retries(&[of(3, due), of(3, due)]), [false], "no attempt less");
        // With unlimited attempts, only a write that clears the due time is a retry.
        assert_eq!(retries(&[of(-1, due), of(-1, None), of(-1, None)]), [true, false]);
        assert_eq!(retries(&[of(-1, due), of(-1, due), of(-1, due)]), [false, false], "at any rate");
    }

    #[test]
    fn only_a_change_of_the_attempts_alone_is_a_retry() {
        let due = Some("2026-01-01T00:10:00+00:00");
        let failing = || version(2, due, None, true);
        assert_eq!(retries(&[failing(), version(5, None, Some("one"), false)]), [false], "it is bound");
        let moved = [version(2, due, Some("one"), true), version(1, None, Some("two"), true)];
        assert_eq!(retries(&moved), [false], "it moved");
        assert_eq!(retries(&[failing(), version(5, None, None, false)]), [false], "it fits again");
    }
}

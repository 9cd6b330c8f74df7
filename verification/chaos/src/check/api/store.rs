//! The history of applications in etcd, as the events that a watch of the placement API must deliver.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use madako_domain::placement::kind::{Kind, ObjectKey};
use serde_json::Value;

use crate::history::Micros;
use crate::observer::Revision;
use crate::world::NAMESPACE;

/// Steps named in a message; further ones are counted.
const MOST_NAMED: usize = 5;

/// Type of the watch event of a deletion.
const DELETED: &str = "DELETED";

#[derive(Debug, Clone, PartialEq)]
pub(super) struct WatchEvent {
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub(super) event: String,
    pub(super) object: Value,
}

impl fmt::Display for WatchEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modified = self.object["metadata"]["modified"].as_str().unwrap_or("at no time");
        write!(f, "{} {} (modified {modified})", self.event, key_of(&self.object))
    }
}

/// A revision that changed applications.
#[derive(Debug)]
pub(super) struct StoreStep {
    revision: i64,
    at: Micros,
    pub(super) changes: BTreeMap<String, WatchEvent>,
}

/// Every revision that changed applications, in order.
#[derive(Debug)]
pub(super) struct StoreHistory {
    pub(super) steps: Vec<StoreStep>,
}

impl StoreHistory {
    pub(super) fn read(revisions: &[Revision]) -> Self {
        let mut objects: BTreeMap<&str, Value> = BTreeMap::new();
        let mut steps = Vec::new();
        for revision in revisions {
            let mut changes = BTreeMap::new();
            for change in revision.changes.iter().filter(|change| is_application_key(&change.key)) {
                let key = change.key.as_str();
                // The judge of placement reports an unreadable value; here it is ignored.
                let value = change.value.as_deref().and_then(|value| serde_json::from_slice(value).ok());
                let shown = match value {
                    Some(object) => {
                        let known = objects.insert(key, Value::clone(&object)).is_some();
                        let event =
                            if known && change.created != revision.revision { "MODIFIED" } else { "ADDED" };
                        Some(WatchEvent { event: event.to_owned(), object })
                    }
                    // A deletion event has the last object.
                    None => {
                        objects.remove(key).map(|object| WatchEvent { event: DELETED.to_owned(), object })
                    }
                };
                changes.extend(shown.map(|shown| (key.to_owned(), shown)));
            }
            if !changes.is_empty() {
                steps.push(StoreStep { revision: revision.revision, at: revision.at, changes });
            }
        }
        Self { steps }
    }

    /// Number of steps observed until `at`: a lower bound of the store's steps at that time.
    pub(super) fn count_steps_until(&self, at: Micros) -> usize {
        self.steps.partition_point(|step| step.at <= at)
    }

    /// The fewest and the most steps, at least `least`, after which the store contained exactly the list.
    pub(super) fn listed_steps(&self, least: usize, answer: &Value) -> Option<[usize; 2]> {
        let items = answer["items"].as_array()?;
        let list: BTreeMap<String, &Value> = items.iter().map(|item| (key_of(item), item)).collect();
        // A list must not contain an object twice.
        if list.len() != items.len() {
            return None;
        }
        // Keys at which list and store differ; the store is empty at first.
        let mut other: BTreeSet<&str> = list.keys().map(String::as_str).collect();
        let mut found: Option<[usize; 2]> = None;
        for steps in 0..=self.steps.len() {
            let changes = steps.checked_sub(1).map(|step| &self.steps[step].changes);
            for (key, shown) in changes.into_iter().flatten() {
                let object = (shown.event != DELETED).then_some(&shown.object);
                match object == list.get(key).copied() {
                    true => other.remove(key.as_str()),
                    false => other.insert(key),
                };
            }
            if steps >= least && other.is_empty() {
                found = Some([found.map_or(steps, |[fewest, _]| fewest), steps]);
            }
        }
        found
    }

    pub(super) fn describe_steps(&self, first: usize, last: usize) -> String {
        let steps = self.steps.iter().take(last.saturating_add(1)).skip(first);
        let mut words: Vec<String> = steps
            .flat_map(|step| {
                step.changes.values().map(|shown| format!("{shown} of revision {}", step.revision))
            })
            .collect();
        let more = words.len().saturating_sub(MOST_NAMED);
        words.truncate(MOST_NAMED);
        match (words.is_empty(), more) {
            (true, _) => "nothing".to_owned(),
            (false, 0) => words.join(", "),
            (false, more) => format!("{} and {more} more", words.join(", ")),
        }
    }
}

fn is_application_key(key: &str) -> bool {
    ObjectKey::from_etcd_key(key)
        .is_some_and(|key| key.kind == Kind::Application && key.namespace.as_deref() == Some(NAMESPACE))
}

pub(super) fn key_of(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = object["metadata"]["namespace"].as_str();
    ObjectKey::new(Kind::Application, namespace, name).etcd_key()
}

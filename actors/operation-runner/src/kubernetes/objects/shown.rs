//! The state of each object of Kubernetes, for the output of commands.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::keys;
use madako_domain::objects::FoundObject;
use madako_domain::resource::ResourceKey;
use madako_json::named;
use serde::Serialize;

use super::decide::{ObjectDifference, ObjectsInput, decide, resources};
use super::row::{healthy_servers, objects_input};
use super::service_account;
use crate::input::Input;
use crate::kubernetes::options::KubernetesOptions;

/// The state of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum ObjectState {
    Good,
    /// An operation is due.
    Due,
    /// An operation is due and waits.
    Held,
    /// No API server reported its present state.
    Unknown,
}

named!(ObjectState);

/// An object with its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownObject {
    pub key: String,
    pub state: ObjectState,
    /// Its differences from the wanted object, and the reasons for which it waits.
    pub why: Vec<String>,
}

/// The objects that the service keeps, resources first; `None`: no API server is healthy.
#[must_use]
pub fn objects(input: &Input<'_>, options: &KubernetesOptions) -> Option<Vec<ShownObject>> {
    shown(input, options, |_| true)
}

/// The static and user-defined resources, in the order of application; `None`: no API server is healthy.
#[must_use]
pub fn resource_states(input: &Input<'_>, options: &KubernetesOptions) -> Option<Vec<ShownObject>> {
    let (domain, healthy) = (options.cluster_domain(), healthy_servers(input));
    let objects = objects_input(input, &domain, &healthy)?;
    let (wanted, _) = resources(&objects);
    let mut keys: BTreeSet<String> =
        wanted.iter().chain(&objects.user.wanted).map(|resource| resource.key.to_string()).collect();
    let stored = objects.user.faults.keys();
    keys.extend(stored.filter_map(|stored| Some(stored.strip_prefix(keys::RESOURCES)?.to_owned())));
    shown(input, options, |key| keys.contains(&key.to_string()))
}

fn shown(
    input: &Input<'_>,
    options: &KubernetesOptions,
    is_shown: impl Fn(&ResourceKey) -> bool,
) -> Option<Vec<ShownObject>> {
    let (domain, healthy) = (options.cluster_domain(), healthy_servers(input));
    let shown = show_all(&objects_input(input, &domain, &healthy)?);
    let shown = shown.into_iter().filter(|(key, _)| is_shown(key));
    Some(shown.map(|(key, (state, why))| ShownObject { key: key.to_string(), state, why }).collect())
}

/// The state of an object that nothing is due for.
fn state_of<T>(found: Option<&FoundObject<T>>) -> (ObjectState, Vec<String>) {
    match found {
        None => (ObjectState::Unknown, vec!["it was not read".to_owned()]),
        Some(FoundObject::Unread(why)) => (ObjectState::Unknown, vec![why.clone()]),
        Some(_) => (ObjectState::Good, Vec::new()),
    }
}

/// The state of each object, with the reasons.
pub(super) fn show_all(objects: &ObjectsInput<'_>) -> BTreeMap<ResourceKey, (ObjectState, Vec<String>)> {
    let answers = objects.answers;
    let mut states: BTreeMap<ResourceKey, (ObjectState, Vec<String>)> = BTreeMap::new();
    let (wanted, due) = resources(objects);
    for resource in &wanted {
        states.insert(resource.key.clone(), state_of(answers.resources.get(&resource.key)));
    }
    for (key, found) in &answers.contents {
        // A Service that is only read is none of the service's objects.
        let is_kept = !matches!(found, FoundObject::Missing) || *key == service_account().key;
        if is_kept && key.kind != "Service" {
            states.entry(key.clone()).or_insert_with(|| state_of(Some(found)));
        }
    }
    let decision = decide(objects);
    for held in decision.held {
        let state = match held.reason.name() {
            "unread" => ObjectState::Unknown,
            _ => ObjectState::Held,
        };
        states.insert(held.key, (state, vec![held.reason.to_string()]));
    }
    for operation in decision.operations {
        let why = match &operation.why {
            ObjectDifference::Resource(difference) => difference.to_string(),
            ObjectDifference::Content => "its content differs".to_owned(),
            ObjectDifference::Nodes => "its labels, annotations or taints differ".to_owned(),
            ObjectDifference::NotInCluster => "its node is not in the cluster".to_owned(),
        };
        for (key, _) in operation.command.objects() {
            states.insert(key, (ObjectState::Due, vec![why.clone()]));
        }
    }
    for due in due {
        match states.get_mut(&due.key) {
            // Nothing is decided before the controller manager has begun its work.
            Some((state @ ObjectState::Good, why)) => {
                *state = ObjectState::Held;
                why.push(due.why.to_string());
            }
            // A resource that waits for its rank is due for a reason of its own.
            Some((_, why)) if due.held.is_some() => why.insert(0, due.why.to_string()),
            _ => {}
        }
    }
    states
}

//! The state of each object of Kubernetes, for people.

use std::collections::BTreeMap;

use madako_domain::objects::FoundObject;
use madako_domain::resource::ResourceKey;
use madako_json::named;
use serde::Serialize;

use super::decide::{ObjectDifference, decide, resources};
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
    /// No API server told its present state.
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
pub fn shown_resources(input: &Input<'_>, options: &KubernetesOptions) -> Option<Vec<ShownObject>> {
    let (domain, healthy) = (options.cluster_domain(), healthy_servers(input));
    let objects = objects_input(input, &domain, &healthy)?;
    let (wanted, _) = resources(&objects);
    let faults: Vec<String> =
        objects.user.faults.keys().filter_map(|stored| Some(stored.split_once('/')?.1.to_owned())).collect();
    shown(input, options, |key| {
        wanted.iter().any(|resource| resource.key == *key) || faults.contains(&key.to_string())
    })
}

fn shown(
    input: &Input<'_>,
    options: &KubernetesOptions,
    is_shown: impl Fn(&ResourceKey) -> bool,
) -> Option<Vec<ShownObject>> {
    let (domain, healthy) = (options.cluster_domain(), healthy_servers(input));
    let objects = objects_input(input, &domain, &healthy)?;
    let answers = objects.answers;
    let mut states: BTreeMap<ResourceKey, (ObjectState, Vec<String>)> = BTreeMap::new();
    let unknown = || (ObjectState::Unknown, vec!["it was not read".to_owned()]);
    let (wanted, due) = resources(&objects);
    for resource in &wanted {
        let is_read = answers.resources.contains_key(&resource.key);
        let state = if is_read { (ObjectState::Good, Vec::new()) } else { unknown() };
        states.insert(resource.key.clone(), state);
    }
    for (key, found) in &answers.contents {
        // A Service that is only read is none of the service's objects.
        let is_kept = !matches!(found, FoundObject::Missing) || *key == service_account().key;
        if is_kept && key.kind != "Service" {
            states.entry(key.clone()).or_insert((ObjectState::Good, Vec::new()));
        }
    }
    let decision = decide(&objects);
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
            ObjectDifference::NotInitialized => "no controller manager has made it yet".to_owned(),
            ObjectDifference::Content => "its content differs".to_owned(),
            ObjectDifference::Nodes => "its labels, annotations or taints differ".to_owned(),
            ObjectDifference::NotInCluster => "its node is not in the cluster".to_owned(),
        };
        for (key, _) in operation.command.objects() {
            states.insert(key, (ObjectState::Due, vec![why.clone()]));
        }
    }
    // A resource that waits for its rank is due for a reason of its own.
    for due in due {
        if let Some((_, why)) = states.get_mut(&due.key).filter(|_| due.held.is_some()) {
            why.insert(0, due.why.to_string());
        }
    }
    let shown = states.into_iter().filter(|(key, _)| is_shown(key));
    Some(shown.map(|(key, (state, why))| ShownObject { key: key.to_string(), state, why }).collect())
}

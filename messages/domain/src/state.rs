//! The decoded keys of the cluster in etcd (template, constraints, cluster, queues): one immutable view at one
//! revision.
//!
//! Decoding never fails as a whole. An unreadable value is reported in [`ClusterState::faults`], and everything that
//! depends on it waits.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::backup::BackupRecord;
use crate::cluster::Cluster;
use crate::constraints::Constraints;
use crate::containers::ContainerOptions;
use crate::encryption_rotation::EncryptionRotation;
use crate::guard::GuardState;
use crate::host_key::{PinnedKey, PinnedKeys};
use crate::images::GivenImages;
use crate::keys;
use crate::machine::QueryVariables;
use crate::node_status::ConfigVersion;
use crate::objects::UserResources;
use crate::observation::Query;
use crate::obstacle::Obstacles;
use crate::repair::config::RepairConfig;
use crate::repair::hold::Hold;
use crate::repair::queue::RepairQueue;
use crate::restart::{RestartRequest, RestartRequests};
use crate::restore::{RestoreRequest, Restored};
use crate::rollout::Rollout;
use crate::settings::Settings;
use crate::store::{Condition, Entry};
use crate::template::Template;

/// A value with the revision of its last change; revision 0 means "not stored".
#[derive(Debug, Clone, PartialEq)]
pub struct RevisedValue<T> {
    /// The value, decoded from the bytes at that revision.
    pub value: T,
    /// Mod revision of its key.
    pub revision: i64,
}

/// A stored value that is unusable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Key relative to the prefix.
    pub key: String,
    /// The fault in words.
    pub why: String,
}

/// The inputs and the result of cluster keeping, at one revision.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterState {
    /// The store's revision of this view.
    pub revision: i64,
    /// The committed cluster configuration.
    pub cluster: Option<RevisedValue<Arc<Cluster>>>,
    /// The revision of the template that the cluster was generated from; 0 if unknown, as in CKE.
    pub cluster_revision: i64,
    /// The constraints; CKE's defaults if none are stored.
    pub constraints: Option<RevisedValue<Arc<Constraints>>>,
    /// The template, if a valid one is stored.
    pub template: Option<RevisedValue<Arc<Template>>>,
    /// URL of the registry.
    pub url: Option<RevisedValue<String>>,
    /// The query's variables, if valid ones are stored.
    pub variables: Option<RevisedValue<Arc<QueryVariables>>>,
    /// True if the integration with the registry is disabled.
    pub disabled: bool,
    /// True if repairs that the registry requests are disabled.
    pub auto_repair_disabled: bool,
    /// The variables of the query for machines to repair, if valid ones are stored.
    pub auto_repair_variables: Option<RevisedValue<Arc<QueryVariables>>>,
    /// The stored states of racks, by the value of their label.
    pub holds: BTreeMap<String, RevisedValue<Arc<Hold>>>,
    /// The removal guard, while it holds an observation back.
    pub guard: Option<RevisedValue<GuardState>>,
    /// The obstacles that the leader stored.
    pub obstacles: Option<RevisedValue<Obstacles>>,
    /// The settings that the leader stored.
    pub settings: Option<RevisedValue<Settings>>,
    /// The repair settings of the cluster; `None` without a cluster, or if its section is unusable.
    pub repair_config: Option<Arc<RepairConfig>>,
    /// The reason why that section is unusable.
    pub repair_fault: Option<String>,
    /// The repair queue.
    pub repair: Arc<RepairQueue>,
    /// The form of the stored cluster; `None` if its key is unusable.
    pub config_version: Option<ConfigVersion>,
    /// Containers' options of the cluster; `None` without a cluster, or if they are unusable.
    pub container_options: Option<Arc<ContainerOptions>>,
    /// The reason why these options are unusable.
    pub options_fault: Option<String>,
    /// Host keys of nodes that were pinned.
    pub host_keys: Arc<PinnedKeys>,
    /// Requests of operators to restart members of etcd.
    pub restarts: RestartRequests,
    /// The request of an operator to restore etcd.
    pub restore: Option<RestoreRequest>,
    /// The last restore of etcd that began.
    pub restored: Option<Arc<Restored>>,
    /// The last backup of etcd that counts.
    pub etcd_backup: Option<RevisedValue<BackupRecord>>,
    /// The images that the operator stored; none if the key is absent. An unreadable key is a fault.
    pub images: Arc<GivenImages>,
    /// The roll of kubelets and proxies; `None` before the first one.
    pub rollout: Option<Arc<Rollout>>,
    /// The rotation of the key with which API servers encrypt Secrets; `None`: there is none.
    pub encryption_rotation: Option<Arc<EncryptionRotation>>,
    /// The user-defined resources for Kubernetes.
    pub resources: Arc<UserResources>,
    /// Mod revision of each existing key of the values above.
    pub revisions: BTreeMap<String, i64>,
    /// The lease of the key `status`, if it exists.
    pub status_lease: Option<i64>,
    /// All unusable values in this view.
    pub faults: Vec<Fault>,
}

/// The inputs of a plan; the last two select the machines.
const PLAN_INPUTS: [&str; 7] = [
    keys::CLUSTER,
    keys::CLUSTER_REVISION,
    keys::CONSTRAINTS,
    keys::SABAKAN_TEMPLATE,
    keys::SABAKAN_DISABLED,
    keys::SABAKAN_URL,
    keys::SABAKAN_VARIABLES,
];

impl ClusterState {
    /// Decodes the keys below the prefix at `revision`. Values that did not change since `last` are reused: a cluster
    /// can be megabytes of JSON.
    #[must_use]
    pub fn decode(revision: i64, entries: &BTreeMap<String, Entry>, last: Option<&Self>) -> Self {
        let kept = |key: &str| {
            last.filter(|last| {
                last.fault_of(key).is_none()
                    && entries.get(key).is_some_and(|entry| entry.mod_revision == last.revision_of(key))
            })
        };
        let mut faults = Vec::new();
        let mut state = Self { revision, ..Self::default() };
        state.cluster = match kept(keys::CLUSTER) {
            Some(last) => last.cluster.clone(),
            None => read_json::<Cluster>(entries, keys::CLUSTER, &mut faults)
                .map(|(value, revision)| RevisedValue { value: Arc::new(value), revision }),
        };
        (state.repair_config, state.repair_fault) = match kept(keys::CLUSTER) {
            Some(last) => (last.repair_config.clone(), last.repair_fault.clone()),
            None => read_part(state.cluster.as_ref(), |cluster| RepairConfig::read(&cluster.repair)),
        };
        (state.container_options, state.options_fault) = match kept(keys::CLUSTER) {
            Some(last) => (last.container_options.clone(), last.options_fault.clone()),
            None => read_part(state.cluster.as_ref(), |cluster| ContainerOptions::read(&cluster.options)),
        };
        state.config_version = match read_text(entries, keys::CONFIG_VERSION, &mut faults) {
            None if entries.contains_key(keys::CONFIG_VERSION) => None,
            None => Some(ConfigVersion::One),
            Some((version, _)) => match version.as_str() {
                "1" => Some(ConfigVersion::One),
                "2" => Some(ConfigVersion::Two),
                _ => {
                    let why = format!("got {version:?}, expected \"1\" or \"2\"");
                    faults.push(Fault { key: keys::CONFIG_VERSION.to_owned(), why });
                    None
                }
            },
        };
        state.host_keys = Arc::new(pinned_keys(entries, last, &mut faults));
        state.cluster_revision = read_text(entries, keys::CLUSTER_REVISION, &mut faults)
            .map(|(text, _)| match text.parse() {
                Ok(number) => number,
                Err(_) => {
                    faults.push(Fault {
                        key: keys::CLUSTER_REVISION.to_owned(),
                        why: format!("got {text:?}, expected a decimal number"),
                    });
                    0
                }
            })
            .unwrap_or(0);
        state.constraints = if entries.contains_key(keys::CONSTRAINTS) {
            read_json::<Constraints>(entries, keys::CONSTRAINTS, &mut faults)
                .map(|(value, revision)| RevisedValue { value: Arc::new(value), revision })
        } else {
            Some(RevisedValue { value: Arc::new(Constraints::default()), revision: 0 })
        };
        state.template = read_json::<Cluster>(entries, keys::SABAKAN_TEMPLATE, &mut faults).and_then(
            |(value, revision)| match Template::new(value) {
                Ok(template) => Some(RevisedValue { value: Arc::new(template), revision }),
                Err(error) => {
                    faults.push(Fault { key: keys::SABAKAN_TEMPLATE.to_owned(), why: error.to_string() });
                    None
                }
            },
        );
        state.url = read_text(entries, keys::SABAKAN_URL, &mut faults)
            .map(|(value, revision)| RevisedValue { value, revision });
        state.variables = read_json::<QueryVariables>(entries, keys::SABAKAN_VARIABLES, &mut faults)
            .map(|(value, revision)| RevisedValue { value: Arc::new(value), revision });
        // CKE compares the bytes: every value except `true` means enabled.
        state.disabled = entries.get(keys::SABAKAN_DISABLED).is_some_and(|entry| &entry.value[..] == b"true");
        state.auto_repair_disabled =
            entries.get(keys::AUTO_REPAIR_DISABLED).is_some_and(|entry| &entry.value[..] == b"true");
        state.auto_repair_variables =
            read_json::<QueryVariables>(entries, keys::AUTO_REPAIR_VARIABLES, &mut faults)
                .map(|(value, revision)| RevisedValue { value: Arc::new(value), revision });
        for key in names_below(entries, keys::REPAIR_HOLDS) {
            if let Some((value, revision)) = read_json::<Hold>(entries, key, &mut faults) {
                let rack = key[keys::REPAIR_HOLDS.len()..].to_owned();
                state.holds.insert(rack, RevisedValue { value: Arc::new(value), revision });
            }
        }
        for key in names_below(entries, keys::ETCD_RESTARTS) {
            if let Some((request, _)) = read_json::<RestartRequest>(entries, key, &mut faults) {
                state.restarts.insert(key[keys::ETCD_RESTARTS.len()..].to_owned(), request);
            }
        }
        state.restore =
            read_json::<RestoreRequest>(entries, keys::ETCD_RESTORE, &mut faults).map(|(value, _)| value);
        state.restored = read_json::<Restored>(entries, keys::ETCD_RESTORED, &mut faults)
            .map(|(value, _)| Arc::new(value));
        state.guard = read_json::<GuardState>(entries, keys::REMOVAL_GUARD, &mut faults)
            .map(|(value, revision)| RevisedValue { value, revision });
        state.obstacles = read_json::<Obstacles>(entries, keys::OBSTACLES, &mut faults)
            .map(|(value, revision)| RevisedValue { value, revision });
        state.settings = read_json::<Settings>(entries, keys::SETTINGS, &mut faults)
            .map(|(value, revision)| RevisedValue { value, revision });
        state.etcd_backup = read_json::<BackupRecord>(entries, keys::ETCD_BACKUP, &mut faults)
            .map(|(value, revision)| RevisedValue { value, revision });
        state.images = read_json::<GivenImages>(entries, keys::IMAGES, &mut faults)
            .map(|(value, _)| Arc::new(value))
            .unwrap_or_default();
        state.rollout =
            read_json::<Rollout>(entries, keys::ROLLOUT, &mut faults).map(|(value, _)| Arc::new(value));
        state.encryption_rotation =
            read_json::<EncryptionRotation>(entries, keys::ENCRYPTION_ROTATION, &mut faults)
                .map(|(value, _)| Arc::new(value));
        let stored = names_below(entries, keys::RESOURCES).filter_map(|key| {
            let entry = entries.get(key)?;
            Some((key.to_owned(), (entry.value.clone(), entry.mod_revision)))
        });
        let stored = UserResources(stored.collect());
        state.resources = match last.map(|last| &last.resources).filter(|last| ***last == stored) {
            Some(last) => Arc::clone(last),
            None => Arc::new(stored),
        };
        state.status_lease = entries.get(keys::STATUS).map(|entry| entry.lease);
        state.revisions = [
            keys::CLUSTER,
            keys::CLUSTER_REVISION,
            keys::CONSTRAINTS,
            keys::SABAKAN_TEMPLATE,
            keys::SABAKAN_URL,
            keys::SABAKAN_VARIABLES,
            keys::SABAKAN_DISABLED,
            keys::AUTO_REPAIR_DISABLED,
            keys::AUTO_REPAIR_VARIABLES,
            keys::REMOVAL_GUARD,
            keys::OBSTACLES,
            keys::STATUS,
            keys::LAST_PLAN,
            keys::CONFIG_VERSION,
            keys::ETCD_RESTORE,
            keys::ETCD_RESTORED,
            keys::ETCD_BACKUP,
            keys::IMAGES,
            keys::ROLLOUT,
            keys::ENCRYPTION_ROTATION,
            keys::REBOOTS_DISABLED,
            keys::REBOOTS_RUNNING,
            keys::REBOOTS_RELEASED,
        ]
        .into_iter()
        .chain(names_below(entries, keys::REPAIR_HOLDS))
        .chain(names_below(entries, keys::HOST_KEYS))
        .chain(names_below(entries, keys::ETCD_RESTARTS))
        .filter_map(|key| entries.get(key).map(|entry| (key.to_owned(), entry.mod_revision)))
        .collect();
        let last_repair = last.map(|last| &*last.repair);
        state.repair = Arc::new(RepairQueue::decode(entries, last_repair, &mut faults));
        state.faults = faults;
        state
    }

    /// The query for machines to repair; `None` when the registry must not be polled for them.
    #[must_use]
    pub fn reports_query(&self) -> Option<Query> {
        // While a rack is held, the reports show when it has recovered, even if auto-repair is disabled.
        let held = || self.holds.values().any(|hold| hold.value.is_held());
        let wanted = !self.auto_repair_disabled || held() || self.unreadable_holds().next().is_some();
        let url = self.url.as_ref().filter(|_| wanted)?;
        let variables = self.revision_of(keys::AUTO_REPAIR_VARIABLES);
        // Unusable stored variables must not turn into the defaults, which select other machines.
        let usable = variables == 0 || self.auto_repair_variables.is_some();
        usable.then_some(Query { url: url.revision, variables })
    }

    /// True if the requested restore of etcd has begun.
    #[must_use]
    pub fn is_restoring(&self) -> bool {
        let began = self.restored.as_ref().zip(self.restore.as_ref());
        began.is_some_and(|(restored, request)| restored.began_for(request))
    }

    /// Racks whose hold cannot be read; they may be held.
    pub fn unreadable_holds(&self) -> impl Iterator<Item = &str> {
        self.faults.iter().filter_map(|fault| fault.key.strip_prefix(keys::REPAIR_HOLDS))
    }

    /// The condition that a key is unchanged since this view.
    #[must_use]
    pub fn require_unchanged(&self, key: &str) -> Condition {
        Condition::Unchanged { key: key.to_owned(), revision: self.revision_of(key) }
    }

    /// Mod revision of a key in this view; 0 if it does not exist.
    #[must_use]
    pub fn revision_of(&self, key: &str) -> i64 {
        self.revisions.get(key).copied().unwrap_or(0)
    }

    /// The conditions of a plan's commit: the inputs of this view are unchanged.
    #[must_use]
    pub fn plan_basis(&self) -> Vec<Condition> {
        PLAN_INPUTS.into_iter().map(|key| self.require_unchanged(key)).collect()
    }

    /// True if the template differs from the one that the cluster was generated from.
    #[must_use]
    pub fn has_changed_template(&self) -> bool {
        self.template.as_ref().is_some_and(|template| template.revision != self.cluster_revision)
    }

    /// The fault of a key, if it is unusable.
    #[must_use]
    pub fn fault_of(&self, key: &str) -> Option<&str> {
        self.faults.iter().find(|fault| fault.key == key).map(|fault| fault.why.as_str())
    }
}

fn names_below<'e>(entries: &'e BTreeMap<String, Entry>, prefix: &'e str) -> impl Iterator<Item = &'e str> {
    entries
        .range(prefix.to_owned()..)
        .map(|(key, _)| key.as_str())
        .take_while(move |key| key.starts_with(prefix))
}

/// Reads a part of a cluster, or returns the fault.
fn read_part<T, E: ToString>(
    cluster: Option<&RevisedValue<Arc<Cluster>>>,
    read: impl FnOnce(&Cluster) -> Result<T, E>,
) -> (Option<Arc<T>>, Option<String>) {
    match cluster.map(|cluster| read(&cluster.value)) {
        None => (None, None),
        Some(Ok(part)) => (Some(Arc::new(part)), None),
        Some(Err(error)) => (None, Some(error.to_string())),
    }
}

/// Reads the pinned host keys, and reuses those that did not change.
fn pinned_keys(
    entries: &BTreeMap<String, Entry>,
    last: Option<&ClusterState>,
    faults: &mut Vec<Fault>,
) -> PinnedKeys {
    let mut pinned = PinnedKeys::new();
    for key in names_below(entries, keys::HOST_KEYS) {
        let address = &key[keys::HOST_KEYS.len()..];
        let revision = entries.get(key).map_or(0, |entry| entry.mod_revision);
        let known = last.and_then(|last| last.host_keys.get(address)).filter(|known| known.1 == revision);
        let read = known.cloned().or_else(|| read_json::<PinnedKey>(entries, key, faults));
        if let Some(read) = read {
            pinned.insert(address.to_owned(), read);
        }
    }
    pinned
}

pub(crate) fn read_json<T: DeserializeOwned>(
    entries: &BTreeMap<String, Entry>,
    key: &str,
    faults: &mut Vec<Fault>,
) -> Option<(T, i64)> {
    let entry = entries.get(key)?;
    match serde_json::from_slice(&entry.value) {
        Ok(value) => Some((value, entry.mod_revision)),
        Err(error) => {
            faults.push(Fault { key: key.to_owned(), why: format!("not readable: {error}") });
            None
        }
    }
}

fn read_text(entries: &BTreeMap<String, Entry>, key: &str, faults: &mut Vec<Fault>) -> Option<(String, i64)> {
    let entry = entries.get(key)?;
    match std::str::from_utf8(&entry.value) {
        Ok(text) => Some((text.to_owned(), entry.mod_revision)),
        Err(_) => {
            faults.push(Fault { key: key.to_owned(), why: "not UTF-8 text".to_owned() });
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn entries(values: &[(&str, &str)]) -> BTreeMap<String, Entry> {
        values
            .iter()
            .enumerate()
            .map(|(at, (key, value))| {
                let revision = i64::try_from(at).unwrap() + 1;
                (
                    (*key).to_owned(),
                    Entry {
                        value: Bytes::from((*value).to_owned()),
                        create_revision: revision,
                        mod_revision: revision,
                        lease: 0,
                    },
                )
            })
            .collect()
    }

    #[test]
    fn an_empty_store_has_the_default_constraints_and_nothing_else() {
        let state = ClusterState::decode(1, &BTreeMap::new(), None);
        assert_eq!(state.constraints.unwrap().value.minimum_workers, 1);
        assert!(state.cluster.is_none() && state.template.is_none() && state.faults.is_empty());
    }

    #[test]
    fn a_value_that_cannot_be_read_is_a_fault_and_never_a_default() {
        let state = ClusterState::decode(
            3,
            &entries(&[
                (keys::CONSTRAINTS, "{"),
                (keys::SABAKAN_TEMPLATE, r#"{"name":"c","nodes":[]}"#),
                (keys::CLUSTER_REVISION, "x"),
            ]),
            None,
        );
        assert!(state.constraints.is_none() && state.template.is_none());
        let mut faulty: Vec<&str> = state.faults.iter().map(|fault| fault.key.as_str()).collect();
        faulty.sort_unstable();
        assert_eq!(faulty, [keys::CLUSTER_REVISION, keys::CONSTRAINTS, keys::SABAKAN_TEMPLATE]);
    }

    #[test]
    fn stored_images_that_are_wrong_are_a_fault() {
        let images = |text| ClusterState::decode(1, &entries(&[(keys::IMAGES, text)]), None);
        let good = images(r#"{"etcd": "a:1"}"#);
        assert_eq!(good.images.0.values().collect::<Vec<_>>(), ["a:1"]);
        assert!(good.faults.is_empty() && good.revision_of(keys::IMAGES) == 1);
        let wrong = images(r#"{"etcd": "a 1"}"#);
        assert!(wrong.images.0.is_empty() && wrong.fault_of(keys::IMAGES).unwrap().contains("etcd"));
    }

    #[test]
    fn only_the_bytes_true_switch_the_registry_off() {
        for (value, disabled) in [("true", true), ("false", false), ("True", false), ("", false)] {
            let state = ClusterState::decode(1, &entries(&[(keys::SABAKAN_DISABLED, value)]), None);
            assert_eq!(state.disabled, disabled, "{value:?}");
        }
    }

    #[test]
    fn a_plans_basis_is_every_input_even_one_that_is_absent() {
        let state = ClusterState::decode(2, &entries(&[(keys::CLUSTER, r#"{"name":"c"}"#)]), None);
        let basis = state.plan_basis();
        assert!(basis.contains(&Condition::Unchanged { key: keys::CLUSTER.to_owned(), revision: 1 }));
        assert!(basis.contains(&Condition::Unchanged { key: keys::CONSTRAINTS.to_owned(), revision: 0 }));
    }

    #[test]
    fn an_entry_that_did_not_change_is_not_read_again() {
        let mut entries = entries(&[(keys::CLUSTER, r#"{"name":"c"}"#), (keys::SABAKAN_URL, "u")]);
        let first = ClusterState::decode(2, &entries, None);
        let second = ClusterState::decode(3, &entries, Some(&first));
        let arc = |state: &ClusterState| Arc::clone(&state.cluster.as_ref().unwrap().value);
        assert!(Arc::ptr_eq(&arc(&first), &arc(&second)));
        if let Some(entry) = entries.get_mut(keys::CLUSTER) {
            entry.value = Bytes::from_static(br#"{"name":"d"}"#);
            entry.mod_revision = 4;
        }
        let third = ClusterState::decode(4, &entries, Some(&second));
        assert_eq!(arc(&third).name, "d");
    }
}

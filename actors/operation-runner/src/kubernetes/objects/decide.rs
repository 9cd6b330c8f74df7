//! The operations of CKE's phase `k8s-maintain`, in CKE's order: resources, DNS, endpoints, nodes.
//!
//! # Guarantees
//! - Before the controller manager has begun its work, there is no operation, and the wait for it is held.
//! - An object that was not read is not changed, and holds no other one.
//! - Each object that is due and in no operation is held, with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use madako_domain::cluster::{Cluster, Node};
use madako_domain::keys;
use madako_domain::objects::{FoundObject, Manifest, NodeChange, NodeObject, ObjectAnswers, ObjectName};
use madako_domain::resource::{ANNOTATION_IMAGE, ResourceKey};
use serde_json::Value;
use time::OffsetDateTime;

use super::apply::{
    ApplyView, DueResource, FailedApply, ReadResources, ResourceDifference, ResourceReason, WantedResource,
    due_resources,
};
use super::dns::{CLUSTER_DNS, COREFILE, NODE_DNS, UNBOUND_CONF, cluster_dns, node_dns};
use super::endpoints::{
    EndpointsPlan, etcd_service, is_as_wanted, objects as endpoint_objects, states_of_control_plane,
};
use super::nodes::{needs_removal_approval, node_changes, node_key, surplus_nodes};
use super::operation::{ObjectCommand as Command, ObjectOperationName as Name, node_fingerprint};
use super::static_resources::{DnsImages, static_resources};
use super::{service_account, system_object};
use crate::limits::MAX_NODE_CHANGES;

/// The inputs of a decision.
#[derive(Debug, Clone, Copy)]
pub struct ObjectsInput<'a> {
    pub now: OffsetDateTime,
    pub cluster: &'a Cluster,
    /// The DNS domain of the cluster.
    pub domain: &'a str,
    /// Images of the DNS servers, as far as they are configured.
    pub images: &'a ConfiguredDnsImages,
    pub user: &'a ReadResources,
    pub answers: &'a ObjectAnswers,
    /// Versions (major and minor) of the API servers that answered, by address: also of those on nodes without a known state.
    pub server_versions: &'a BTreeMap<String, String>,
    pub failed: &'a BTreeMap<ResourceKey, FailedApply>,
    /// Addresses of the control plane nodes whose API servers are healthy.
    pub healthy: &'a BTreeSet<&'a str>,
    /// Addresses of nodes that drain, reboot or are repaired. Endpoints have them as not ready.
    pub busy: &'a BTreeSet<String>,
    /// The removal guard holds an observation of the registry back.
    pub is_guarded: bool,
    /// The Node objects of many nodes are surplus for three passes.
    pub is_removal_agreed: bool,
}

/// Images of the DNS servers of the key `madako/images` or the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfiguredDnsImages {
    pub coredns: Option<String>,
    pub unbound: Option<String>,
    pub unbound_exporter: Option<String>,
}

/// An operation that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueObject {
    pub name: Name,
    pub command: Command,
    pub why: ObjectDifference,
}

/// The reason why an object is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectDifference {
    Resource(ResourceDifference),
    /// Its text, addresses or ports.
    Content,
    /// Labels, annotations or taints of nodes.
    Nodes,
    /// The nodes are not in the cluster.
    NotInCluster,
}

/// An object that is due and is not changed now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldObject {
    pub what: Name,
    pub key: ResourceKey,
    pub reason: ObjectBlockedBy,
}

/// The reason why an object is not changed now.
#[derive(Debug, Clone, PartialEq, Eq, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum ObjectBlockedBy {
    #[strum(transparent)]
    Resource(ResourceReason),
    /// No controller manager has begun its work.
    NotInitialized,
    /// The definition of a user is that of an object that the service derives from the cluster.
    KeptByService,
    /// The stored definition of a resource cannot be read.
    UnreadableDefinition { why: String },
    /// No API server reported the present state of the object.
    Unread { why: String },
    /// Many Node objects would be removed at once.
    RemovalGuard { nodes: usize, all: usize },
    /// The registry lacks many machines.
    RegistryGuard,
}

madako_json::named!(ObjectBlockedBy);

impl ObjectBlockedBy {
    /// The names of all reasons.
    pub fn names() -> impl Iterator<Item = &'static str> {
        use strum::VariantNames as _;
        let own = Self::VARIANTS.iter().copied().filter(|name| *name != "resource");
        own.chain(ResourceReason::VARIANTS.iter().copied())
    }
}

impl fmt::Display for ObjectBlockedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resource(reason) => reason.fmt(f),
            Self::NotInitialized => {
                f.write_str("no controller manager has made this object yet, and all others come after it")
            }
            Self::KeptByService => f.write_str(
                "Madako derives this object from the cluster: run madako resource delete with the definition",
            ),
            Self::UnreadableDefinition { why } => {
                write!(f, "its stored definition cannot be read ({why}): run madako resource set again")
            }
            Self::Unread { why } => write!(f, "its present state cannot be read: {why}"),
            Self::RemovalGuard { nodes, all } => write!(
                f,
                "{nodes} of {all} Node objects belong to no node of the cluster: they are removed when three passes \
                 agree"
            ),
            Self::RegistryGuard => f.write_str(
                "the removal guard holds an observation of the registry back: madako status shows it, and madako sabakan \
                 confirm-removal confirms it",
            ),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectsDecision {
    /// In the order in which they run, one after another.
    pub operations: Vec<DueObject>,
    pub held: Vec<HeldObject>,
}

/// The objects that are compared by their content. `dns_service` is that of the cluster, or an empty text.
#[must_use]
pub fn compared_objects(dns_service: &str) -> Vec<ObjectName> {
    let mut objects = vec![
        service_account(),
        config_map_name(CLUSTER_DNS),
        config_map_name(NODE_DNS),
        system_object("v1", "Service", CLUSTER_DNS),
    ];
    objects.extend(upstream_service_name(dns_service));
    objects.extend(endpoint_objects());
    objects
}

fn config_map_name(name: &str) -> ObjectName {
    system_object("v1", "ConfigMap", name)
}

/// True if the service derives the object from the cluster: with a definition of a user, each of both would undo the other.
fn is_derived(key: &ResourceKey) -> bool {
    let derived =
        [config_map_name(CLUSTER_DNS), config_map_name(NODE_DNS)].into_iter().chain(endpoint_objects());
    *key == node_key(&key.name) || derived.into_iter().any(|object| object.key == *key)
}

/// The Service of `NAMESPACE/NAME`.
fn upstream_service_name(dns_service: &str) -> Option<ObjectName> {
    let (namespace, name) = dns_service.split_once('/')?;
    Some(ObjectName::new("v1", "Service", namespace, name))
}

/// The static resources with the configured images, or else the images that the present objects have.
#[must_use]
pub fn static_with_images(given: &ConfiguredDnsImages, answers: &ObjectAnswers) -> Vec<WantedResource> {
    let of_object = |kind: &str, name: &str| -> Vec<String> {
        let found = answers.resources.get(&system_object("apps/v1", kind, name).key);
        let image = found.and_then(FoundObject::content).and_then(|it| it.get(ANNOTATION_IMAGE));
        image.map(|images| images.split(',').map(str::to_owned).collect()).unwrap_or_default()
    };
    let (cluster, node) = (of_object("Deployment", CLUSTER_DNS), of_object("DaemonSet", NODE_DNS));
    let choose = |given: &Option<String>, present: Option<&String>, of_cke: &str| {
        given.clone().or_else(|| present.cloned()).unwrap_or_else(|| of_cke.to_owned())
    };
    let of_cke = DnsImages::default_images();
    static_resources(&DnsImages {
        coredns: choose(&given.coredns, cluster.first(), &of_cke.coredns),
        unbound: choose(&given.unbound, node.first(), &of_cke.unbound),
        unbound_exporter: choose(&given.unbound_exporter, node.get(1), &of_cke.unbound_exporter),
    })
}

/// The static and the user-defined resources. The definition of a user replaces that of a static resource.
#[must_use]
pub fn wanted_resources(
    given: &ConfiguredDnsImages,
    user: &ReadResources,
    answers: &ObjectAnswers,
) -> Vec<WantedResource> {
    let of_user = user.wanted.iter().filter(|resource| !is_derived(&resource.key));
    let of_user: BTreeMap<&ResourceKey, &WantedResource> =
        of_user.map(|resource| (&resource.key, resource)).collect();
    let mut wanted = static_with_images(given, answers);
    wanted.retain(|resource| !of_user.contains_key(&resource.key));
    wanted.extend(of_user.into_values().cloned());
    wanted.sort_by(|a, b| a.key.cmp(&b.key));
    wanted
}

/// Decides on the next pass.
#[must_use]
pub fn decide(input: &ObjectsInput<'_>) -> ObjectsDecision {
    let mut pass = Pass { input, decision: ObjectsDecision::default() };
    let unread = |why: &str| Some(ObjectBlockedBy::Unread { why: why.to_owned() });
    let obstacle = match pass.find_answer(&service_account()) {
        Some(FoundObject::Exists(_)) => None,
        Some(FoundObject::Missing) => Some(ObjectBlockedBy::NotInitialized),
        Some(FoundObject::Unread(why)) => unread(why),
        Some(FoundObject::KindUnknown) => unread("no API server knows its kind"),
        None => unread("not read in time"),
    };
    if let Some(reason) = obstacle {
        pass.add_held(Name::WaitKubernetes, service_account().key, reason);
        return pass.decision;
    }
    pass.resources();
    pass.decide_dns();
    pass.endpoints();
    pass.nodes();
    pass.decision
}

/// The resources that are not as wanted, static and user-defined ones.
#[must_use]
pub fn resources(input: &ObjectsInput<'_>) -> (Vec<WantedResource>, Vec<DueResource>) {
    let wanted = wanted_resources(input.images, input.user, input.answers);
    let versions = versions_reason(input);
    let known: BTreeSet<&str> = input.cluster.nodes.iter().map(Node::name).collect();
    let is_ready = |node: &&NodeObject| node.is_ready && known.contains(node.name.as_str());
    let ready = input.answers.nodes.iter().flatten().filter(is_ready).count();
    let view = ApplyView {
        found: &input.answers.resources,
        certificates: &input.answers.certificates,
        failed: input.failed,
        enough_ready: known.len() / 2 < ready,
        versions: versions.as_ref(),
        now: input.now,
    };
    let due = due_resources(&wanted, &view);
    (wanted, due)
}

/// The reason why the versions of the API servers forbid each apply. A single API server may have any version.
fn versions_reason(input: &ObjectsInput<'_>) -> Option<ResourceReason> {
    let versions: BTreeSet<&str> = input.server_versions.values().map(String::as_str).collect();
    if versions.len() > 1 {
        let versions: Vec<&str> = versions.into_iter().collect();
        return Some(ResourceReason::MixedVersions(versions.join(", ")));
    }
    let silent = input.healthy.iter().filter(|address| !input.server_versions.contains_key(**address));
    let silent: Vec<&str> = silent.copied().collect();
    // A server on a node without a known state has no health, and serves if it told its version.
    (input.server_versions.len() + silent.len() > 1 && !silent.is_empty())
        .then(|| ResourceReason::UnknownVersion { servers: silent.join(", ") })
}

struct Pass<'a> {
    input: &'a ObjectsInput<'a>,
    decision: ObjectsDecision,
}

impl<'a> Pass<'a> {
    fn find_answer(&self, object: &ObjectName) -> Option<&'a FoundObject<Value>> {
        self.input.answers.contents.get(&object.key)
    }

    fn add_due(&mut self, name: Name, command: Command, why: ObjectDifference) {
        let backs_off = command.objects().into_iter().find_map(|(key, wanted)| {
            let reason = self.find_failure(&key, || wanted)?;
            Some((key, reason))
        });
        match backs_off {
            Some((key, reason)) => self.add_held(name, key, ObjectBlockedBy::Resource(reason)),
            None => self.decision.operations.push(DueObject { name, command, why }),
        }
    }

    fn add_held(&mut self, what: Name, key: ResourceKey, reason: ObjectBlockedBy) {
        self.decision.held.push(HeldObject { what, key, reason });
    }

    fn find_failure(&self, key: &ResourceKey, wanted: impl FnOnce() -> String) -> Option<ResourceReason> {
        FailedApply::for_content(self.input.failed.get(key), wanted)?.reason(self.input.now)
    }

    fn resources(&mut self) {
        let (wanted, due) = resources(self.input);
        let wanted: BTreeMap<&ResourceKey, &WantedResource> =
            wanted.iter().map(|resource| (&resource.key, resource)).collect();
        for DueResource { key, why, held } in due {
            match (held, wanted.get(&key)) {
                (Some(reason), _) => {
                    self.add_held(Name::ResourceApply, key, ObjectBlockedBy::Resource(reason))
                }
                (None, Some(resource)) => self.decision.operations.push(DueObject {
                    name: Name::ResourceApply,
                    command: Command::ApplyResource(resource.manifest.clone()),
                    why: ObjectDifference::Resource(why),
                }),
                (None, None) => {}
            }
        }
        let derived = self.input.user.wanted.iter().filter(|resource| is_derived(&resource.key));
        for resource in derived {
            self.add_held(Name::ResourceApply, resource.key.clone(), ObjectBlockedBy::KeptByService);
        }
        for (key, found) in &self.input.answers.resources {
            if let FoundObject::Unread(why) = found {
                self.add_held(Name::ResourceApply, key.clone(), ObjectBlockedBy::Unread { why: why.clone() });
            }
        }
        for (stored, why) in &self.input.user.faults {
            let named = stored.strip_prefix(keys::RESOURCES).unwrap_or(stored);
            let unnamed = || ResourceKey { kind: named.to_owned(), namespace: None, name: String::new() };
            let key = ResourceKey::parse(named).unwrap_or_else(|_| unnamed());
            self.add_held(
                Name::ResourceApply,
                key,
                ObjectBlockedBy::UnreadableDefinition { why: why.clone() },
            );
        }
    }

    /// The servers for names outside of the cluster.
    ///
    /// # Errors
    /// The reason why they are not known at present.
    fn upstream_servers(&self) -> Result<Vec<String>, String> {
        let configured = self.input.cluster.dns_servers.clone();
        let Some(service) = upstream_service_name(&self.input.cluster.dns_service) else {
            return Ok(configured);
        };
        match self.find_answer(&service) {
            Some(FoundObject::Exists(service)) => {
                Ok(cluster_address(service).map_or(configured, |it| vec![it]))
            }
            Some(FoundObject::Missing) => Ok(configured),
            Some(FoundObject::Unread(why)) => Err(format!("{}: {why}", service.key)),
            Some(FoundObject::KindUnknown) | None => Err(format!("{} was not read", service.key)),
        }
    }

    fn decide_dns(&mut self) {
        let upstreams = match self.upstream_servers() {
            Ok(upstreams) => upstreams,
            Err(why) => {
                let key = config_map_name(CLUSTER_DNS).key;
                return self.add_held(Name::UpdateClusterDnsConfigmap, key, ObjectBlockedBy::Unread { why });
            }
        };
        let names = (Name::CreateClusterDnsConfigmap, Name::UpdateClusterDnsConfigmap);
        let wanted = cluster_dns(self.input.domain, &upstreams);
        self.decide_config_map(&config_map_name(CLUSTER_DNS), COREFILE, wanted, names);
        let service =
            self.find_answer(&system_object("v1", "Service", CLUSTER_DNS)).and_then(FoundObject::content);
        let address = service.and_then(cluster_address).and_then(|address| address.parse().ok());
        if let Some(address) = address {
            let names = (Name::CreateNodeDnsConfigmap, Name::UpdateNodeDnsConfigmap);
            let wanted = node_dns(address, self.input.domain, &upstreams);
            self.decide_config_map(&config_map_name(NODE_DNS), UNBOUND_CONF, wanted, names);
        }
    }

    /// A ConfigMap is compared by its text.
    fn decide_config_map(
        &mut self,
        object: &ObjectName,
        file: &str,
        wanted: Value,
        (create, update): (Name, Name),
    ) {
        let Some(manifest) = to_manifest(&wanted) else { return };
        match self.find_answer(object) {
            Some(FoundObject::Exists(found)) if found["data"][file] == wanted["data"][file] => {}
            Some(FoundObject::Exists(_)) => {
                self.add_due(update, Command::UpdateConfigMap(manifest), ObjectDifference::Content);
            }
            Some(FoundObject::Missing) => {
                let why = ObjectDifference::Resource(ResourceDifference::Missing);
                self.add_due(create, Command::CreateConfigMap(manifest), why);
            }
            Some(FoundObject::Unread(why)) => {
                self.add_held(update, object.key.clone(), ObjectBlockedBy::Unread { why: why.clone() });
            }
            Some(FoundObject::KindUnknown) | None => {}
        }
    }

    fn endpoints(&mut self) {
        let (cluster, healthy) = (self.input.cluster, self.input.healthy);
        // Clients keep what leaves until something else is there for them.
        let stays = |address: &str| !self.input.busy.contains(address);
        let addresses = || cluster.control_plane().map(|node| node.address.as_str());
        let is_served = addresses().any(|address| healthy.contains(address) && stays(address));
        let servers = states_of_control_plane(cluster, |address| {
            healthy.contains(address) && (stays(address) || !is_served)
        });
        let has_members = addresses().any(stays);
        let members = states_of_control_plane(cluster, |address| stays(address) || !has_members);
        self.decide_endpoints_and_slice(&EndpointsPlan::for_api_servers(&servers));
        let update = (Name::CreateEtcdService, Name::UpdateEtcdService);
        self.decide_compared(etcd_service(), update, Command::CreateEtcdService, Command::UpdateEtcdService);
        self.decide_endpoints_and_slice(&EndpointsPlan::for_etcd(&members));
    }

    fn decide_endpoints_and_slice(&mut self, plan: &EndpointsPlan<'_>) {
        self.decide_compared(
            plan.endpoints(),
            (Name::CreateEndpoints, Name::UpdateEndpoints),
            |manifest| Command::CreateEndpoints { manifest, ready: plan.ready_addresses() },
            |manifest| Command::update_endpoints(plan, manifest),
        );
        self.decide_compared(
            plan.slice(),
            (Name::CreateEndpointslice, Name::UpdateEndpointslice),
            |manifest| Command::CreateEndpointSlice { manifest, addresses: plan.all_addresses() },
            |manifest| Command::update_endpoint_slice(plan, manifest),
        );
    }

    fn decide_compared(
        &mut self,
        wanted: Value,
        (create, update): (Name, Name),
        creation: impl Fn(Manifest) -> Command,
        change: impl Fn(Manifest) -> Command,
    ) {
        let Some(manifest) = to_manifest(&wanted) else { return };
        match self.find_answer(manifest.name()) {
            Some(FoundObject::Exists(found)) if is_as_wanted(found, &manifest) => {}
            Some(FoundObject::Exists(_)) => self.add_due(update, change(manifest), ObjectDifference::Content),
            Some(FoundObject::Missing) => {
                let why = ObjectDifference::Resource(ResourceDifference::Missing);
                self.add_due(create, creation(manifest), why);
            }
            Some(FoundObject::Unread(why)) => {
                self.add_held(
                    update,
                    manifest.name().key.clone(),
                    ObjectBlockedBy::Unread { why: why.clone() },
                );
            }
            Some(FoundObject::KindUnknown) | None => {}
        }
    }

    fn nodes(&mut self) {
        let Some(objects) = &self.input.answers.nodes else { return };
        let mut ready: Vec<NodeChange> = Vec::new();
        for change in node_changes(self.input.cluster, objects) {
            let key = node_key(&change.name);
            match self.find_failure(&key, || node_fingerprint(&change)) {
                Some(reason) => self.add_held(Name::UpdateNode, key, ObjectBlockedBy::Resource(reason)),
                None => ready.push(change),
            }
        }
        ready.truncate(MAX_NODE_CHANGES);
        if !ready.is_empty() {
            self.add_due(Name::UpdateNode, Command::UpdateNodes(ready), ObjectDifference::Nodes);
        }
        self.decide_removals(objects);
    }

    fn decide_removals(&mut self, objects: &[NodeObject]) {
        let surplus = surplus_nodes(self.input.cluster, objects);
        let guard = || {
            if self.input.is_guarded {
                return Some(ObjectBlockedBy::RegistryGuard);
            }
            let (nodes, all) = (surplus.len(), objects.len());
            let is_held = needs_removal_approval(nodes, all) && !self.input.is_removal_agreed;
            is_held.then_some(ObjectBlockedBy::RemovalGuard { nodes, all })
        };
        let guard = guard();
        let mut ready = Vec::new();
        for name in surplus {
            let key = node_key(&name);
            let fails = || self.find_failure(&key, || "removed".to_owned()).map(ObjectBlockedBy::Resource);
            match guard.clone().or_else(fails) {
                Some(reason) => self.add_held(Name::RemoveNode, key, reason),
                None => ready.push(name),
            }
        }
        ready.truncate(MAX_NODE_CHANGES);
        if !ready.is_empty() {
            self.add_due(Name::RemoveNode, Command::RemoveNodes(ready), ObjectDifference::NotInCluster);
        }
    }
}

/// `None` never comes: the contents here name their objects.
fn to_manifest(content: &Value) -> Option<Manifest> {
    Manifest::new(content.clone()).ok()
}

/// The address of a Service in the cluster.
fn cluster_address(service: &Value) -> Option<String> {
    let address = service["spec"]["clusterIP"].as_str()?;
    (!matches!(address, "" | "None")).then(|| address.to_owned())
}

#[cfg(test)]
mod tests;

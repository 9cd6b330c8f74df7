//! The objects of the simulated API servers: the port [`Objects`].
//!
//! An apply merges the manifest into the object, as one field manager that has applied it before. A kind is known if its
//! group belongs to Kubernetes, or if its definition was applied.
//!
//! Does not: check an object against the schema of its kind, or own fields by manager.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use madako_domain::component::Component;
use madako_domain::objects::{
    Annotations, FoundObject, Manifest, NodeChange, NodeObject, ObjectName, SecretVersion,
};
use madako_domain::resource::ResourceKey;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::objects::Objects;
use madako_protocol::permit::Permit;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::SimulatedNodes;
use super::kubernetes::node_name;
use super::limits::LATENCY;
use super::world::World;

/// The objects of the API servers, beside the taints of nodes.
#[derive(Debug, Default)]
pub(crate) struct ObjectStore {
    objects: BTreeMap<ResourceKey, Value>,
    /// The reasons for which the API servers refuse objects.
    refused: BTreeMap<ResourceKey, String>,
    nodes: BTreeMap<String, Metadata>,
    /// API servers outside of the nodes.
    servers: BTreeSet<String>,
    /// Times at which Node objects were removed. A kubelet registers its node once, at its start.
    removed: BTreeMap<String, Instant>,
    /// Addresses given to Services.
    addresses: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Metadata {
    labels: BTreeMap<String, String>,
    annotations: Annotations,
    version: u64,
}

impl ObjectStore {
    /// The controller manager makes the service account of each namespace.
    pub(crate) fn initialize(&mut self) {
        let key = ResourceKey {
            kind: "ServiceAccount".to_owned(),
            namespace: Some("kube-system".to_owned()),
            name: "default".to_owned(),
        };
        self.objects.entry(key).or_insert_with(|| json!({"kind": "ServiceAccount"}));
    }

    /// A client changes a Node object.
    pub(crate) fn touch_node(&mut self, name: &str) {
        self.nodes.entry(name.to_owned()).or_default().version += 1;
    }

    /// Removes the data of a Node object. Its version goes on, so that a later object of the same name refuses earlier changes.
    fn forget_node(&mut self, name: &str) {
        let node = self.nodes.entry(name.to_owned()).or_default();
        *node = Metadata { version: node.version + 1, ..Metadata::default() };
    }

    /// Addresses of the API servers that are ready in their Endpoints.
    pub(crate) fn ready_endpoints(&self) -> BTreeSet<String> {
        let is_of_servers = |key: &ResourceKey| {
            key.kind == "Endpoints" && key.name == "kubernetes" && key.namespace.as_deref() == Some("default")
        };
        let found = self.objects.iter().find(|(key, _)| is_of_servers(key));
        let ready = found.and_then(|(_, endpoints)| endpoints["subsets"][0]["addresses"].as_array());
        ready.into_iter().flatten().filter_map(|ready| ready["ip"].as_str().map(str::to_owned)).collect()
    }

    pub(crate) fn has_server(&self, address: &str) -> bool {
        self.servers.contains(address)
    }

    /// True if a kubelet that started at this time has registered its node, and the Node object is removed.
    pub(crate) fn is_removed(&self, name: &str, kubelet_since: Option<Instant>) -> bool {
        self.removed.get(name).is_some_and(|removed| kubelet_since.is_none_or(|since| since <= *removed))
    }

    fn knows_kind(&self, name: &ObjectName) -> bool {
        let Some((group, _)) = name.api_version.split_once('/') else { return true };
        let defines = |(key, object): (&ResourceKey, &Value)| {
            let spec = &object["spec"];
            key.kind == "CustomResourceDefinition"
                && spec["group"] == group
                && spec["names"]["kind"] == *name.key.kind
        };
        !group.contains('.') || group.ends_with(".k8s.io") || self.objects.iter().any(defines)
    }

    /// The object after an apply, or the refusal.
    fn merge_manifest(&self, manifest: &Manifest) -> Result<Value, KubernetesError> {
        let ObjectName { key, .. } = manifest.name();
        let what = key.to_string();
        if !self.knows_kind(manifest.name()) {
            return Err(KubernetesError::Refused { what, status: 404, why: "unknown kind".to_owned() });
        }
        if let Some(why) = self.refused.get(key) {
            return Err(KubernetesError::Refused { what, status: 422, why: why.clone() });
        }
        let of_name = |name: &str| {
            let (kind, name) = ("Namespace".to_owned(), name.to_owned());
            self.objects.contains_key(&ResourceKey { kind, namespace: None, name })
        };
        let has_namespace = |name: &str| ["default", "kube-system"].contains(&name) || of_name(name);
        if key.namespace.as_deref().is_some_and(|namespace| !has_namespace(namespace)) {
            return Err(KubernetesError::NotFound { what });
        }
        let mut object = self.objects.get(key).cloned().unwrap_or_default();
        merge_values(&mut object, manifest.content());
        if key.kind == "Service" && object["spec"]["clusterIP"].is_null() {
            object["spec"]["clusterIP"] = json!(format!("10.68.0.{}", self.addresses.saturating_add(2)));
        }
        Ok(object)
    }

    fn apply(&mut self, manifest: &Manifest) -> Result<(), KubernetesError> {
        let object = self.merge_manifest(manifest)?;
        self.addresses += u8::from(manifest.name().key.kind == "Service");
        self.objects.insert(manifest.name().key.clone(), object);
        Ok(())
    }

    fn find<T>(&self, object: &ObjectName, read: impl Fn(&Value) -> T) -> FoundObject<T> {
        match self.objects.get(&object.key) {
            _ if !self.knows_kind(object) => FoundObject::KindUnknown,
            Some(found) => FoundObject::Exists(read(found)),
            None => FoundObject::Missing,
        }
    }
}

fn merge_values(object: &mut Value, manifest: &Value) {
    match (object.as_object_mut(), manifest.as_object()) {
        (Some(object), Some(manifest)) => {
            for (field, value) in manifest {
                merge_values(object.entry(field).or_insert(Value::Null), value);
            }
        }
        _ => *object = manifest.clone(),
    }
}

fn set_all(values: &mut BTreeMap<String, String>, changes: &BTreeMap<String, Option<String>>) {
    for (name, value) in changes {
        match value {
            Some(value) => values.insert(name.clone(), value.clone()),
            None => values.remove(name),
        };
    }
}

impl World {
    fn node_object(&self, name: &str) -> NodeObject {
        let Metadata { labels, annotations, version } =
            self.objects.nodes.get(name).cloned().unwrap_or_default();
        let mut machines = self.nodes.iter();
        let reporting = machines.find(|(address, machine)| {
            node_name(machine).as_deref() == Some(name) && self.is_healthy(Component::Kubelet, address)
        });
        let kubelet = reporting.and_then(|(_, machine)| machine.containers.get(Component::Kubelet.name()));
        NodeObject {
            name: name.to_owned(),
            resource_version: version.to_string(),
            labels,
            annotations,
            taints: self.registered.get(name).cloned().unwrap_or_default(),
            is_ready: reporting.is_some(),
            reported_at: None,
            kubelet_version: kubelet
                .and_then(|ran| kubernetes_version_of_image(&ran.status.image).parse().ok()),
            is_deleted: false,
        }
    }

    fn change_node(&mut self, change: &NodeChange) -> Result<(), KubernetesError> {
        let what = format!("Node object {}", change.name);
        let Some(taints) = self.registered.get_mut(&change.name) else {
            return Err(KubernetesError::NotFound { what });
        };
        let node = self.objects.nodes.entry(change.name.clone()).or_default();
        if node.version.to_string() != change.resource_version {
            return Err(KubernetesError::Refused { what, status: 409, why: "it has changed".to_owned() });
        }
        let before = (node.clone(), taints.clone());
        set_all(&mut node.labels, &change.labels);
        set_all(&mut node.annotations, &change.annotations);
        if let Some(changed) = &change.taints {
            taints.clone_from(changed);
        }
        // Without an effect, the object keeps its version.
        if (&before.0, &before.1) != (&*node, &*taints) {
            node.version += 1;
        }
        Ok(())
    }
}

/// The version that the tag of an image names: `1.30` of `kubernetes:1.30.5.1`, and `1.2` of `kubernetes:2`.
pub(super) fn kubernetes_version_of_image(image: &str) -> String {
    let tag = image.rsplit_once(':').map_or(image, |(_, tag)| tag);
    let mut parts = tag.split('.');
    match (parts.next(), parts.next()) {
        (Some(major), Some(minor)) => format!("{major}.{minor}"),
        _ => format!("1.{tag}"),
    }
}

#[async_trait]
impl Objects for SimulatedNodes {
    async fn read_server_version(&self, address: &str) -> Result<String, KubernetesError> {
        let version = |world: &mut World| {
            let server = world.nodes.get(address)?.containers.get(Component::ApiServer.name())?;
            Some(kubernetes_version_of_image(&server.status.image))
        };
        let what = format!("version of the API server {address}");
        // Without a healthy server, the node refuses the connection; a silent node costs the whole time-out.
        let is_refused = self.with_world(|world| {
            world.answers_requests(address) && !world.is_healthy(Component::ApiServer, address)
        });
        if is_refused {
            sleep(2 * LATENCY).await;
            return Err(KubernetesError::Unavailable { what, why: "connection refused".to_owned() });
        }
        let answer = self.ask_api(what.clone(), &[address.to_owned()], version).await?;
        answer.ok_or(KubernetesError::NotFound { what })
    }

    async fn read_node_objects(&self, servers: &[String]) -> Result<Vec<NodeObject>, KubernetesError> {
        let nodes = |world: &mut World| {
            world.api_requests -= 1;
            world.registered.keys().map(|name| world.node_object(name)).collect()
        };
        self.ask_api("Node objects".to_owned(), servers, nodes).await
    }

    async fn read_annotations(&self, servers: &[String], object: &ObjectName) -> FoundObject<Annotations> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let read = |found: &Value| {
            let annotations = found["metadata"]["annotations"].as_object().into_iter().flatten();
            annotations.map(|(name, value)| (name.clone(), text(value))).collect()
        };
        self.find_object(servers, object, read).await
    }

    async fn read_object(&self, servers: &[String], object: &ObjectName) -> FoundObject<Value> {
        self.find_object(servers, object, Value::clone).await
    }

    async fn apply_object(
        &self,
        permit: &Permit,
        servers: &[String],
        manifest: &Manifest,
    ) -> Result<(), KubernetesError> {
        permit.check(Instant::now())?;
        let key = &manifest.name().key;
        let apply = |world: &mut World, server: &str| {
            world.check_readable(key, server)?;
            let ready = world.objects.ready_endpoints();
            world.objects.apply(manifest)?;
            world.note_ready_servers(&ready);
            world.note_written(key, server);
            Ok(())
        };
        self.ask_server(key.to_string(), servers, apply).await?
    }

    async fn dry_run_apply(&self, servers: &[String], manifest: &Manifest) -> Result<Value, KubernetesError> {
        let what = manifest.name().key.to_string();
        self.ask_api(what, servers, |world| world.objects.merge_manifest(manifest)).await?
    }

    async fn change_node(
        &self,
        permit: &Permit,
        servers: &[String],
        change: &NodeChange,
    ) -> Result<(), KubernetesError> {
        permit.check(Instant::now())?;
        let what = format!("Node object {}", change.name);
        self.ask_api(what, servers, |world| world.change_node(change)).await?
    }

    async fn remove_node(
        &self,
        permit: &Permit,
        servers: &[String],
        node: &str,
    ) -> Result<(), KubernetesError> {
        permit.check(Instant::now())?;
        let remove = |world: &mut World| {
            if world.registered.remove(node).is_some() {
                world.objects.forget_node(node);
            }
            world.objects.removed.insert(node.to_owned(), world.now);
        };
        self.ask_api(format!("removal of Node object {node}"), servers, remove).await
    }

    async fn list_secrets(&self, servers: &[String]) -> Result<Vec<SecretVersion>, KubernetesError> {
        let list = |world: &mut World, server: &str| {
            let secrets = world.objects.objects.keys().filter(|key| key.kind == "Secret");
            let version = |key: &ResourceKey| {
                world.check_readable(key, server)?;
                Ok(SecretVersion {
                    namespace: key.namespace.clone().unwrap_or_default(),
                    name: key.name.clone(),
                    // A rewrite reads the present version where another client has changed it.
                    resource_version: "1".to_owned(),
                })
            };
            secrets.map(version).collect()
        };
        self.ask_server("Secrets".to_owned(), servers, list).await?
    }

    async fn rewrite_secret(
        &self,
        permit: &Permit,
        servers: &[String],
        secret: &SecretVersion,
    ) -> Result<(), KubernetesError> {
        permit.check(Instant::now())?;
        let SecretVersion { namespace, name, .. } = secret;
        let key = ObjectName::new("v1", "Secret", namespace, name).key;
        let rewrite = |world: &mut World, server: &str| {
            if world.objects.objects.contains_key(&key) {
                world.check_readable(&key, server)?;
                world.note_written(&key, server);
            }
            Ok(())
        };
        self.ask_server(secret.to_string(), servers, rewrite).await?
    }
}

impl SimulatedNodes {
    async fn find_object<T>(
        &self,
        servers: &[String],
        object: &ObjectName,
        read: impl Fn(&Value) -> T,
    ) -> FoundObject<T> {
        let find = |world: &mut World, server: &str| {
            world.check_readable(&object.key, server)?;
            Ok(world.objects.find(object, read))
        };
        let found = self.ask_server(object.key.to_string(), servers, find).await;
        found.and_then(|found| found).unwrap_or_else(|error| FoundObject::Unread(error.to_string()))
    }

    /// The objects of Kubernetes that were applied, beside Node objects.
    #[must_use]
    pub fn objects(&self) -> BTreeMap<ResourceKey, Value> {
        self.with_world(|world| world.objects.objects.clone())
    }

    #[must_use]
    pub fn node_object(&self, name: &str) -> Option<NodeObject> {
        self.with_world(|world| {
            world.register();
            world.registered.contains_key(name).then(|| world.node_object(name))
        })
    }

    /// Adds an API server beside those of the nodes, which is always healthy.
    pub fn add_api_server(&self, address: &str) {
        self.with_world(|world| world.objects.servers.insert(address.to_owned()));
    }

    /// Registers a node without a kubelet.
    pub fn register_node(&self, name: &str) {
        self.with_world(|world| world.registered.insert(name.to_owned(), Vec::new()));
    }

    /// Lets the API servers refuse an object for a reason; `None` lets them accept it again.
    pub fn refuse_object(&self, key: &ResourceKey, why: Option<&str>) {
        self.with_world(|world| match why {
            Some(why) => drop(world.objects.refused.insert(key.clone(), why.to_owned())),
            None => drop(world.objects.refused.remove(key)),
        });
    }

    /// Another client changes fields of an object.
    pub fn patch_object(&self, key: &ResourceKey, patch: &Value) {
        self.with_world(|world| {
            if let Some(object) = world.objects.objects.get_mut(key) {
                merge_values(object, patch);
            }
        });
    }

    /// Another client deletes an object.
    pub fn delete_object(&self, key: &ResourceKey) {
        self.with_world(|world| {
            world.objects.objects.remove(key);
            world.forget_written(key);
        });
    }
}

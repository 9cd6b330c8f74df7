//! The operations on objects as data, in the words of CKE's records.

use std::fmt;

use madako_domain::objects::{Manifest, NodeChange};
use madako_domain::resource::{ANNOTATION_REVISION, ResourceKey};
use madako_json::named;
use serde::Serialize;

use super::SYSTEM_NAMESPACE;
use super::apply::fingerprint;
use super::endpoints::EndpointsPlan;
use super::nodes::node_key;

/// The name of an operation in records, which is CKE's. Each but the first has one command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
#[derive(Serialize, strum::Display, strum::IntoStaticStr, strum::EnumString)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum ObjectOperationName {
    /// The wait until the controller manager has begun its work. It is only held: no record is open meanwhile.
    #[default]
    WaitKubernetes,
    ResourceApply,
    CreateClusterDnsConfigmap,
    UpdateClusterDnsConfigmap,
    CreateNodeDnsConfigmap,
    UpdateNodeDnsConfigmap,
    CreateEndpoints,
    UpdateEndpoints,
    CreateEndpointslice,
    UpdateEndpointslice,
    CreateEtcdService,
    UpdateEtcdService,
    UpdateNode,
    RemoveNode,
}

named!(ObjectOperationName);

/// A command on objects, which runs once on a healthy API server.
#[derive(Clone, PartialEq, Eq, strum::IntoStaticStr)]
pub enum ObjectCommand {
    #[strum(serialize = "apply-resource")]
    ApplyResource(Manifest),
    #[strum(serialize = "createConfigMapCommand")]
    CreateConfigMap(Manifest),
    #[strum(serialize = "updateConfigMapCommand")]
    UpdateConfigMap(Manifest),
    #[strum(serialize = "createEndpointsCommand")]
    CreateEndpoints { manifest: Manifest, ready: Vec<String> },
    #[strum(serialize = "updateEndpointsCommand")]
    UpdateEndpoints { manifest: Manifest, ready: Vec<String> },
    #[strum(serialize = "createEndpointSliceCommand")]
    CreateEndpointSlice { manifest: Manifest, addresses: Vec<String> },
    #[strum(serialize = "updateEndpointSliceCommand")]
    UpdateEndpointSlice { manifest: Manifest, addresses: Vec<String> },
    #[strum(serialize = "createEtcdServiceCommand")]
    CreateEtcdService(Manifest),
    #[strum(serialize = "updateEtcdServiceCommand")]
    UpdateEtcdService(Manifest),
    #[strum(serialize = "updateNode")]
    UpdateNodes(Vec<NodeChange>),
    /// Names of Node objects.
    #[strum(serialize = "removeNode")]
    RemoveNodes(Vec<String>),
}

named!(ObjectCommand);

impl fmt::Debug for ObjectCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.target())
    }
}

impl ObjectCommand {
    /// `manifest` is that of the planned Endpoints.
    pub(super) fn update_endpoints(plan: &EndpointsPlan<'_>, manifest: Manifest) -> Self {
        Self::UpdateEndpoints { manifest, ready: plan.ready_addresses() }
    }

    /// `manifest` is that of the planned EndpointSlice.
    pub(super) fn update_endpoint_slice(plan: &EndpointsPlan<'_>, manifest: Manifest) -> Self {
        Self::UpdateEndpointSlice { manifest, addresses: plan.all_addresses() }
    }

    /// The manifest that the command applies.
    #[must_use]
    pub fn manifest(&self) -> Option<&Manifest> {
        match self {
            Self::ApplyResource(manifest)
            | Self::CreateConfigMap(manifest)
            | Self::UpdateConfigMap(manifest)
            | Self::CreateEndpoints { manifest, .. }
            | Self::UpdateEndpoints { manifest, .. }
            | Self::CreateEndpointSlice { manifest, .. }
            | Self::UpdateEndpointSlice { manifest, .. }
            | Self::CreateEtcdService(manifest)
            | Self::UpdateEtcdService(manifest) => Some(manifest),
            Self::UpdateNodes(_) | Self::RemoveNodes(_) => None,
        }
    }

    /// The objects that the command changes, each with a text that differs between two wanted contents.
    #[must_use]
    pub fn objects(&self) -> Vec<(ResourceKey, String)> {
        match self {
            Self::UpdateNodes(changes) => {
                changes.iter().map(|it| (node_key(&it.name), node_fingerprint(it))).collect()
            }
            Self::RemoveNodes(names) => {
                names.iter().map(|name| (node_key(name), "removed".to_owned())).collect()
            }
            _ => {
                let manifest = self.manifest().into_iter();
                manifest.map(|it| (it.name().key.clone(), fingerprint(it))).collect()
            }
        }
    }

    /// The target in records.
    #[must_use]
    pub fn target(&self) -> String {
        match self {
            Self::ApplyResource(manifest) => {
                let revision = manifest.annotation(ANNOTATION_REVISION).unwrap_or_default();
                format!("{}@{revision}", manifest.name().key)
            }
            Self::CreateConfigMap(_) | Self::UpdateConfigMap(_) => SYSTEM_NAMESPACE.to_owned(),
            Self::CreateEndpoints { ready: addresses, .. }
            | Self::UpdateEndpoints { ready: addresses, .. }
            | Self::CreateEndpointSlice { addresses, .. }
            | Self::UpdateEndpointSlice { addresses, .. } => addresses.join(","),
            Self::CreateEtcdService(_) | Self::UpdateEtcdService(_) => String::new(),
            Self::UpdateNodes(changes) => {
                changes.iter().map(|change| change.name.as_str()).collect::<Vec<_>>().join(",")
            }
            Self::RemoveNodes(names) => names.join(","),
        }
    }
}

/// The commands that make the Endpoints and the EndpointSlice as planned.
#[must_use]
pub(crate) fn update_commands(plan: &EndpointsPlan<'_>) -> Vec<ObjectCommand> {
    let endpoints = Manifest::new(plan.endpoints()).map(|it| ObjectCommand::update_endpoints(plan, it));
    let slice = Manifest::new(plan.slice()).map(|it| ObjectCommand::update_endpoint_slice(plan, it));
    // Both name their objects.
    endpoints.into_iter().chain(slice).collect()
}

/// The version that was read is not part of the wanted content.
pub(crate) fn node_fingerprint(change: &NodeChange) -> String {
    let wanted = (&change.labels, &change.annotations, &change.taints);
    format!("{:x}", md5::compute(format!("{wanted:?}")))
}

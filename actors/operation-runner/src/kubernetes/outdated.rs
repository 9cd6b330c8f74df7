//! Compares a running container of Kubernetes with the wanted one, by the rules of CKE.

use madako_domain::cluster::{Cluster, Node};
use madako_domain::images::ImageName;
use madako_domain::node_status::ContainerStatus;

use super::configuration::{Unknown, compare_file};
use super::options::KubernetesOptions;
use super::params::{RUNTIME_ENDPOINT, are_builtin, builtin_parameters};
use crate::outdated::{Outdated, find_differences};
use madako_domain::component::Component;

/// The configuration file of a component on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOnNode<'a> {
    /// It was not read: nothing is known, so nothing differs.
    Unread,
    Missing,
    /// It was written before the last change of the encryption keys. The file itself, which is secret, is not read.
    EarlierKeys,
    Text(&'a str),
}

/// The state of a running container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ComponentComparison {
    Current,
    Outdated(Vec<Outdated>),
    /// A kubelet with another container runtime: as in CKE, it is never outdated while it runs, since its node has
    /// containers in the other runtime. Its next boot uses the configured runtime.
    OtherRuntime {
        has: String,
        wanted: String,
    },
}

/// The wanted state of all components.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub cluster: &'a Cluster,
    pub options: &'a KubernetesOptions,
    /// The image of Kubernetes.
    pub image: &'a str,
}

impl Wanted<'_> {
    /// Fields that CKE's types lack take effect with another image than CKE's, which is a reason for a restart in itself:
    /// Kubernetes of CKE's release does not know them, and CKE writes files without them.
    #[must_use]
    pub fn unknown_fields(&self) -> Unknown {
        if self.image == ImageName::Kubernetes.default_image() { Unknown::Drop } else { Unknown::Keep }
    }

    /// Compares a running container with the wanted one.
    #[must_use]
    pub fn compare_running_container(
        &self,
        component: Component,
        node: &Node,
        status: &ContainerStatus,
        file: FileOnNode<'_>,
    ) -> ComponentComparison {
        let mut found = Vec::new();
        if !self.has_wanted_parameters(component, node, status) {
            let builtin = builtin_parameters(component, self.cluster, self.options, node);
            if component == Component::Kubelet {
                let has = container_runtime_endpoint(&status.builtin.args);
                let wanted = container_runtime_endpoint(&builtin.args);
                if has != wanted {
                    let [has, wanted] = [has, wanted].map(str::to_owned);
                    return ComponentComparison::OtherRuntime { has, wanted };
                }
            }
            found = find_differences(status, self.image, [&builtin, self.options.extra(component)], |_| true);
        }
        self.add_file_differences(component, node, file, &mut found);
        if found.is_empty() { ComponentComparison::Current } else { ComponentComparison::Outdated(found) }
    }

    /// True for almost all containers of a fleet.
    fn has_wanted_parameters(&self, component: Component, node: &Node, status: &ContainerStatus) -> bool {
        status.image == self.image
            && status.extra.is_same_service(self.options.extra(component))
            && are_builtin(&status.builtin, component, self.cluster, self.options, node)
    }

    fn add_file_differences(
        &self,
        component: Component,
        node: &Node,
        file: FileOnNode<'_>,
        found: &mut Vec<Outdated>,
    ) {
        if file == FileOnNode::EarlierKeys {
            found.push(Outdated::EncryptionKeys);
        }
        let Some(path) = component.configuration_path() else { return };
        let unknown = self.unknown_fields();
        let fields = match file {
            FileOnNode::Unread | FileOnNode::EarlierKeys => return,
            FileOnNode::Missing => None,
            FileOnNode::Text(text) => compare_file(component, self.options, node, text, unknown),
        };
        let Some(fields) = fields else {
            found.push(Outdated::FileUnreadable(path.to_owned()));
            return;
        };
        found.extend(fields.into_iter().map(|field| Outdated::Field { file: path.to_owned(), field }));
    }
}

fn container_runtime_endpoint(args: &[String]) -> &str {
    args.iter().find_map(|argument| argument.strip_prefix(RUNTIME_ENDPOINT)).unwrap_or_default()
}

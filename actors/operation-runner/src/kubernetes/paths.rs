//! Paths of Kubernetes' files, on a node and in the containers.

pub use madako_domain::component::{
    CONTROLLER_MANAGER_KUBECONFIG, KUBELET_CONFIG, PROXY_CONFIG, PROXY_KUBECONFIG, SCHEDULER_CONFIG,
    SCHEDULER_KUBECONFIG,
};

pub const ENCRYPTION_DIRECTORY: &str = "/etc/kubernetes/apiserver";
pub const ENCRYPTION: &str = "/etc/kubernetes/apiserver/encryption.yml";
pub const KUBELET_KUBECONFIG: &str = "/etc/kubernetes/kubelet/kubeconfig";
pub const CNI_PROGRAMS: &str = "/opt/cni/bin";
pub const CNI_CONFIG: &str = "/etc/cni/net.d";
pub const CNI_STATE: &str = "/var/lib/cni";
pub const VOLUME_PLUGINS: &str = "/opt/volume/bin";
pub const POD_LOGS: &str = "/var/log/pods";
pub const CONTAINER_LOGS: &str = "/var/log/containers";

/// A certificate or key.
#[must_use]
pub fn pki_path(file: &str) -> String {
    format!("/etc/kubernetes/pki/{file}")
}

/// The audit policy. Its name changes with its text, so that another policy restarts the API server.
#[must_use]
pub fn audit_policy_path(policy: &str) -> String {
    format!("/etc/kubernetes/apiserver/audit-policy-{:x}.yaml", md5::compute(policy))
}

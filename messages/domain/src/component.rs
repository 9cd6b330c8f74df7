//! The components of Kubernetes: names of containers, options of the container engine, health and configuration files.

use madako_json::named;

/// Path of the scheduler's configuration.
pub const SCHEDULER_CONFIG: &str = "/etc/kubernetes/scheduler/config.yml";
/// Path of the kubelet's configuration.
pub const KUBELET_CONFIG: &str = "/etc/kubernetes/kubelet/config.yml";
/// Path of the proxy's configuration.
pub const PROXY_CONFIG: &str = "/etc/kubernetes/proxy/config.yml";

/// The certificate with which API servers, controller managers and schedulers serve, and with which API servers ask kubelets.
pub const API_SERVER_CERTIFICATE: &str = "/etc/kubernetes/pki/apiserver.crt";
/// The certificate with which API servers ask etcd.
pub const ETCD_CLIENT_CERTIFICATE: &str = "/etc/kubernetes/pki/apiserver-etcd-client.crt";
/// The certificate with which API servers ask aggregated API servers.
pub const AGGREGATION_CERTIFICATE: &str = "/etc/kubernetes/pki/aggregation.crt";
/// The certificate with which a kubelet serves and asks API servers.
pub const KUBELET_CERTIFICATE: &str = "/etc/kubernetes/pki/kubelet.crt";
/// The kubeconfig of the controller manager.
pub const CONTROLLER_MANAGER_KUBECONFIG: &str = "/etc/kubernetes/controller-manager/kubeconfig";
/// The kubeconfig of the scheduler.
pub const SCHEDULER_KUBECONFIG: &str = "/etc/kubernetes/scheduler/kubeconfig";
/// The kubeconfig of the proxy.
pub const PROXY_KUBECONFIG: &str = "/etc/kubernetes/proxy/kubeconfig";

/// The files of Kubernetes' certificates that end and are issued anew. Each has its private key beside it.
pub const CERTIFICATES: [&str; 4] =
    [API_SERVER_CERTIFICATE, ETCD_CLIENT_CERTIFICATE, AGGREGATION_CERTIFICATE, KUBELET_CERTIFICATE];
/// The kubeconfigs with a certificate and its private key in them, with the component that reads each. The kubeconfig of a
/// kubelet names its files.
pub const KUBECONFIGS: [(&str, Component); 3] = [
    (CONTROLLER_MANAGER_KUBECONFIG, Component::ControllerManager),
    (SCHEDULER_KUBECONFIG, Component::Scheduler),
    (PROXY_KUBECONFIG, Component::Proxy),
];

/// A container of Kubernetes. Its name is that of its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[derive(strum::Display, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
pub enum Component {
    /// kube-apiserver, on control plane nodes.
    #[strum(serialize = "kube-apiserver")]
    ApiServer,
    /// The controllers of Kubernetes.
    #[strum(serialize = "kube-controller-manager")]
    ControllerManager,
    /// The scheduler of pods.
    #[strum(serialize = "kube-scheduler")]
    Scheduler,
    /// The agent of a node.
    #[strum(serialize = "kubelet")]
    Kubelet,
    /// The service addresses of a node.
    #[strum(serialize = "kube-proxy")]
    Proxy,
}

named!(Component array);

impl Component {
    /// True for a component of control plane nodes; the others run on every node.
    #[must_use]
    pub fn is_of_control_plane(self) -> bool {
        matches!(self, Self::ApiServer | Self::ControllerManager | Self::Scheduler)
    }

    /// True if its certificates are checked at its health endpoint; the others serve plain HTTP there.
    #[must_use]
    pub fn serves_tls(self) -> bool {
        self.is_of_control_plane()
    }

    /// The port of its health endpoint, as in CKE.
    #[must_use]
    pub fn health_port(self) -> u16 {
        match self {
            Self::ApiServer => 6443,
            Self::ControllerManager => 10257,
            Self::Scheduler => 10259,
            Self::Kubelet => 10248,
            Self::Proxy => 10249,
        }
    }

    /// Path of its configuration file, if it has one.
    #[must_use]
    pub fn configuration_path(self) -> Option<&'static str> {
        match self {
            Self::ApiServer | Self::ControllerManager => None,
            Self::Scheduler => Some(SCHEDULER_CONFIG),
            Self::Kubelet => Some(KUBELET_CONFIG),
            Self::Proxy => Some(PROXY_CONFIG),
        }
    }

    /// Options of the container engine, after those of every container.
    #[must_use]
    pub fn engine_options(self) -> &'static [&'static str] {
        match self {
            Self::ApiServer => &["--mount", "type=tmpfs,dst=/run/kubernetes"],
            Self::ControllerManager | Self::Scheduler => &[],
            Self::Kubelet => &["--pid=host", "--privileged", "--tmpfs=/tmp"],
            Self::Proxy => &["--tmpfs=/run", "--privileged"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_that_nodes_report() {
        let names = Component::ALL.map(|component| component.name());
        let reported =
            ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"];
        assert_eq!(names, reported);
        for name in names {
            assert_eq!(name.parse::<Component>().unwrap().name(), name);
        }
    }
}

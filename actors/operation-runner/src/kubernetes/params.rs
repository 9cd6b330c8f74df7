//! The built-in parameters of each component of Kubernetes: arguments in order, and mounts.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use madako_domain::cluster::{Cluster, Node};
use madako_domain::containers::{Mount, ServiceParams};

use super::options::KubernetesOptions;
use super::paths::{
    CNI_CONFIG, CNI_PROGRAMS, CNI_STATE, CONTAINER_LOGS, CONTROLLER_MANAGER_KUBECONFIG, ENCRYPTION,
    KUBELET_CONFIG, KUBELET_KUBECONFIG, POD_LOGS, PROXY_CONFIG, SCHEDULER_CONFIG, SCHEDULER_KUBECONFIG,
    VOLUME_PLUGINS, audit_policy_path, pki_path,
};
use madako_domain::component::Component;

/// The option of the kubelet with the socket of the container runtime.
pub(super) const RUNTIME_ENDPOINT: &str = "--container-runtime-endpoint=";

/// The mounts of each component, which are the same on all nodes.
static MOUNTS: LazyLock<BTreeMap<Component, Vec<Mount>>> =
    LazyLock::new(|| Component::ALL.into_iter().map(|it| (it, component_mounts(it))).collect());

/// The built-in parameters of a component on a node.
#[must_use]
pub fn builtin_parameters(
    component: Component,
    cluster: &Cluster,
    options: &KubernetesOptions,
    node: &Node,
) -> ServiceParams {
    let args = component_arguments(component, cluster, options, node);
    ServiceParams {
        args: std::iter::once(component.name().to_owned()).chain(args).collect(),
        binds: MOUNTS[&component].clone(),
        ..ServiceParams::default()
    }
}

/// True if the parameters are the built-in ones. A decision compares thousands of containers, so that this makes no copy of the
/// mounts.
pub(super) fn are_builtin(
    params: &ServiceParams,
    component: Component,
    cluster: &Cluster,
    options: &KubernetesOptions,
    node: &Node,
) -> bool {
    let is_same = |(one, other): (&Mount, &Mount)| {
        (&one.source, &one.destination, one.read_only) == (&other.source, &other.destination, other.read_only)
    };
    let mounts = &MOUNTS[&component];
    let Some((program, args)) = params.args.split_first() else { return false };
    params.env.is_empty()
        && params.binds.len() == mounts.len()
        && params.binds.iter().zip(mounts).all(is_same)
        && program == component.name()
        && args == component_arguments(component, cluster, options, node)
}

fn component_arguments(
    component: Component,
    cluster: &Cluster,
    options: &KubernetesOptions,
    node: &Node,
) -> Vec<String> {
    match component {
        Component::ApiServer => api_server(cluster, options, node),
        Component::ControllerManager => controller_manager(cluster),
        Component::Scheduler => scheduler_arguments(),
        Component::Kubelet => kubelet_arguments(options, node),
        Component::Proxy => vec![format!("--config={PROXY_CONFIG}")],
    }
}

fn api_server(cluster: &Cluster, options: &KubernetesOptions, node: &Node) -> Vec<String> {
    let mut args = vec![
        "--allow-privileged".to_owned(),
        "--etcd-servers=https://127.0.0.1:12379".to_owned(),
        file_option("etcd-cafile", "etcd-ca.crt"),
        file_option("etcd-certfile", "apiserver-etcd-client.crt"),
        file_option("etcd-keyfile", "apiserver-etcd-client.key"),
        // etcd compacts itself.
        "--etcd-compaction-interval=0".to_owned(),
        "--bind-address=0.0.0.0".to_owned(),
        file_option("client-ca-file", "ca.crt"),
        file_option("tls-cert-file", "apiserver.crt"),
        file_option("tls-private-key-file", "apiserver.key"),
        file_option("kubelet-certificate-authority", "ca.crt"),
        file_option("kubelet-client-certificate", "apiserver.crt"),
        file_option("kubelet-client-key", "apiserver.key"),
        "--enable-admission-plugins=NodeRestriction,DenyServiceExternalIPs".to_owned(),
        format!("--service-account-issuer=https://kubernetes.default.svc.{}", options.cluster_domain()),
        file_option("service-account-key-file", "service-account.crt"),
        file_option("service-account-signing-key-file", "service-account.key"),
        "--service-account-lookup".to_owned(),
        file_option("requestheader-client-ca-file", "aggregation-ca.crt"),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        file_option("proxy-client-cert-file", "aggregation.crt"),
        file_option("proxy-client-key-file", "aggregation.key"),
        "--authorization-mode=Node,RBAC".to_owned(),
        format!("--advertise-address={}", node.address),
        // The service writes the endpoints of the API servers itself.
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--service-cluster-ip-range={}", cluster.service_subnet),
        format!("--encryption-provider-config={ENCRYPTION}"),
    ];
    if let Some(audit) = &options.audit {
        let path = if audit.path.is_empty() { "-" } else { &audit.path };
        args.push(format!("--audit-log-path={path}"));
        args.push(format!("--audit-policy-file={}", audit_policy_path(&audit.policy)));
    }
    args
}

fn controller_manager(cluster: &Cluster) -> Vec<String> {
    vec![
        format!("--cluster-name={}", cluster.name),
        format!("--service-cluster-ip-range={}", cluster.service_subnet),
        format!("--kubeconfig={CONTROLLER_MANAGER_KUBECONFIG}"),
        format!("--authentication-kubeconfig={CONTROLLER_MANAGER_KUBECONFIG}"),
        format!("--authorization-kubeconfig={CONTROLLER_MANAGER_KUBECONFIG}"),
        file_option("tls-cert-file", "apiserver.crt"),
        file_option("tls-private-key-file", "apiserver.key"),
        file_option("root-ca-file", "ca.crt"),
        file_option("service-account-private-key-file", "service-account.key"),
        "--use-service-account-credentials=true".to_owned(),
    ]
}

fn scheduler_arguments() -> Vec<String> {
    vec![
        format!("--config={SCHEDULER_CONFIG}"),
        format!("--authentication-kubeconfig={SCHEDULER_KUBECONFIG}"),
        format!("--authorization-kubeconfig={SCHEDULER_KUBECONFIG}"),
        file_option("tls-cert-file", "apiserver.crt"),
        file_option("tls-private-key-file", "apiserver.key"),
    ]
}

fn kubelet_arguments(options: &KubernetesOptions, node: &Node) -> Vec<String> {
    let mut args = vec![
        format!("--config={KUBELET_CONFIG}"),
        format!("--kubeconfig={KUBELET_KUBECONFIG}"),
        format!("--hostname-override={}", node.name()),
    ];
    if !options.cri_endpoint.is_empty() {
        args.push(format!("{RUNTIME_ENDPOINT}{}", options.cri_endpoint));
    }
    args
}

fn file_option(option: &str, name: &str) -> String {
    format!("--{option}={}", pki_path(name))
}

fn component_mounts(component: Component) -> Vec<Mount> {
    let machine_id = read_only("/etc/machine-id", "");
    let kubernetes = read_only("/etc/kubernetes", "z");
    match component {
        Component::ApiServer | Component::ControllerManager | Component::Scheduler => {
            vec![machine_id, kubernetes]
        }
        Component::Proxy => vec![machine_id, kubernetes, read_only("/lib/modules", "")],
        Component::Kubelet => vec![
            machine_id,
            read_only("/etc/os-release", ""),
            kubernetes,
            writable_mount("/var/lib/kubelet", "rshared", "z"),
            writable_mount("/var/lib/docker", "", "Z"),
            writable_mount(VOLUME_PLUGINS, "shared", "z"),
            writable_mount(POD_LOGS, "", "z"),
            writable_mount(CONTAINER_LOGS, "", "z"),
            writable_mount("/run", "", ""),
            writable_mount("/sys", "", ""),
            writable_mount("/dev", "", ""),
            read_only(CNI_PROGRAMS, "z"),
            read_only(CNI_CONFIG, "z"),
            writable_mount(CNI_STATE, "", "z"),
        ],
    }
}

fn read_only(path: &str, selinux_label: &str) -> Mount {
    Mount { read_only: true, ..writable_mount(path, "", selinux_label) }
}

fn writable_mount(path: &str, propagation: &str, selinux_label: &str) -> Mount {
    Mount {
        source: path.to_owned(),
        destination: path.to_owned(),
        read_only: false,
        propagation: propagation.to_owned(),
        selinux_label: selinux_label.to_owned(),
    }
}

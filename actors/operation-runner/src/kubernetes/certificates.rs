//! The certificates of Kubernetes' components: issuer, subject, names, uses and validity; their files and their readers.

use std::net::IpAddr;

use madako_domain::authority::Authority;
use madako_domain::certificate::Validity;
use madako_domain::cluster::{Cluster, Node};
use madako_domain::component::{self, Component};
use madako_domain::node_status::NodeStatus;
use madako_domain::skew::KubernetesVersion;
use madako_protocol::authorities::{CertificateRequest, Usage};

use super::options::KubernetesOptions;
use crate::limits::{KUBERNETES_CERTIFICATE_VALIDITY, WEBHOOK_CERTIFICATE_VALIDITY};

/// A certificate on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CertificateSubject {
    ApiServer,
    /// The API server as a client of etcd.
    EtcdClient,
    /// The API server as a client of aggregated API servers.
    Aggregation,
    Kubelet,
    ControllerManager,
    Scheduler,
    Proxy,
}

impl CertificateSubject {
    /// All certificates that end and are issued anew. The pair of service accounts is none of them: tokens that it signed
    /// would no longer count.
    pub const ALL: [Self; 7] = [
        Self::ApiServer,
        Self::EtcdClient,
        Self::Aggregation,
        Self::Kubelet,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Proxy,
    ];

    /// The path of the certificate, or of the kubeconfig with it, on a node.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::ApiServer => component::API_SERVER_CERTIFICATE,
            Self::EtcdClient => component::ETCD_CLIENT_CERTIFICATE,
            Self::Aggregation => component::AGGREGATION_CERTIFICATE,
            Self::Kubelet => component::KUBELET_CERTIFICATE,
            Self::ControllerManager => component::CONTROLLER_MANAGER_KUBECONFIG,
            Self::Scheduler => component::SCHEDULER_KUBECONFIG,
            Self::Proxy => component::PROXY_KUBECONFIG,
        }
    }

    /// The component whose start issues the certificate.
    #[must_use]
    pub fn component(self) -> Component {
        match self {
            Self::ApiServer | Self::EtcdClient | Self::Aggregation => Component::ApiServer,
            Self::Kubelet => Component::Kubelet,
            Self::ControllerManager => Component::ControllerManager,
            Self::Scheduler => Component::Scheduler,
            Self::Proxy => Component::Proxy,
        }
    }

    /// True if the certificate is in a kubeconfig, which programs read only at their start. The programs read the others anew:
    ///
    /// - the API server: its serving pair and the pair for aggregated API servers, by a watch of the files and once a minute
    ///   (`dynamiccertificates` of `k8s.io/apiserver`); the pair for kubelets, which is the serving one, every five minutes
    ///   (`ReloadTLSFiles` of `k8s.io/client-go`); the pair for etcd, for each connection (`GetClientCertificate` of
    ///   `etcd/client/pkg/transport`);
    /// - controller manager and scheduler: the API server's pair, with which they serve, as the API server;
    /// - the kubelet: the pair with which it asks API servers, every five minutes, since its kubeconfig names files. It serves
    ///   with the same pair, and reads that anew from 1.31 on ([`rereads_serving_certificate`]).
    #[must_use]
    pub fn is_in_kubeconfig(self) -> bool {
        matches!(self, Self::ControllerManager | Self::Scheduler | Self::Proxy)
    }
}

/// True if a kubelet of this version reads its serving certificate anew: Kubernetes 1.31 turned
/// `ReloadKubeletServerCertificateFile` on. A kubelet of an unknown version may be older.
#[must_use]
pub fn rereads_serving_certificate(version: Option<&KubernetesVersion>) -> bool {
    version.is_some_and(|version| version.is_at_least(1, 31))
}

/// The validities of the certificates of components that run on a node.
pub(crate) fn validities_in_use(status: &NodeStatus) -> impl Iterator<Item = Validity> {
    let of_running = CertificateSubject::ALL.into_iter().filter(|subject| status.runs(subject.component()));
    of_running.filter_map(|subject| status.kubernetes_certificates.get(subject.path())?.validity)
}

/// The certificates of components that run on a node, and whose end is unknown: the login cannot read them, their key is
/// missing, or they are no certificates. They are never renewed.
pub(crate) fn unreadable_certificates(status: &NodeStatus) -> impl Iterator<Item = CertificateSubject> {
    let is_known =
        |path: &str| status.kubernetes_certificates.get(path).is_some_and(|it| it.validity.is_some());
    CertificateSubject::ALL
        .into_iter()
        .filter(move |subject| status.runs(subject.component()) && !is_known(subject.path()))
}

/// The request for a certificate. The network address of the service subnet need not be its first address: as in CKE,
/// the address after the configured one is that of the API servers' service.
#[must_use]
pub fn certificate_request(
    subject: CertificateSubject,
    cluster: &Cluster,
    options: &KubernetesOptions,
    node: &Node,
) -> CertificateRequest {
    match subject {
        CertificateSubject::ApiServer => CertificateRequest {
            dns_names: [
                "localhost".to_owned(),
                "kubernetes".to_owned(),
                "kubernetes.default".to_owned(),
                "kubernetes.default.svc".to_owned(),
                format!("kubernetes.default.svc.{}", options.cluster_domain()),
            ]
            .to_vec(),
            addresses: ["127.0.0.1".to_owned(), node.address.clone()]
                .into_iter()
                .chain(service_address(&cluster.service_subnet))
                .collect(),
            ..kubernetes_certificate_request("kubernetes", "", Usage::Both)
        },
        CertificateSubject::EtcdClient => CertificateRequest {
            authority: Authority::EtcdClient,
            ..kubernetes_certificate_request("kube-apiserver", "", Usage::Client)
        },
        CertificateSubject::Aggregation => CertificateRequest {
            authority: Authority::KubernetesAggregation,
            ..kubernetes_certificate_request("front-proxy-client", "", Usage::Client)
        },
        CertificateSubject::Kubelet => {
            let hostname = Some(node.name()).filter(|name| name.parse::<IpAddr>().is_err());
            CertificateRequest {
                dns_names: ["localhost"].into_iter().chain(hostname).map(str::to_owned).collect(),
                addresses: vec!["127.0.0.1".to_owned(), node.address.clone()],
                ..kubernetes_certificate_request(
                    &format!("system:node:{}", node.name()),
                    "system:nodes",
                    Usage::Both,
                )
            }
        }
        CertificateSubject::ControllerManager => user_certificate_request("system:kube-controller-manager"),
        CertificateSubject::Scheduler => user_certificate_request("system:kube-scheduler"),
        CertificateSubject::Proxy => {
            kubernetes_certificate_request("system:kube-proxy", "system:node-proxier", Usage::Both)
        }
    }
}

/// The certificate of an admission webhook.
#[must_use]
pub fn webhook_certificate_request(namespace: &str, service: &str) -> CertificateRequest {
    CertificateRequest {
        authority: Authority::KubernetesWebhook,
        dns_names: vec![
            service.to_owned(),
            format!("{service}.{namespace}"),
            format!("{service}.{namespace}.svc"),
        ],
        validity: WEBHOOK_CERTIFICATE_VALIDITY,
        ..kubernetes_certificate_request(&format!("{namespace}/{service}"), "", Usage::Server)
    }
}

/// A component whose user is in a group of the same name.
fn user_certificate_request(name: &str) -> CertificateRequest {
    kubernetes_certificate_request(name, name, Usage::Both)
}

fn kubernetes_certificate_request(common_name: &str, organization: &str, usage: Usage) -> CertificateRequest {
    CertificateRequest {
        authority: Authority::Kubernetes,
        common_name: common_name.to_owned(),
        organization: organization.to_owned(),
        dns_names: Vec::new(),
        addresses: Vec::new(),
        usage,
        validity: KUBERNETES_CERTIFICATE_VALIDITY,
    }
}

/// The address after that of a subnet; `None` if the text is not a subnet or its address the last one.
#[must_use]
pub fn service_address(subnet: &str) -> Option<String> {
    let address: IpAddr = subnet.split_once('/')?.0.parse().ok()?;
    let next: IpAddr = match address {
        IpAddr::V4(address) => IpAddr::V4(address.to_bits().checked_add(1)?.into()),
        IpAddr::V6(address) => IpAddr::V6(address.to_bits().checked_add(1)?.into()),
    };
    Some(next.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn nodes_report_each_certificate_by_its_path() {
        let paths = |in_kubeconfig: bool| -> BTreeSet<(&str, Component)> {
            let subjects = CertificateSubject::ALL.into_iter();
            let subjects = subjects.filter(|subject| subject.is_in_kubeconfig() == in_kubeconfig);
            subjects.map(|subject| (subject.path(), subject.component())).collect()
        };
        assert_eq!(paths(true), component::KUBECONFIGS.into());
        let files: Vec<&str> = paths(false).into_iter().map(|(path, _)| path).collect();
        assert_eq!(BTreeSet::from_iter(files), component::CERTIFICATES.into());
    }

    #[test]
    fn kubelets_read_their_serving_certificate_anew_from_1_31_on() {
        for (version, rereads) in [("1.30.14", false), ("1.31.0", true), ("1.34.4", true), ("2.0.0", true)] {
            assert_eq!(rereads_serving_certificate(Some(&version.parse().unwrap())), rereads, "{version}");
        }
        assert!(!rereads_serving_certificate(None));
    }

    #[test]
    fn the_service_address_follows_the_address_of_the_subnet() {
        for (subnet, address) in [
            ("10.68.0.0/16", Some("10.68.0.1")),
            ("10.68.0.5/16", Some("10.68.0.6")),
            ("192.168.255.255/20", Some("192.169.0.0")),
            ("fd00::/108", Some("fd00::1")),
            ("255.255.255.255/32", None),
            ("10.68.0.0", None),
        ] {
            assert_eq!(service_address(subnet).as_deref(), address, "{subnet}");
        }
    }

    #[test]
    fn a_webhook_has_the_names_of_its_service() {
        let request = webhook_certificate_request("ns", "svc");
        assert_eq!((request.common_name.as_str(), request.usage), ("ns/svc", Usage::Server));
        assert_eq!(request.dns_names, ["svc", "svc.ns", "svc.ns.svc"]);
        assert_eq!(request.validity.as_secs(), 175_200 * 3600);
    }
}

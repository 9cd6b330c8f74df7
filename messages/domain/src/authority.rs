//! The certificate authorities of a cluster.

use madako_json::named;

/// A certificate authority, in the order of `ckecli vault init`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[derive(strum::IntoStaticStr, strum::EnumString, strum::VariantArray, strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum Authority {
    /// Server certificates of etcd.
    Server,
    /// Peer certificates of etcd.
    EtcdPeer,
    /// Client certificates of etcd.
    EtcdClient,
    /// Components and users of Kubernetes.
    Kubernetes,
    /// The aggregation layer of Kubernetes.
    KubernetesAggregation,
    /// Admission webhooks of Kubernetes.
    KubernetesWebhook,
}

named!(Authority array);

impl Authority {
    /// Common name of the authority's own certificate, as CKE has it.
    #[must_use]
    pub fn common_name(self) -> &'static str {
        match self {
            Self::Server => "server CA",
            Self::EtcdPeer => "etcd peer CA",
            Self::EtcdClient => "etcd client CA",
            Self::Kubernetes => "kubernetes CA",
            Self::KubernetesAggregation => "kubernetes aggregation CA",
            Self::KubernetesWebhook => "kubernetes webhook CA",
        }
    }
}

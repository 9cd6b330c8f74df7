//! The certificates of a member of etcd: their subjects and uses (CKE's, see `docs/decisions/operations-beside-cke.md`).

use madako_domain::authority::Authority;
use madako_domain::cluster::Node;
use madako_protocol::authorities::{CertificateRequest, Usage};

use crate::limits::CERTIFICATE_VALIDITY;

/// The server certificate of a node's member.
pub(crate) fn server(node: &Node) -> CertificateRequest {
    let names = ["localhost", "cke-etcd", "cke-etcd.kube-system", "cke-etcd.kube-system.svc"];
    let dns_names = names.map(str::to_owned).to_vec();
    CertificateRequest { authority: Authority::Server, dns_names, usage: Usage::Server, ..member(node) }
}

/// The certificate with which a node's member connects to other members and serves them.
pub(crate) fn peer(node: &Node) -> CertificateRequest {
    member(node)
}

fn member(node: &Node) -> CertificateRequest {
    CertificateRequest {
        authority: Authority::EtcdPeer,
        common_name: node.name().to_owned(),
        organization: String::new(),
        dns_names: Vec::new(),
        addresses: vec!["127.0.0.1".to_owned(), node.address.clone()],
        usage: Usage::Both,
        validity: CERTIFICATE_VALIDITY,
    }
}

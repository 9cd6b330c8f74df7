//! The certificates of a member of etcd: their subjects and uses (CKE's, see `docs/decisions/operations-beside-cke.md`),
//! and their renewal.

use madako_domain::authority::Authority;
use madako_domain::cluster::Node;
use madako_domain::containers::{Container, ETCD_PEER, ETCD_SERVER};
use madako_domain::status::OperationPhase;
use madako_protocol::authorities::{CertificateRequest, Usage};

use crate::decide::Row;
use crate::held::Held;
use crate::limits::CERTIFICATE_VALIDITY;
use crate::operation::{OperationName, renew_certificates};
use crate::view::{NodeView, View};

/// Renews the certificates of one member that runs. Neither other nodes nor the state of etcd matter: a renewal stops
/// nothing, and may be all that the members need to answer again.
pub(crate) fn row(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    let due = view.control_plane_nodes().filter(|node| is_due(view, node));
    let usable = view.usable(OperationName::EtcdRenewCertificates, &[], due, held);
    let target = usable.into_iter().next()?;
    Some((OperationPhase::EtcdMaintain, vec![renew_certificates(target)]))
}

/// Unreadable certificates are not due: perhaps only the login may not read them.
fn is_due(view: &View<'_>, node: &NodeView<'_>) -> bool {
    let must_renew = |file: &&str| {
        let certificate = node.status.etcd_certificates.get(*file);
        let validity = certificate.and_then(|certificate| certificate.validity);
        validity.is_some_and(|validity| validity.must_renew(view.input.now))
    };
    node.status.runs(Container::Etcd) && [ETCD_SERVER, ETCD_PEER].iter().any(must_renew)
}

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

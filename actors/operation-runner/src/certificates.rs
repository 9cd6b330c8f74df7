//! The certificates of a member of etcd: their subjects and uses (CKE's, see `docs/decisions/operations-beside-cke.md`),
//! and their renewal.

use std::net::IpAddr;

use madako_domain::authority::Authority;
use madako_domain::cluster::Node;
use madako_domain::containers::{Container, ETCD_PEER, ETCD_SERVER};
use madako_domain::node_status::NodeStatus;
use madako_domain::status::OperationPhase;
use madako_protocol::authorities::{CertificateRequest, Usage};

use crate::decide::Row;
use crate::held::Held;
use crate::limits::CERTIFICATE_VALIDITY;
use crate::operation::{OperationName, renew_certificates};
use crate::view::{NodeView, View};

/// Renews the certificates of one member that runs. Neither other nodes nor the state of etcd matter: a renewal stops
/// nothing, and may be all that the members need to answer again.
pub(crate) fn renewal_row(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    let due = view.control_plane_nodes().filter(|node| due_certificates(view, node).next().is_some());
    let usable = view.select_usable_nodes(OperationName::EtcdRenewCertificates, &[], due, held);
    let target = usable.into_iter().next()?;
    Some((OperationPhase::EtcdMaintain, vec![renew_certificates(target)]))
}

/// Files of the certificates to renew on a node of the control plane. Unreadable certificates are not due: perhaps only the
/// login may not read them.
pub(crate) fn due_certificates(view: &View<'_>, node: &NodeView<'_>) -> impl Iterator<Item = &'static str> {
    let must_renew = |file: &&'static str| {
        let certificate = node.status.etcd_certificates.get(*file);
        let validity = certificate.and_then(|certificate| certificate.validity);
        validity.is_some_and(|validity| validity.must_renew(view.input.now))
    };
    let runs = node.control_plane && node.status.runs(Container::Etcd);
    [ETCD_SERVER, ETCD_PEER].into_iter().filter(move |file| runs && must_renew(file))
}

/// The certificates of a member that runs whose end is unknown: the login cannot read them, their key is missing, or they
/// are not certificates. They are never renewed.
pub(crate) fn unreadable_certificates(status: &NodeStatus) -> impl Iterator<Item = &'static str> {
    let is_known = |file: &str| status.etcd_certificates.get(file).is_some_and(|it| it.validity.is_some());
    [ETCD_SERVER, ETCD_PEER].into_iter().filter(move |file| status.runs(Container::Etcd) && !is_known(file))
}

/// The server certificate of a node's member. Vault adds the common name of CKE's request to the names; an address as common
/// name is among the addresses.
pub(crate) fn server_certificate_request(node: &Node) -> CertificateRequest {
    let names = ["localhost", "cke-etcd", "cke-etcd.kube-system", "cke-etcd.kube-system.svc"];
    let hostname =
        Some(node.hostname.as_str()).filter(|name| !name.is_empty() && name.parse::<IpAddr>().is_err());
    let dns_names = names.into_iter().chain(hostname).map(str::to_owned).collect();
    CertificateRequest {
        authority: Authority::Server,
        dns_names,
        usage: Usage::Server,
        ..member_certificate_request(node)
    }
}

/// The certificate with which a node's member connects to other members and serves them.
pub(crate) fn peer_certificate_request(node: &Node) -> CertificateRequest {
    member_certificate_request(node)
}

fn member_certificate_request(node: &Node) -> CertificateRequest {
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

#[cfg(test)]
mod tests {
    use madako_domain::certificate::{NodeCertificate, Validity};
    use madako_domain::node_status::ContainerStatus;

    use super::*;

    #[test]
    fn certificates_of_a_member_that_runs_are_readable_or_named() {
        let at = time::OffsetDateTime::UNIX_EPOCH;
        let known =
            NodeCertificate { validity: Some(Validity { from: at, to: at }), ..NodeCertificate::default() };
        let named = |status: &NodeStatus| unreadable_certificates(status).collect::<Vec<_>>();
        let mut status = NodeStatus { reachable: true, ..NodeStatus::default() };
        assert_eq!(named(&status), [""; 0], "no member runs");
        let etcd = ContainerStatus { running: true, ..ContainerStatus::default() };
        status.containers.insert(Container::Etcd.name().to_owned(), etcd);
        assert_eq!(named(&status), [ETCD_SERVER, ETCD_PEER]);
        status.etcd_certificates.insert(ETCD_PEER.to_owned(), known);
        status.etcd_certificates.insert(ETCD_SERVER.to_owned(), NodeCertificate::default());
        assert_eq!(named(&status), [ETCD_SERVER], "the text is not a certificate");
    }

    #[test]
    fn a_host_name_is_a_dns_name_of_the_server_certificate_alone() {
        for (hostname, is_named) in [("node-1", true), ("", false), ("10.0.0.1", false)] {
            let node =
                Node { hostname: hostname.to_owned(), address: "10.0.0.1".to_owned(), ..Node::default() };
            let names = server_certificate_request(&node).dns_names;
            assert_eq!(names.len(), 4 + usize::from(is_named), "{names:?}");
            assert_eq!(names.contains(&hostname.to_owned()), is_named, "{names:?}");
            assert!(peer_certificate_request(&node).dns_names.is_empty());
        }
    }
}

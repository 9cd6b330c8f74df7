//! The commands that issue and write the certificates of etcd's members.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use madako_domain::authority::Authority;
use madako_domain::certificate::NodeCertificate;
use madako_domain::cluster::Node;
use madako_domain::containers::{ETCD_CLIENT_CA, ETCD_PEER, ETCD_PEER_CA, ETCD_PKI, ETCD_SERVER};
use madako_protocol::node::{FileContent, NodeAction, NodeFile};

use super::execute::{Basis, Executor, Failure};
use crate::certificates;

impl Executor {
    /// Issues the certificates that the targets lack, or have from another authority, for other names, or from an earlier
    /// time.
    pub(super) async fn prepare(&self, targets: &[String], basis: &Basis) -> Result<(), Failure> {
        let mut prepared = BTreeMap::new();
        for node in basis.cluster.nodes.iter().filter(|node| targets.contains(&node.address)) {
            let files = self.certificate_files(node, basis.certificates.get(&node.address)).await?;
            prepared.insert(node.address.clone(), files);
        }
        *self.prepared.lock().unwrap_or_else(PoisonError::into_inner) = prepared;
        Ok(())
    }

    /// The files to write on a node with the certificates `known`.
    async fn certificate_files(
        &self,
        node: &Node,
        known: Option<&BTreeMap<String, NodeCertificate>>,
    ) -> Result<Vec<NodeFile>, Failure> {
        let known = |file: &str| known?.get(file).map(|certificate| certificate.text.as_str());
        let mut files = Vec::new();
        let mut add = |name: &str, content| {
            files.push(NodeFile { path: format!("{ETCD_PKI}/{name}"), content });
        };
        for (certificate, key, request) in [
            (ETCD_SERVER, "server.key", certificates::server_certificate_request(node)),
            (ETCD_PEER, "peer.key", certificates::peer_certificate_request(node)),
        ] {
            let issuer = self.authorities.certificate(request.authority).await?;
            if self.authorities.due(known(certificate), &issuer, &request).is_some() {
                let issued = self.authorities.issue(&request).await?;
                // The key is first: after an interrupted write, the certificate is still due.
                add(key, FileContent::Private(issued.private_key));
                add(certificate, FileContent::Public(issued.certificate));
            }
        }
        for (file, authority) in
            [(ETCD_PEER_CA, Authority::EtcdPeer), (ETCD_CLIENT_CA, Authority::EtcdClient)]
        {
            let certificate = self.authorities.certificate(authority).await?;
            if known(file).map(str::trim) != Some(certificate.trim()) {
                add(file, FileContent::Public(certificate));
            }
        }
        Ok(files)
    }

    /// Writes the issued certificates. A node that lacks none gets no file.
    pub(super) async fn make_files(&self, targets: &[String]) -> Result<(), Failure> {
        let prepared = std::mem::take(&mut *self.prepared.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(missing) = targets.iter().find(|target| !prepared.contains_key(*target)) {
            return Err(format!("{missing} has no certificates: it is not a node of the cluster").into());
        }
        let files = |address: &str| prepared.get(address).cloned().unwrap_or_default();
        let targets: Vec<String> =
            targets.iter().filter(|address| !files(address).is_empty()).cloned().collect();
        self.run_on_all_targets(&targets, |address| NodeAction::WriteFiles {
            tools: self.images.tools.clone(),
            directory: ETCD_PKI.to_owned(),
            files: files(address),
        })
        .await
    }
}

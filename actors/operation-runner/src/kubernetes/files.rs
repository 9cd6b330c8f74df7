//! The files that each operation on Kubernetes' containers writes to a node, in the order of CKE's records.

use madako_domain::authority::Authority;
use madako_domain::cluster::{Cluster, Node};

use super::certificates::CertificateSubject;
use super::configuration::{Configuration, Unknown};
use super::kubeconfig;
use super::options::KubernetesOptions;
use super::paths::{
    CNI_CONFIG, CONTROLLER_MANAGER_KUBECONFIG, ENCRYPTION, KUBELET_CONFIG, KUBELET_KUBECONFIG, PROXY_CONFIG,
    PROXY_KUBECONFIG, SCHEDULER_CONFIG, SCHEDULER_KUBECONFIG, audit_policy_path, pki_path,
};
use madako_domain::component::Component;

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedFile {
    pub path: String,
    pub source: Source,
}

/// The origin of a file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The content itself, which is not a secret.
    Text(String),
    /// The certificate of an authority.
    Authority(Authority),
    /// An issued certificate.
    Certificate(CertificateSubject),
    /// The key of that certificate.
    Key(CertificateSubject),
    /// The certificate with which API servers check tokens of service accounts. It is made once.
    ServiceAccountCertificate,
    /// The private key of that certificate.
    ServiceAccountKey,
    /// A kubeconfig with an issued certificate and its key.
    Kubeconfig(CertificateSubject),
    /// The encryption of Secrets, with its keys.
    Encryption,
}

/// A set of files that an operation writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSet {
    ApiServer,
    /// For the first start; a restart writes nothing.
    ControllerManager,
    Scheduler,
    /// With the CNI configuration and the certificate of the authority, which a restart leaves as they are.
    KubeletBoot,
    KubeletRestart,
    Proxy,
}

/// The cluster, options and node from which the contents of the files are made.
#[derive(Debug, Clone, Copy)]
pub struct FileContext<'a> {
    pub cluster: &'a Cluster,
    pub options: &'a KubernetesOptions,
    pub node: &'a Node,
    /// The configuration of the kubelet that runs on the node.
    pub running: Option<&'a Configuration>,
    pub unknown: Unknown,
}

/// The files of a set.
///
/// # Errors
/// A number in the operator's part of a configuration exceeds every float.
pub fn planned_files(set: FileSet, about: &FileContext<'_>) -> Result<Vec<PlannedFile>, serde_json::Error> {
    let mut files = Vec::new();
    let mut add = |path: String, source| files.push(PlannedFile { path, source });
    match set {
        FileSet::ApiServer => {
            add_key_pair(&mut add, "apiserver", CertificateSubject::ApiServer);
            add_key_pair(&mut add, "apiserver-etcd-client", CertificateSubject::EtcdClient);
            add(pki_path("ca.crt"), Source::Authority(Authority::Kubernetes));
            add(pki_path("etcd-ca.crt"), Source::Authority(Authority::Server));
            add(pki_path("service-account.crt"), Source::ServiceAccountCertificate);
            add(pki_path("service-account.key"), Source::ServiceAccountKey);
            add(pki_path("aggregation-ca.crt"), Source::Authority(Authority::KubernetesAggregation));
            add_key_pair(&mut add, "aggregation", CertificateSubject::Aggregation);
            add(ENCRYPTION.to_owned(), Source::Encryption);
            if let Some(audit) = &about.options.audit {
                add(audit_policy_path(&audit.policy), Source::Text(audit.policy.clone()));
            }
        }
        FileSet::ControllerManager => {
            add(
                CONTROLLER_MANAGER_KUBECONFIG.to_owned(),
                Source::Kubeconfig(CertificateSubject::ControllerManager),
            );
            add(pki_path("service-account.key"), Source::ServiceAccountKey);
        }
        FileSet::Scheduler => {
            add(SCHEDULER_KUBECONFIG.to_owned(), Source::Kubeconfig(CertificateSubject::Scheduler));
            add_configuration(&mut add, SCHEDULER_CONFIG, Component::Scheduler, about)?;
        }
        FileSet::KubeletBoot | FileSet::KubeletRestart => {
            let boots = set == FileSet::KubeletBoot;
            if let Some(cni) = about.options.cni_file.as_ref().filter(|_| boots) {
                add(format!("{CNI_CONFIG}/{}", cni.name), Source::Text(cni.content.clone()));
            }
            add_configuration(&mut add, KUBELET_CONFIG, Component::Kubelet, about)?;
            if boots {
                add(pki_path("ca.crt"), Source::Authority(Authority::Kubernetes));
            }
            add_key_pair(&mut add, "kubelet", CertificateSubject::Kubelet);
            let text = kubeconfig::kubelet_kubeconfig(&about.cluster.name, about.node);
            add(KUBELET_KUBECONFIG.to_owned(), Source::Text(text));
        }
        FileSet::Proxy => {
            add(PROXY_KUBECONFIG.to_owned(), Source::Kubeconfig(CertificateSubject::Proxy));
            add_configuration(&mut add, PROXY_CONFIG, Component::Proxy, about)?;
        }
    }
    Ok(files)
}

/// The files with renewed certificates. A key is before its certificate: after an interrupted write, the certificate is
/// still due. A program that reads the two between both writes keeps its earlier pair, and reads them again.
#[must_use]
pub fn renewed_files(subjects: &[CertificateSubject]) -> Vec<PlannedFile> {
    let mut files = Vec::new();
    for subject in subjects.iter().copied() {
        let path = subject.path();
        if subject.is_in_kubeconfig() {
            files.push(PlannedFile { path: path.to_owned(), source: Source::Kubeconfig(subject) });
        } else {
            let key = format!("{}.key", path.trim_end_matches(".crt"));
            files.push(PlannedFile { path: key, source: Source::Key(subject) });
            files.push(PlannedFile { path: path.to_owned(), source: Source::Certificate(subject) });
        }
    }
    files
}

fn add_key_pair(add: &mut impl FnMut(String, Source), name: &str, subject: CertificateSubject) {
    add(pki_path(&format!("{name}.crt")), Source::Certificate(subject));
    add(pki_path(&format!("{name}.key")), Source::Key(subject));
}

fn add_configuration(
    add: &mut impl FnMut(String, Source),
    path: &str,
    component: Component,
    about: &FileContext<'_>,
) -> Result<(), serde_json::Error> {
    let wanted =
        Configuration::build_wanted(component, about.options, about.node, about.running, about.unknown);
    if let Some(wanted) = wanted {
        add(path.to_owned(), Source::Text(wanted.to_yaml()?));
    }
    Ok(())
}

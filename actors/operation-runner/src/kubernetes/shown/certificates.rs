//! The certificates of Kubernetes on the nodes, for the output of commands.

use madako_domain::cluster::Node;
use madako_domain::node_status::NodeStatus;
use madako_json::named;
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::input::Input;
use crate::kubernetes::certificates::CertificateSubject;

/// The state of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum CertificateState {
    Good,
    /// It ends soon, or has ended.
    Due,
    /// Its end is not known: it is never renewed.
    Unreadable,
}

named!(CertificateState);

/// A certificate of a component that runs on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownCertificate {
    pub node: String,
    /// Path of the certificate, or of the kubeconfig with it.
    pub file: &'static str,
    pub state: CertificateState,
    #[serde(with = "time::serde::rfc3339::option")]
    pub not_after: Option<OffsetDateTime>,
    pub why: Vec<String>,
}

/// The certificates of all components that run, in the order of the nodes.
#[must_use]
pub fn certificates(input: &Input<'_>) -> Vec<ShownCertificate> {
    let on_node = |node: &Node| {
        let status = input.status.nodes.get(&node.address).filter(|status| status.reachable);
        let subjects = CertificateSubject::ALL.into_iter();
        let shown = subjects.filter_map(|subject| certificate_on(node, status?, subject, input.now));
        shown.collect::<Vec<_>>()
    };
    input.cluster.nodes.iter().flat_map(on_node).collect()
}

/// `None`: its component does not run.
fn certificate_on(
    node: &Node,
    status: &NodeStatus,
    subject: CertificateSubject,
    now: OffsetDateTime,
) -> Option<ShownCertificate> {
    let component = subject.component();
    if !status.runs(component) {
        return None;
    }
    let validity = status.kubernetes_certificates.get(subject.path()).and_then(|found| found.validity);
    let (state, why) = match validity {
        None => {
            let why = "the login cannot read it, its private key is missing, or it is no certificate: it is \
                       never renewed";
            (CertificateState::Unreadable, Some(why.to_owned()))
        }
        Some(validity) if validity.must_renew(now) => {
            let ends = if validity.to <= now { "ended" } else { "ends" };
            // Every time of a certificate has a year of four digits.
            let at = validity.to.format(&Rfc3339).unwrap_or_default();
            let how = if subject.is_in_kubeconfig() {
                format!("with a restart of {component}")
            } else {
                format!("while {component} runs")
            };
            (CertificateState::Due, Some(format!("it {ends} at {at}, and is renewed {how}")))
        }
        Some(_) => (CertificateState::Good, None),
    };
    Some(ShownCertificate {
        node: node.address.clone(),
        file: subject.path(),
        state,
        not_after: validity.map(|validity| validity.to),
        why: why.into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use madako_domain::certificate::{NodeCertificate, Validity};
    use madako_domain::component::Component;
    use madako_domain::node_status::ContainerStatus;
    use time::Duration;

    use super::*;

    #[test]
    fn a_certificate_of_a_component_that_runs_is_good_due_or_unreadable() {
        let node = Node { address: "10.0.0.1".to_owned(), ..Node::default() };
        let now = OffsetDateTime::UNIX_EPOCH;
        let mut status = NodeStatus { reachable: true, ..NodeStatus::default() };
        let shown = |status: &NodeStatus| {
            let shown = certificate_on(&node, status, CertificateSubject::Proxy, now)?;
            Some((shown.state, shown.why.join("; ")))
        };
        assert_eq!(shown(&status), None, "no proxy runs");
        let proxy = ContainerStatus { running: true, ..ContainerStatus::default() };
        status.containers.insert(Component::Proxy.name().to_owned(), proxy);
        assert_eq!(shown(&status).unwrap().0, CertificateState::Unreadable);
        let mut ends = |days: i64| {
            let to = now + Duration::days(days);
            let validity = Some(Validity { from: to - Duration::days(3650), to });
            let found = NodeCertificate { text: String::new(), validity };
            status.kubernetes_certificates.insert(CertificateSubject::Proxy.path().to_owned(), found);
            shown(&status).unwrap()
        };
        assert_eq!(ends(30), (CertificateState::Good, String::new()));
        let why = "it ends at 1970-01-30T00:00:00Z, and is renewed with a restart of kube-proxy";
        assert_eq!(ends(29), (CertificateState::Due, why.to_owned()));
        assert!(ends(-1).1.starts_with("it ended at 1969-12-31T00:00:00Z"));
    }
}

//! The row that renews the certificates of Kubernetes' components that run, and its operation.

use madako_domain::component::Component;
use madako_domain::status::OperationPhase;

use super::command::KubernetesCommand;
use super::decide::{Renewal, RenewalDecision, decide_renewal};
use super::files::renewed_files;
use super::held::KubernetesBlockedBy;
use super::row;
use crate::command::Command;
use crate::decide::Row;
use crate::held::{BlockedBy, Held};
use crate::input::KubernetesMode;
use crate::operation::{Operation, OperationName};
use crate::view::View;

/// Renews certificates of one node. While Kubernetes is only observed, the operation is held.
pub(crate) fn row(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    let part = view.input.kubernetes?;
    // The row of the components names unusable options.
    let wanted = row::wanted(view.input, part.options.ok()?);
    let RenewalDecision { renewal, held: waiting } =
        decide_renewal(&row::kubernetes_input(view, &part, wanted, &view.kubernetes));
    let what = OperationName::KubernetesRenewCertificates;
    held.extend(waiting.into_iter().map(|(reason, targets)| {
        let reason = match reason {
            KubernetesBlockedBy::BackingOff => BlockedBy::BackingOff,
            other => BlockedBy::Kubernetes(other),
        };
        Held { what, reason, targets }
    }));
    let renewal = renewal?;
    if view.input.settings.kubernetes != KubernetesMode::Act {
        let reason = BlockedBy::Kubernetes(KubernetesBlockedBy::Observed);
        held.push(Held { what, reason, targets: vec![renewal.target] });
        return None;
    }
    Some((OperationPhase::K8sMaintain, vec![operation(renewal, wanted.image)]))
}

/// A program stops before its new kubeconfig is written. If this operation is interrupted, the program either has its earlier
/// certificate, which is still due, or does not run, and its start issues another one. A kubelet never stops here, since it
/// would start again only behind its boot taints; its file has the new certificate already.
fn operation(Renewal { target, subjects, restart }: Renewal, image: &str) -> Operation {
    use KubernetesCommand::{ImagePull, MakeFiles, PrepareCertificates, RunContainer, StopContainer};
    let paths = renewed_files(&subjects).into_iter().map(|file| file.path).collect();
    let (prepare, write) = (PrepareCertificates { subjects }, MakeFiles { paths });
    let pull = ImagePull { image: image.to_owned() };
    let commands = match restart {
        None => vec![prepare, write],
        Some(component @ Component::Kubelet) => {
            vec![pull, RunContainer { component, restart: true }]
        }
        Some(component) => {
            vec![pull, prepare, StopContainer(component), write, RunContainer { component, restart: false }]
        }
    };
    let commands = commands.into_iter().map(Command::Kubernetes).collect();
    Operation::new(OperationName::KubernetesRenewCertificates, vec![target], commands)
}

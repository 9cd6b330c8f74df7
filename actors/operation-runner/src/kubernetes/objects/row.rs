//! The row `k8s-maintain` of CKE's table of operations: the service applies the objects that it keeps in Kubernetes.

use std::collections::BTreeSet;

use madako_domain::component::Component;
use madako_domain::status::OperationPhase;

use super::decide::{ObjectsInput, decide};
use super::operation::{ObjectCommand, ObjectOperationName};
use crate::command::Command;
use crate::decide::Row;
use crate::held::{BlockedBy, Held};
use crate::input::{Input, KubernetesMode};
use crate::kubernetes::held::KubernetesBlockedBy;
use crate::operation::{Operation, OperationName, single_command_operation};
use crate::view::View;

/// Changes the objects. While Kubernetes is only observed, each due operation is held.
pub(crate) fn row(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    // The row `k8s-start` holds all operations if the options cannot be used.
    let domain = view.input.kubernetes?.options.ok()?.cluster_domain();
    let healthy = healthy_servers(view.input);
    let decision = decide(&objects_input(view.input, &domain, &healthy)?);
    held.extend(decision.held.into_iter().map(|waiting| Held {
        what: OperationName::Object(waiting.what),
        reason: BlockedBy::Object(waiting.reason),
        targets: vec![waiting.key.to_string()],
    }));
    if view.input.settings.kubernetes != KubernetesMode::Act {
        held.extend(decision.operations.into_iter().map(|due| Held {
            what: OperationName::Object(due.name),
            reason: BlockedBy::Kubernetes(KubernetesBlockedBy::Observed),
            targets: due.command.objects().into_iter().map(|(key, _)| key.to_string()).collect(),
        }));
        return None;
    }
    let server = healthy.first().map(|address| (*address).to_owned());
    let operation = |due: super::decide::DueObject| operation(due.name, due.command, server.clone());
    let operations: Vec<Operation> = decision.operations.into_iter().map(operation).collect();
    (!operations.is_empty()).then_some((OperationPhase::K8sMaintain, operations))
}

/// The targets of a record are, as in CKE, the nodes that change, or the API server.
fn operation(name: ObjectOperationName, command: ObjectCommand, server: Option<String>) -> Operation {
    let targets = match &command {
        ObjectCommand::UpdateNodes(changes) => changes.iter().map(|change| change.name.clone()).collect(),
        _ => server.into_iter().collect(),
    };
    single_command_operation(OperationName::Object(name), targets, Command::Object(command))
}

/// Addresses of the control plane nodes whose API servers are healthy.
pub(crate) fn healthy_servers<'a>(input: &Input<'a>) -> BTreeSet<&'a str> {
    let answers = input.status.kubernetes.as_ref();
    let is_healthy = |address: &&str| answers.is_some_and(|it| it.is_healthy(Component::ApiServer, address));
    input.cluster.control_plane().map(|node| node.address.as_str()).filter(is_healthy).collect()
}

/// The input of the decision; `None`: no API server reported the objects.
pub(crate) fn objects_input<'a>(
    input: &Input<'a>,
    domain: &'a str,
    healthy: &'a BTreeSet<&'a str>,
) -> Option<ObjectsInput<'a>> {
    let part = input.kubernetes?;
    let answers = input.status.kubernetes.as_ref()?;
    Some(ObjectsInput {
        now: input.now,
        cluster: input.cluster,
        domain,
        images: &input.settings.images.dns,
        user: part.objects.user,
        answers: answers.objects.as_ref()?,
        server_versions: &answers.server_versions,
        failed: part.objects.failed,
        healthy,
        busy: part.objects.leaving,
        is_guarded: part.objects.is_guarded,
        is_removal_agreed: part.objects.is_removal_agreed,
    })
}

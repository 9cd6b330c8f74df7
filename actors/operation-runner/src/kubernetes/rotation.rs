//! The rotation of the key with which API servers encrypt Secrets: the new key is added, then put first, all Secrets are written
//! anew, and earlier keys are dropped. After each change of the keys, the row `k8s-start` restarts the API servers, one at a
//! time.
//!
//! # Guarantees
//! - The keys change only while each API server runs with the keys of the step before and is healthy for a while. Thus each
//!   API server decrypts all that any other one encrypts.
//! - Earlier keys are dropped only after each Secret was written by an API server that encrypts with the new key.
//! - While the roll of kubelets and proxies is paused or halted, nothing changes.

use madako_domain::component::Component;
use madako_domain::encryption_rotation::{EncryptionRotation, RotationStage};
use madako_domain::status::OperationPhase;

use super::command::KubernetesCommand as Command;
use super::decide::{KubernetesInput, rotation_obstacle};
use super::held::KubernetesBlockedBy;
use super::row;
use super::status::ComponentStatus;
use crate::command::Command as RunnerCommand;
use crate::decide::Row;
use crate::held::{BlockedBy, Held};
use crate::input::KubernetesMode;
use crate::operation::{OperationName, single_command_operation};
use crate::view::View;

const NAME: OperationName = OperationName::KubernetesRotateEncryptionKey;

/// The next step of a rotation. While Kubernetes is only observed, it is held.
pub(crate) fn row(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    let part = view.input.kubernetes?;
    // The row `k8s-start` holds all operations if the options cannot be used.
    let options = part.options.ok()?;
    let decided = match part.rotation {
        Ok(rotation) => {
            let wanted = row::wanted(view.input, options);
            decide(rotation?, &row::kubernetes_input(view, &part, wanted, &view.kubernetes))
        }
        Err(why) => Err(Box::new(KubernetesBlockedBy::RotationUnreadable { why: why.to_owned() })),
    };
    let acts = view.input.settings.kubernetes == KubernetesMode::Act;
    match decided {
        Ok(command) if acts => {
            let command = RunnerCommand::Kubernetes(command);
            let operation = single_command_operation(NAME, view.control_plane.clone(), command);
            Some((OperationPhase::K8sMaintain, vec![operation]))
        }
        decided => {
            let reason =
                decided.err().filter(|_| acts).map_or(KubernetesBlockedBy::Observed, |reason| *reason);
            let reason = BlockedBy::Kubernetes(reason);
            held.push(Held { what: NAME, reason, targets: view.control_plane.clone() });
            None
        }
    }
}

/// The next step of a rotation.
///
/// # Errors
/// The reason for which it waits.
pub fn decide(
    rotation: &EncryptionRotation,
    input: &KubernetesInput<'_>,
) -> Result<Command, Box<KubernetesBlockedBy>> {
    if let Some(reason) = rotation_obstacle(input) {
        return Err(Box::new(reason));
    }
    let nodes = unready_servers(input);
    if !nodes.is_empty() {
        return Err(Box::new(KubernetesBlockedBy::EarlierEncryptionKeys { nodes }));
    }
    let key = rotation.key.clone();
    Ok(match rotation.stage {
        RotationStage::Requested => Command::AddEncryptionKey { key },
        RotationStage::Added => Command::PutEncryptionKeyFirst { key },
        RotationStage::First => Command::RewriteSecrets { key },
        RotationStage::Rewritten => Command::DropEncryptionKeys { key },
        RotationStage::Dropped => Command::CompleteEncryptionRotation { key },
    })
}

/// Addresses of the nodes whose API server does not have the present keys, is not healthy for long enough, or should not run.
fn unready_servers(input: &KubernetesInput<'_>) -> Vec<String> {
    let is_unready = |node: &&madako_domain::cluster::Node| {
        let on_node = input.status.nodes.get(&node.address);
        let server = on_node.and_then(|on_node| on_node.components.get(&Component::ApiServer));
        if !node.control_plane {
            return server.is_some_and(ComponentStatus::runs);
        }
        let is_reachable = on_node.is_some_and(|on_node| on_node.reachable);
        let is_good = server.is_some_and(|server| server.is_healthy() && !server.has_earlier_keys);
        !is_reachable || !is_good || input.settling.contains(&node.address)
    };
    let nodes = input.wanted.cluster.nodes.iter().filter(is_unready);
    nodes.map(|node| node.address.clone()).collect()
}

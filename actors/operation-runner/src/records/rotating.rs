//! Changes of the rotation of the encryption key at the end of an operation.

use madako_domain::encryption_rotation::{EncryptionRotation, RotationStage};
use madako_domain::state::ClusterState;

use super::AnnouncedStep;
use crate::command::Command;
use crate::kubernetes::command::KubernetesCommand;
use crate::kubernetes::operation::KubernetesOperationName::KubeApiserverRestart;
use crate::operation::OperationName;

/// The rotation after a command that succeeded, where the inner `None` ends it. The outer `None`: nothing changes.
///
/// An API server has the keys of the stage in which its operation began: a stage ends only with an operation of its own.
pub(super) fn rotation_after(
    state: &ClusterState,
    step: &AnnouncedStep,
    is_last: bool,
) -> Option<Option<EncryptionRotation>> {
    let present = state.encryption_rotation.as_deref()?;
    // The snapshot is in its place before the last command.
    if step.operation.name == OperationName::EtcdRestore {
        return present.after_restore().map(Some);
    }
    if !is_last {
        return None;
    }
    if step.operation.name == OperationName::Kubernetes(KubeApiserverRestart) {
        return present.with_started(&step.operation.targets).map(Some);
    }
    let Command::Kubernetes(command) = step.command() else { return None };
    let (stage, key) = stage_before(command)?;
    // An operator may have deleted the key, and asked for another rotation.
    (present.stage == stage && present.key == *key).then(|| present.advance())
}

/// The stage of the rotation before a command, and the name of the key.
fn stage_before(command: &KubernetesCommand) -> Option<(RotationStage, &String)> {
    match command {
        KubernetesCommand::AddEncryptionKey { key } => Some((RotationStage::Requested, key)),
        KubernetesCommand::PutEncryptionKeyFirst { key } => Some((RotationStage::Added, key)),
        KubernetesCommand::RewriteSecrets { key } => Some((RotationStage::First, key)),
        KubernetesCommand::DropEncryptionKeys { key } => Some((RotationStage::Rewritten, key)),
        KubernetesCommand::CompleteEncryptionRotation { key } => Some((RotationStage::Dropped, key)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::operation::{Operation, single_command_operation};

    fn after(
        rotation: Option<&EncryptionRotation>,
        operation: Operation,
    ) -> Option<Option<EncryptionRotation>> {
        let state = ClusterState {
            encryption_rotation: rotation.map(|rotation| Arc::new(rotation.clone())),
            ..ClusterState::default()
        };
        rotation_after(&state, &AnnouncedStep { record: 1, operation: Arc::new(operation), index: 0 }, true)
    }

    fn step(command: KubernetesCommand) -> Operation {
        let name = OperationName::KubernetesRotateEncryptionKey;
        single_command_operation(name, Vec::new(), Command::Kubernetes(command))
    }

    fn restart(name: OperationName) -> Operation {
        let command = Command::Kubernetes(KubernetesCommand::PrepareApiserverFiles);
        single_command_operation(name, vec!["a".to_owned()], command)
    }

    #[test]
    fn each_command_ends_the_stage_before_it_and_no_other() {
        let key = || "k".to_owned();
        let commands = [
            KubernetesCommand::AddEncryptionKey { key: key() },
            KubernetesCommand::PutEncryptionKeyFirst { key: key() },
            KubernetesCommand::RewriteSecrets { key: key() },
            KubernetesCommand::DropEncryptionKeys { key: key() },
            KubernetesCommand::CompleteEncryptionRotation { key: key() },
        ];
        let mut rotation = EncryptionRotation::new("k");
        for (place, command) in commands.iter().enumerate() {
            let others = commands.iter().enumerate().filter(|(other, _)| *other != place);
            for (_, other) in others {
                assert_eq!(after(Some(&rotation), step(other.clone())), None, "{other:?}");
            }
            assert_eq!(after(None, step(command.clone())), None, "an operator deleted the key");
            let another = EncryptionRotation { key: "another".to_owned(), ..rotation.clone() };
            assert_eq!(after(Some(&another), step(command.clone())), None, "another rotation");
            let next = after(Some(&rotation), step(command.clone())).unwrap();
            assert_eq!(next, rotation.advance());
            match next {
                Some(next) => rotation = next,
                None => assert_eq!(place, commands.len() - 1),
            }
        }
    }

    #[test]
    fn an_api_server_that_starts_has_the_keys_of_the_stage() {
        let restarted = |rotation: Option<&EncryptionRotation>| {
            after(rotation, restart(OperationName::Kubernetes(KubeApiserverRestart)))
        };
        let requested = EncryptionRotation::new("k");
        assert_eq!(
            (restarted(None), restarted(Some(&requested))),
            (None, None),
            "the keys are the present ones"
        );
        let added = requested.advance().unwrap();
        let started = added.with_started(&["a".to_owned()]);
        assert_eq!(restarted(Some(&added)), Some(started.clone()));
        assert_eq!(restarted(started.as_ref()), None, "it is known");
        assert_eq!(after(Some(&added), restart(OperationName::EtcdRestart)), None);
        let rewritten = added.advance().and_then(|first| first.advance()).unwrap();
        let restored = after(Some(&rewritten), restart(OperationName::EtcdRestore));
        assert_eq!(restored, Some(rewritten.after_restore()));
    }
}

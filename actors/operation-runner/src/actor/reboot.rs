//! The preparation of a control plane node for its reboot, which the reboot queue requests right before the command: its API
//! server completes its requests, and etcd needs no election.

use madako_protocol::feed::Task;
use tokio::sync::oneshot;

use super::collect::nodes_to_ask;
use super::execute::Executor;
use super::{Inputs, RunnerState};
use crate::input::KubernetesMode;
use crate::page::Mode;

impl RunnerState {
    /// Drops the reply while the newest configuration is not known.
    pub(super) fn prepare_reboot(&mut self, node: String, reply: oneshot::Sender<Result<(), String>>) {
        let Some(inputs) = self.decision_inputs() else { return };
        let executor = self.executor.clone();
        let modes = (self.given.mode, self.given.settings.kubernetes);
        self.preparing = Some(Task::start_anew(async move {
            // The reboot queue may have stopped waiting.
            let _ = reply.send(executor.prepare_reboot(&inputs, &node, modes).await);
        }));
    }
}

impl Executor {
    /// Moves the leadership of etcd away from a node, and ends its API server.
    ///
    /// # Errors
    /// I13: clients need the API server of the node. Nothing else prevents the reboot, since a node that does not obey may be
    /// the reason for it.
    async fn prepare_reboot(
        &self,
        inputs: &Inputs,
        node: &String,
        (mode, kubernetes): (Mode, KubernetesMode),
    ) -> Result<(), String> {
        let lost = std::slice::from_ref(node);
        if kubernetes != KubernetesMode::Off
            && let Some(violation) = self.api_gap(&inputs.cluster, lost).await
        {
            return Err(violation.to_string());
        }
        if mode != Mode::Act {
            return Ok(());
        }
        let permit = self.permits.get().await;
        let members = nodes_to_ask(&inputs.cluster, &inputs.state);
        if let Err(error) = self.etcd.move_leader(&permit, &members, node).await {
            tracing::warn!(node, %error, "a node reboots whose member of etcd may lead");
        }
        if kubernetes == KubernetesMode::Act
            && let Err(failure) = self.end_api_servers(lost).await
        {
            tracing::warn!(node, why = failure.why, "a node reboots whose API server may still run");
        }
        Ok(())
    }
}

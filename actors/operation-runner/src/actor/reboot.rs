//! The preparation of a control plane node for its reboot, which the reboot queue requests right before the command: clients leave
//! its API server, which completes its requests, and etcd needs no election.

use std::collections::BTreeSet;

use madako_domain::invariants::api_available;
use madako_domain::limits::PROXIES_FOLLOW;
use madako_protocol::feed::Task;
use tokio::sync::oneshot;

use super::collect::nodes_to_ask;
use super::execute::Executor;
use super::{Inputs, RunnerState};
use crate::input::KubernetesMode;
use crate::kubernetes::objects::endpoints::{EndpointsPlan, states_of_control_plane};
use crate::kubernetes::objects::operation::update_commands;
use crate::limits::END_BEFORE_REBOOT;

impl RunnerState {
    /// Drops the reply while the newest configuration is not known. Only a runner that acts is asked.
    pub(super) fn prepare_reboot(&mut self, node: String, mut reply: oneshot::Sender<Result<(), String>>) {
        let Some(inputs) = self.decision_inputs() else { return };
        let executor = self.executor.clone();
        let reboot = PreparedReboot {
            node,
            kubernetes: self.given.settings.kubernetes,
            passed: self.serving_since.keys().cloned().collect(),
        };
        self.preparing = Some(Task::start_anew(async move {
            tokio::select! {
                prepared = executor.prepare_reboot(&inputs, &reboot) => {
                    // The reboot queue may have stopped waiting just now.
                    let _ = reply.send(prepared);
                }
                // The reboot was cancelled.
                () = reply.closed() => {}
            }
        }));
    }
}

struct PreparedReboot {
    /// Address of the node.
    node: String,
    kubernetes: KubernetesMode,
    /// Addresses of the API servers that have passed the gate since their start.
    passed: BTreeSet<String>,
}

impl Executor {
    /// Withdraws the endpoints of a node's API server, moves the leadership of etcd away from the node, and ends its API server.
    ///
    /// # Errors
    /// I13: clients need the API server of the node; or its endpoints could not be withdrawn. Nothing else prevents the reboot,
    /// since a node that does not obey may be the reason for it.
    async fn prepare_reboot(&self, inputs: &Inputs, reboot: &PreparedReboot) -> Result<(), String> {
        let PreparedReboot { node, kubernetes, .. } = reboot;
        if *kubernetes != KubernetesMode::Off {
            let servers = self.present_servers(&inputs.cluster, std::slice::from_ref(node)).await;
            if let Some(violation) = api_available(&servers, &BTreeSet::from([node.as_str()])) {
                return Err(violation.to_string());
            }
            if *kubernetes == KubernetesMode::Act && servers[node] && servers.len() > 1 {
                self.withdraw_endpoints(inputs, reboot).await?;
            }
        }
        let permit = self.permits.get().await;
        let members = nodes_to_ask(&inputs.cluster, &inputs.state);
        if let Err(error) = self.etcd.move_leader(&permit, &members, node).await {
            tracing::warn!(node, %error, "a node reboots whose member of etcd may lead");
        }
        if *kubernetes == KubernetesMode::Act {
            let ended = self.end_api_servers(std::slice::from_ref(node));
            let why = match tokio::time::timeout(END_BEFORE_REBOOT, ended).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(failure)) => failure.why,
                Err(_) => format!("it did not end within {END_BEFORE_REBOOT:?}"),
            };
            tracing::warn!(node, why, "a node reboots whose API server may still run");
        }
        Ok(())
    }

    /// Lets clients use other API servers alone, and waits for the proxies. All others are healthy, by I13.
    async fn withdraw_endpoints(&self, inputs: &Inputs, reboot: &PreparedReboot) -> Result<(), String> {
        let leaving: BTreeSet<&str> = inputs.state.repair.leaving_machines().collect();
        let servers = states_of_control_plane(&inputs.cluster, |address| {
            reboot.passed.contains(address) && address != reboot.node && !leaving.contains(address)
        });
        let plan = EndpointsPlan::for_api_servers(&servers);
        let ready = plan.ready_addresses();
        if ready.is_empty() {
            return Err("no other API server is known to serve since its start".to_owned());
        }
        for command in update_commands(&plan) {
            let Some(manifest) = command.manifest() else { continue };
            let ready = &ready;
            let apply = |permit| async move { self.components.apply_object(&permit, ready, manifest).await };
            let applied = self.permits.try_effect(apply).await;
            applied.map_err(|error| format!("clients may still use the API server of the node: {error}"))?;
        }
        tokio::time::sleep(PROXIES_FOLLOW).await;
        Ok(())
    }
}

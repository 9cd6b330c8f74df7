//! The reboot command of an entry, and its preparation.

use std::sync::Arc;
use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::kubernetes::drain::DrainPurpose;
use madako_domain::reboot::RebootStatus;
use madako_domain::repair::command::{CommandEnd, CommandOutcome};
use madako_domain::state::ClusterState;
use madako_effects::{AttemptEnd, Attempts, Effect, Permits, attempt_command, find_undrained};
use madako_protocol::actors::RunnerMessage;
use madako_protocol::host::{Host, HostCommand};
use madako_protocol::kubernetes::{Kubernetes, KubernetesError};
use madako_protocol::latest::Subscriber;
use madako_protocol::mailbox::Envelope;
use madako_protocol::permit::Permit;
use ractor::{ActorRef, registry};
use tokio::sync::oneshot;

use crate::limits::{CHECK_DRAIN_WITHIN, DELETE_WITHIN, HEARD_WITHIN, PREPARE_PAUSE, PREPARE_WITHIN};
use crate::transition::{PREPARE, REBOOT};

/// The parts of a reboot, each with a record of its own. The entry drains during the preparation: each leader ends the records of
/// the earlier one at its start, and then goes on with the drain.
#[derive(Debug, Clone)]
pub(super) enum Stage {
    /// The operation runner with this registered name prepares a node of the control plane.
    Prepare {
        runner: String,
    },
    Command,
}

impl Stage {
    /// Operation of its record.
    pub(super) fn operation(&self) -> &'static str {
        match self {
            Self::Prepare { .. } => PREPARE,
            Self::Command => REBOOT,
        }
    }
}

/// An announced command, or its preparation.
#[derive(Debug, Clone)]
pub(super) struct RebootCommand {
    pub(super) stage: Stage,
    pub(super) index: i64,
    /// Id of the record that announces it.
    pub(super) record: i64,
    /// Address of the node.
    pub(super) node: String,
    /// Name of the Node object.
    pub(super) name: String,
    pub(super) words: Vec<String>,
    pub(super) deadline: Duration,
    pub(super) attempts: u32,
    pub(super) interval: Duration,
    /// A preparation ended the API server of the node.
    pub(super) is_prepared: bool,
}

impl Effect for RebootCommand {
    type Outcome = CommandEnd;

    fn attempts(&self) -> u32 {
        match self.stage {
            Stage::Prepare { .. } => 1,
            Stage::Command => self.attempts,
        }
    }

    fn attempt_limit(&self) -> Duration {
        match self.stage {
            Stage::Prepare { .. } => PREPARE_WITHIN + HEARD_WITHIN,
            Stage::Command => CHECK_DRAIN_WITHIN + DELETE_WITHIN + self.deadline + HEARD_WITHIN,
        }
    }

    fn pause_limit(&self) -> Duration {
        self.interval + HEARD_WITHIN
    }
}

impl RebootCommand {
    /// The command after its preparation, with the id of its record.
    pub(super) fn prepared(&self, record: i64) -> Self {
        Self { stage: Stage::Command, record, is_prepared: true, ..self.clone() }
    }

    /// The reason not to begin the command: a client cancelled the entry, or disabled the queue.
    pub(super) fn find_obstacle(&self, state: &ClusterState) -> Option<String> {
        if state.repair.reboots_disabled {
            return Some("the reboot queue was disabled".to_owned());
        }
        let entry = state.repair.reboots.get(&self.index);
        // A state before the announcement of the command does not have its record.
        let may_drain = matches!(self.stage, Stage::Prepare { .. })
            || !state.repair.records.known.contains_key(&self.record);
        match entry.map(|item| &item.value.status) {
            Some(RebootStatus::Rebooting) => None,
            Some(RebootStatus::Draining) if may_drain => None,
            Some(_) => Some("the entry was cancelled".to_owned()),
            None => Some("the entry was removed".to_owned()),
        }
    }

    /// Prepares the node, or runs the command. A cancelled entry and a disabled queue end a preparation.
    pub(super) async fn run_attempt(
        &self,
        host: &dyn Host,
        kubernetes: Option<&dyn Kubernetes>,
        newest: Subscriber<Arc<ClusterState>>,
        permits: Permits,
        permit: Permit,
        attempt: u32,
    ) -> AttemptEnd<CommandEnd> {
        let Stage::Prepare { runner } = &self.stage else {
            return self.run_command(host, kubernetes, newest, permits, permit, attempt).await;
        };
        let (how, text) = tokio::select! {
            prepared = self.prepare(runner) => match prepared {
                Ok(()) => (CommandOutcome::Succeeded, String::new()),
                Err(why) => (CommandOutcome::Refused, format!("not started, {why}")),
            },
            why = self.obstacle_appears(newest) => (CommandOutcome::NotBegun, format!("not started, {why}")),
        };
        AttemptEnd::Final(CommandEnd { how, text })
    }

    async fn obstacle_appears(&self, mut newest: Subscriber<Arc<ClusterState>>) -> String {
        loop {
            let state = newest.next().await;
            if let Some(why) = self.find_obstacle(&state) {
                return why;
            }
        }
    }

    /// Checks I16 once more before the first attempt, deletes the pods of `OnDelete` DaemonSets (CKE), and runs the command
    /// unless a client cancelled it meanwhile. A later attempt may meet a node that an earlier one shut down.
    async fn run_command(
        &self,
        host: &dyn Host,
        kubernetes: Option<&dyn Kubernetes>,
        newest: Subscriber<Arc<ClusterState>>,
        permits: Permits,
        permit: Permit,
        attempt: u32,
    ) -> AttemptEnd<CommandEnd> {
        let command = HostCommand { words: self.words.clone(), deadline: self.deadline };
        // The boot check decides on a command with an unknown outcome: the node may boot already.
        let counts = Attempts { number: attempt, most: self.attempts, repeats_killed: false };
        let Some(kubernetes) = kubernetes.filter(|_| attempt == 1) else {
            return attempt_command(host, &permit, command, "reboot", counts).await;
        };
        let not_begun = |how: CommandOutcome, why: String| {
            AttemptEnd::Final(CommandEnd { how, text: format!("not started, {why}") })
        };
        let undrained = self.find_undrained(kubernetes).await;
        if let Some(why) = undrained.filter(|_| !is_planted(Canary::RebootNotDrained)) {
            // Without a pause, the API server would end once more each time.
            let how = if self.is_prepared { CommandOutcome::Refused } else { CommandOutcome::NotBegun };
            return not_begun(how, why);
        }
        let deleted = self.delete_pods(kubernetes, &permits);
        // A failed deletion does not prevent the reboot, as in CKE: the old pod runs on.
        let failed = match tokio::time::timeout(DELETE_WITHIN, deleted).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("the API server did not answer within {DELETE_WITHIN:?}")),
        };
        if let Some(why) = failed {
            let node = &self.node;
            tracing::warn!(node, why, "pods of OnDelete DaemonSets were not deleted before a reboot");
        }
        // The deletions may outlive the first permit.
        let permit = permits.get().await;
        if let Some(why) = newest.newest().and_then(|state| self.find_obstacle(&state)) {
            return not_begun(CommandOutcome::NotBegun, why);
        }
        attempt_command(host, &permit, command, "reboot", counts).await
    }

    /// The reason for which the node is not known to be drained now (I16).
    async fn find_undrained(&self, kubernetes: &dyn Kubernetes) -> Option<String> {
        let checked = find_undrained(kubernetes, &self.name, DrainPurpose::Reboot);
        match tokio::time::timeout(CHECK_DRAIN_WITHIN, checked).await {
            Ok(Ok(left)) => Some(format!("the node is not drained any more: {}", left?)),
            Ok(Err(error)) => Some(format!("the drain could not be checked: {error}")),
            Err(_) => Some(format!(
                "the drain could not be checked: no answer of the API server within {CHECK_DRAIN_WITHIN:?}"
            )),
        }
    }

    /// Lets the operation runner check I13 and prepare the node.
    async fn prepare(&self, runner: &str) -> Result<(), String> {
        let prepared = async {
            loop {
                if let Some(cell) = registry::where_is(runner) {
                    let (reply, answer) = oneshot::channel();
                    let message = RunnerMessage::PrepareReboot { node: self.node.clone(), reply };
                    // A runner that has failed starts again.
                    let sent = ActorRef::<Envelope<RunnerMessage>>::from(cell).cast(message.into());
                    if let (Ok(()), Ok(prepared)) = (sent, answer.await) {
                        return prepared;
                    }
                }
                tokio::time::sleep(PREPARE_PAUSE).await;
            }
        };
        tokio::time::timeout(PREPARE_WITHIN, prepared)
            .await
            .unwrap_or_else(|_| Err(format!("the node could not be prepared within {PREPARE_WITHIN:?}")))
    }

    async fn delete_pods(
        &self,
        kubernetes: &dyn Kubernetes,
        permits: &Permits,
    ) -> Result<(), KubernetesError> {
        for pod in kubernetes.on_delete_pods(&self.name).await? {
            let delete = |permit| {
                let pod = &pod;
                async move { kubernetes.delete(&permit, pod).await }
            };
            permits.run_effect(delete, |_| {}).await?;
        }
        Ok(())
    }
}

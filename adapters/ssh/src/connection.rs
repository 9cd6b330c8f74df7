//! An SSH connection to a node: the port `NodeConnection` on it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::host_key::HostKey;
use madako_domain::node_status::NodeStatus;
use madako_protocol::node::{NodeAction, NodeConnection, NodeError, SnapshotContent};
use madako_protocol::permit::{Permit, PermitEnded};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::driver::SshOptions;
use crate::limits::SHORTEST_ACTION;
use crate::remote::{self, Answer, Nonces, RemoteCommand, RemoteError, Session};
use crate::script::{self, BAD_SNAPSHOT, Script};
use crate::status::{self, NO_ENGINE};

/// Name of a status in errors.
const STATUS: &str = "query of the status";
/// Name of the query of a snapshot in errors.
const SNAPSHOT: &str = "query of a snapshot";

pub(crate) struct SshConnection {
    pub(crate) address: String,
    pub(crate) host_key: HostKey,
    pub(crate) session: Arc<Session>,
    pub(crate) closed: watch::Receiver<()>,
    pub(crate) options: SshOptions,
    pub(crate) nonces: Arc<Nonces>,
}

struct ActionTimes {
    begin_by: Instant,
    end_by: Instant,
    limit: Duration,
}

impl SshConnection {
    async fn run(&self, what: &str, script: &Script, times: &ActionTimes) -> Result<Answer, NodeError> {
        let command = RemoteCommand {
            script,
            nonce: self.nonces.next(),
            begin_by: times.begin_by,
            end_by: times.end_by,
        };
        let address = self.address.clone();
        let answer =
            Box::pin(remote::run_command(&self.session, command)).await.map_err(|error| match error {
                RemoteError::Broken(why) => NodeError::Unreachable { address, why },
                RemoteError::Malformed(why) => NodeError::Malformed { address, what: what.to_owned(), why },
                RemoteError::Late => {
                    NodeError::Deadline { address, what: what.to_owned(), limit: times.limit }
                }
            })?;
        match answer.code {
            0 => Ok(answer),
            NO_ENGINE => Err(NodeError::Engine { address: self.address.clone(), why: answer.stderr }),
            code => Err(NodeError::Failed {
                address: self.address.clone(),
                what: what.to_owned(),
                code,
                why: answer.stderr,
            }),
        }
    }

    fn malformed_error(&self, what: &str, why: String) -> NodeError {
        NodeError::Malformed { address: self.address.clone(), what: what.to_owned(), why }
    }

    fn limit_times(&self, permit: &Permit, action: &NodeAction) -> Result<ActionTimes, PermitEnded> {
        let now = Instant::now();
        permit.check(now)?;
        let begin_by = permit.expires_at();
        if action.outlives_permit() {
            return Ok(ActionTimes { begin_by, end_by: now + self.options.pull, limit: self.options.pull });
        }
        let limit = (begin_by - now).min(self.options.action);
        if limit < SHORTEST_ACTION {
            return Err(PermitEnded { epoch: permit.epoch() });
        }
        Ok(ActionTimes { begin_by, end_by: now + limit, limit })
    }
}

/// Names a snapshot that cannot be restored.
fn snapshot_error(error: NodeError, path: &str) -> NodeError {
    match error {
        NodeError::Failed { address, code: BAD_SNAPSHOT, why, .. } => {
            NodeError::Snapshot { address, path: path.to_owned(), why }
        }
        other => other,
    }
}

#[async_trait]
impl NodeConnection for SshConnection {
    fn host_key(&self) -> &HostKey {
        &self.host_key
    }

    async fn status(&self, volume: &str) -> Result<NodeStatus, NodeError> {
        let limit = self.options.status;
        let end_by = Instant::now() + limit;
        let times = ActionTimes { begin_by: end_by, end_by, limit };
        let answer = self.run(STATUS, &status::render(volume).into(), &times).await?;
        let text = std::str::from_utf8(&answer.stdout)
            .map_err(|error| self.malformed_error(STATUS, format!("it is not UTF-8: {error}")))?;
        status::parse_status(text, volume).map_err(|why| self.malformed_error(STATUS, why))
    }

    async fn snapshot(&self, image: &str, path: &str) -> Result<SnapshotContent, NodeError> {
        let limit = self.options.trial;
        let end_by = Instant::now() + limit;
        let times = ActionTimes { begin_by: end_by, end_by, limit };
        let script = script::snapshot::describe_snapshot(image, path).into();
        let answer =
            self.run(SNAPSHOT, &script, &times).await.map_err(|error| snapshot_error(error, path))?;
        let text = String::from_utf8_lossy(&answer.stdout);
        script::snapshot::read_description(&text).map_err(|why| self.malformed_error(SNAPSHOT, why))
    }

    async fn act(&self, permit: &Permit, action: &NodeAction) -> Result<String, NodeError> {
        let times = self.limit_times(permit, action)?;
        let what = action.to_string();
        let script = script::render(action, times.limit.as_secs())
            .map_err(|error| self.malformed_error(&what, error.to_string()))?;
        let answer = self.run(&what, &script, &times).await.map_err(|error| match action {
            NodeAction::StageSnapshot(restore) => snapshot_error(error, &restore.path),
            _ => error,
        })?;
        let output = String::from_utf8_lossy(&answer.stdout);
        Ok(output.lines().next().unwrap_or_default().trim().to_owned())
    }

    async fn closed(&self) {
        let mut closed = self.closed.clone();
        // The sender never sends: an error means that it is gone.
        while closed.changed().await.is_ok() {}
    }
}

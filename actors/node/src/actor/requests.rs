//! Requests to a node (reads, actions, host keys), and their execution on a connection.

use std::sync::Arc;
use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::node_status::NodeStatus;
use madako_protocol::node::{NodeAction, NodeConnection, NodeError};
use madako_protocol::permit::Permit;
use tokio::sync::oneshot;

type Reply<T> = oneshot::Sender<Result<T, NodeError>>;

/// A request with the receiver of its answer.
pub(super) enum Request {
    Observe { volume: String, reply: Reply<NodeStatus> },
    Act { permit: Permit, action: Box<NodeAction>, reply: Reply<String> },
}

impl Request {
    /// Executes the request, and returns true if the node answered it. A caller that drops its receiver cancels it.
    pub(super) async fn execute(self, connection: Arc<dyn NodeConnection>) -> bool {
        match self {
            Self::Observe { volume, reply } => reply_with(connection.status(&volume), reply).await,
            Self::Act { mut permit, action, reply } => {
                if is_planted(Canary::PermitOutlived) {
                    permit = Permit::give(permit.epoch(), permit.expires_at() + Duration::from_secs(3600));
                }
                reply_with(connection.act(&permit, &action), reply).await
            }
        }
    }

    /// Answers without a connection.
    pub(super) fn refuse(self, error: NodeError) {
        // A caller that is gone needs no answer.
        match self {
            Self::Observe { reply, .. } => drop(reply.send(Err(error))),
            Self::Act { reply, .. } => drop(reply.send(Err(error))),
        }
    }
}

async fn reply_with<T>(request: impl Future<Output = Result<T, NodeError>>, mut reply: Reply<T>) -> bool {
    let result = tokio::select! {
        biased;
        () = reply.closed() => return false,
        result = request => result,
    };
    let is_answer = matches!(result, Ok(_) | Err(NodeError::Engine { .. } | NodeError::Failed { .. }));
    // A caller that is gone needs no answer.
    let _ = reply.send(result);
    is_answer
}

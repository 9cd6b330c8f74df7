//! Notes of actions on nodes, beside the embedded store: an action of a killed process may go on, on its node, until its permit
//! ends. The next process finds its note, and waits for the expiry of the lease (`docs/decisions/own-lease.md`).

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use madako_domain::host_key::HostKey;
use madako_domain::node_status::NodeStatus;
use madako_host::EffectNote;
use madako_protocol::node::{NodeAction, NodeConnection, NodeDriver, NodeError, NodeTarget, SnapshotContent};
use madako_protocol::permit::{Moment, Permit};
use tokio::runtime::Handle;
use tokio::time::sleep_until;

/// Nodes whose actions are noted while they are under way.
pub(crate) struct NotedNodes {
    pub(crate) driver: Arc<dyn NodeDriver>,
    /// Directory of the notes.
    pub(crate) notes: PathBuf,
}

struct NotedConnection {
    connection: Arc<dyn NodeConnection>,
    address: String,
    notes: PathBuf,
}

/// Keeps the note of an action without an answer until the permit has ended.
struct NoteOfAction {
    note: Option<EffectNote>,
    until: Moment,
}

impl Drop for NoteOfAction {
    fn drop(&mut self) {
        let (note, until) = (self.note.take(), self.until);
        if let (Some(note), Ok(runtime)) = (note, Handle::try_current()) {
            runtime.spawn(async move {
                sleep_until(until).await;
                drop(note);
            });
        }
    }
}

#[async_trait]
impl NodeDriver for NotedNodes {
    async fn connect(&self, target: &NodeTarget) -> Result<Arc<dyn NodeConnection>, NodeError> {
        let connection = self.driver.connect(target).await?;
        let (address, notes) = (target.address.clone(), self.notes.clone());
        Ok(Arc::new(NotedConnection { connection, address, notes }))
    }
}

#[async_trait]
impl NodeConnection for NotedConnection {
    fn host_key(&self) -> &HostKey {
        self.connection.host_key()
    }

    async fn status(&self, volume: &str) -> Result<NodeStatus, NodeError> {
        self.connection.status(volume).await
    }

    async fn snapshot(&self, image: &str, path: &str) -> Result<SnapshotContent, NodeError> {
        self.connection.snapshot(image, path).await
    }

    async fn act(&self, permit: &Permit, action: &NodeAction) -> Result<String, NodeError> {
        // An action that outlives its permit harms no later leader.
        if action.outlives_permit() {
            return self.connection.act(permit, action).await;
        }
        let note = EffectNote::create(&self.notes).map_err(|error| NodeError::Failed {
            address: self.address.clone(),
            what: action.to_string(),
            code: error.raw_os_error().and_then(|code| u32::try_from(code).ok()).unwrap_or_default(),
            why: format!("it did not begin, without a note in {}: {error}", self.notes.display()),
        })?;
        let mut note = NoteOfAction { note: Some(note), until: permit.expires_at() };
        let result = self.connection.act(permit, action).await;
        // Without an answer, the action may go on.
        if matches!(result, Ok(_) | Err(NodeError::Permit(_) | NodeError::Failed { .. })) {
            note.note = None;
        }
        result
    }

    async fn closed(&self) {
        self.connection.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use madako_domain::containers::Container;
    use madako_host::{CommandsLeft, LeftCommands};
    use tokio::time::Instant;

    use super::*;

    /// A connection whose actions never end.
    struct Endless(HostKey);

    #[async_trait]
    impl NodeConnection for Endless {
        fn host_key(&self) -> &HostKey {
            &self.0
        }

        async fn status(&self, _: &str) -> Result<NodeStatus, NodeError> {
            Ok(NodeStatus::default())
        }

        async fn snapshot(&self, _: &str, _: &str) -> Result<SnapshotContent, NodeError> {
            std::future::pending().await
        }

        async fn act(&self, _: &Permit, _: &NodeAction) -> Result<String, NodeError> {
            std::future::pending().await
        }

        async fn closed(&self) {}
    }

    #[tokio::test(start_paused = true)]
    async fn an_action_under_way_has_a_note_and_none_begins_without() {
        let directory = tempfile::tempdir().unwrap();
        let key = HostKey { key: "ssh-ed25519 AAAA".to_owned(), fingerprint: "SHA256:x".to_owned() };
        let notes = directory.path().join("commands");
        let connection = NotedConnection {
            connection: Arc::new(Endless(key)),
            address: "10.0.0.1".to_owned(),
            notes: notes.clone(),
        };
        let permit = Permit::give(1, Instant::now() + Duration::from_secs(60));
        let kill = NodeAction::KillContainer(Container::Etcd.into());
        let refused = connection.act(&permit, &kill).await.unwrap_err().to_string();
        assert!(refused.contains("it did not begin, without a note in"), "{refused}");
        let left = || LeftCommands::list_notes(&notes).unwrap().check().unwrap();
        assert_eq!(left(), CommandsLeft::Ended);
        for (action, expected) in [
            (kill, CommandsLeft::Unknown(1)),
            (NodeAction::PullImage { image: "a:1".to_owned() }, CommandsLeft::Ended),
        ] {
            let mut running = Box::pin(connection.act(&permit, &action));
            tokio::time::timeout(Duration::from_secs(1), &mut running).await.unwrap_err();
            assert_eq!(left(), expected, "{action}");
            drop(running);
            assert_eq!(left(), expected, "it may go on: {action}");
            tokio::time::sleep_until(permit.expires_at() + Duration::from_secs(1)).await;
            assert_eq!(left(), CommandsLeft::Ended, "{action}");
        }
    }
}

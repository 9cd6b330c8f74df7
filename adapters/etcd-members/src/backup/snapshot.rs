//! Writes a snapshot of a member to a file: the parts pass a bounded queue to a thread that writes them.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use etcd_client::Client;
use madako_protocol::backup::BackupError;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::directory::run_blocking;
use super::{BackupStep, TAKE, file_error};
use crate::failure::Failure;
use crate::limits::{MOST_SNAPSHOT_BYTES, PARTS_IN_MEMORY, SNAPSHOT_SILENCE};

/// Writes a snapshot, and syncs the file.
pub(crate) async fn write_snapshot(
    member: &Client,
    path: &Path,
    progress: &(dyn Fn(BackupStep) + Send + Sync),
) -> Result<(), BackupError> {
    let (parts, mut waiting) = mpsc::channel::<Vec<u8>>(PARTS_IN_MEMORY);
    let file = path.to_owned();
    let writing = run_blocking(move || {
        let failed = |error| file_error("write", &file, error);
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file);
        let mut opened = opened.map_err(failed)?;
        while let Some(part) = waiting.blocking_recv() {
            opened.write_all(&part).map_err(failed)?;
        }
        opened.sync_all().map_err(failed)
    });
    let reading = async {
        let received = receive_parts(member, parts, progress).await;
        received.map_err(|failure| BackupError::from(failure.into_error(TAKE)))
    };
    let (written, received) = tokio::join!(writing, reading);
    // A full disk ends the reception, too.
    written.and(received)
}

/// Passes the parts of a snapshot on, until it is whole or its writer has ended.
async fn receive_parts(
    member: &Client,
    parts: mpsc::Sender<Vec<u8>>,
    progress: &(dyn Fn(BackupStep) + Send + Sync),
) -> Result<(), Failure> {
    let late =
        |_| Failure::Unavailable(format!("etcd sent no part of the snapshot within {SNAPSHOT_SILENCE:?}"));
    let mut maintenance = member.maintenance_client();
    let mut stream = timeout(SNAPSHOT_SILENCE, maintenance.snapshot()).await.map_err(late)??;
    let mut written = 0_u64;
    loop {
        let part = timeout(SNAPSHOT_SILENCE, stream.message()).await.map_err(late)??;
        let Some(part) = part else { return Ok(()) };
        written += part.blob().len() as u64;
        if written > MOST_SNAPSHOT_BYTES {
            let most = format!("the snapshot has more than {MOST_SNAPSHOT_BYTES} bytes");
            return Err(Failure::Unavailable(most));
        }
        let remaining = part.remaining_bytes();
        if parts.send(part.blob().to_vec()).await.is_err() {
            return Ok(());
        }
        progress(BackupStep::Written { bytes: written, of: written + remaining });
    }
}

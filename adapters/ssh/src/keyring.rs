//! The private key of each node: read from a source, kept for a short time, and read again after a refused login.
//!
//! A thousand nodes that connect at the same time cost one read. A failed read is kept for some seconds, so that waiting
//! connections do not ask an unreachable source one after another.

use std::sync::Arc;

use madako_protocol::login_keys::{LoginKeySource, LoginKeys};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::key::{SshKey, read_key};
use crate::limits::{KEYS_FRESH, KEYS_KEPT, KEYS_PAUSE};

pub(crate) enum Keyring {
    Fixed(SshKey),
    Read(ReadKeys),
}

pub(crate) struct ReadKeys {
    source: Arc<dyn LoginKeySource>,
    /// The key for nodes of which the source has none.
    fallback: Option<SshKey>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The last answer of the source, and its time.
    answer: Option<(Vec<LoginKeys>, Instant)>,
    /// The error of the last read, if it failed.
    error: Option<String>,
    /// The time of the last read.
    read: Option<Instant>,
    /// A node refused a key.
    is_doubtful: bool,
}

impl State {
    fn must_read(&self, now: Instant) -> bool {
        let Some(read) = self.read else { return true };
        let age = now - read;
        let lasts = if self.error.is_some() || self.is_doubtful { KEYS_PAUSE } else { KEYS_FRESH };
        age >= lasts
    }
}

impl ReadKeys {
    pub(crate) fn new(source: Arc<dyn LoginKeySource>, fallback: Option<SshKey>) -> Self {
        Self { source, fallback, state: Mutex::default() }
    }

    async fn key(&self, address: &str) -> Result<SshKey, String> {
        // Other nodes wait for the read of the first one.
        let mut state = self.state.lock().await;
        let now = Instant::now();
        if state.must_read(now) {
            match self.source.read().await {
                Ok(keys) => {
                    state.answer = Some((keys, now));
                    state.error = None;
                }
                Err(error) => state.error = Some(error.to_string()),
            }
            state.read = Some(Instant::now());
            state.is_doubtful = false;
        }
        if state.answer.as_ref().is_some_and(|(_, since)| since.elapsed() >= KEYS_KEPT) {
            state.answer = None;
        }
        let Some((sources, _)) = &state.answer else {
            return Err(state.error.clone().unwrap_or_else(|| "the keys were not read".to_owned()));
        };
        match sources.iter().find_map(|source| source.key_for(address)) {
            Some(Ok(text)) => {
                read_key(text.reveal()).map_err(|error| format!("the stored key is not usable: {error}"))
            }
            Some(Err(error)) => Err(error.to_string()),
            None => self.fallback.clone().ok_or_else(|| {
                "neither Vault, nor madako ssh key set, nor ssh.key_file in the configuration gives one"
                    .to_owned()
            }),
        }
    }
}

impl Keyring {
    /// The key of a node.
    ///
    /// # Errors
    /// There is none, in words.
    pub(crate) async fn key(&self, address: &str) -> Result<SshKey, String> {
        match self {
            Self::Fixed(key) => Ok(key.clone()),
            Self::Read(keys) => keys.key(address).await,
        }
    }

    /// Notes that a node refused its key: it may have been replaced.
    pub(crate) async fn note_refusal(&self) {
        if let Self::Read(keys) = self {
            keys.state.lock().await.is_doubtful = true;
        }
    }
}

#[cfg(test)]
mod tests;

//! Opens SSH connections to nodes, and checks their host keys.

use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::host_key::HostKey;
use madako_protocol::login_keys::LoginKeySource;
use madako_protocol::node::{NodeConnection, NodeDriver, NodeError, NodeTarget};
use russh::client::{self, AuthResult, Handle};
use russh::keys::{Algorithm, HashAlg, PrivateKeyWithHashAlg};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time;

use crate::connection::SshConnection;
use crate::host_key::{Verifier, preferred_algorithms};
use crate::key::SshKey;
use crate::keyring::{Keyring, ReadKeys};
use crate::limits::{
    ACTION_DEADLINE, BEGIN, CHANNEL_MESSAGES, INACTIVITY, KEEP_ALIVE, KEEP_ALIVE_MISSES, MAX_HANDSHAKES,
    PULL_DEADLINE, STATUS_DEADLINE, STEP, TRIAL_DEADLINE, WINDOW,
};
use crate::remote::{Nonces, Session};
use crate::stream::OwnedStream;

/// Port and time-outs of connections; the defaults are those of [`crate::limits`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshOptions {
    /// TCP port of all nodes.
    pub port: u16,
    /// Time for each step of a connection, and for a session.
    pub step: Duration,
    /// Time for a session and the start of its command.
    pub begin: Duration,
    /// Silence after which the client asks the node for a sign of life.
    pub keep_alive: Duration,
    pub status: Duration,
    /// Time for an action with a longer permit.
    pub action: Duration,
    /// Time for a pull, and for the restore of a snapshot beside the data of etcd.
    pub pull: Duration,
    /// Time limit of the inspection of a snapshot.
    pub trial: Duration,
}

impl Default for SshOptions {
    fn default() -> Self {
        Self {
            port: 22,
            step: STEP,
            begin: BEGIN,
            keep_alive: KEEP_ALIVE,
            status: STATUS_DEADLINE,
            action: ACTION_DEADLINE,
            pull: PULL_DEADLINE,
            trial: TRIAL_DEADLINE,
        }
    }
}

/// Connects to nodes with one private key, or with those of a source.
pub struct SshDriver {
    keys: Keyring,
    options: SshOptions,
    handshakes: Semaphore,
    nonces: Arc<Nonces>,
}

impl SshDriver {
    /// `seed` must differ between processes: the name of a remote command is made of it.
    #[must_use]
    pub fn new(key: SshKey, options: SshOptions, seed: u64) -> Self {
        Self::with_keyring(Keyring::Fixed(key), options, seed)
    }

    /// As [`SshDriver::new`], with keys of `source`. `fallback` is for nodes of which it has none.
    #[must_use]
    pub fn with_source(
        source: Arc<dyn LoginKeySource>,
        fallback: Option<SshKey>,
        options: SshOptions,
        seed: u64,
    ) -> Self {
        Self::with_keyring(Keyring::Read(ReadKeys::new(source, fallback)), options, seed)
    }

    fn with_keyring(keys: Keyring, options: SshOptions, seed: u64) -> Self {
        let nonces = Arc::new(Nonces { seed, next: AtomicU64::new(0) });
        Self { keys, options, handshakes: Semaphore::new(MAX_HANDSHAKES), nonces }
    }

    async fn shake_hands(&self, target: &NodeTarget) -> Result<SshConnection, NodeError> {
        let unreachable = |why: String| NodeError::Unreachable { address: target.address.clone(), why };
        let no_key = |why: String| NodeError::Key { address: target.address.clone(), why };
        let key = self.keys.key(&target.address).await.map_err(no_key)?;
        let ip: IpAddr = target.address.parse().map_err(|_| unreachable("not an IP address".to_owned()))?;
        let stream = self.step("TCP connection", target, TcpStream::connect((ip, self.options.port))).await?;
        let stream = stream.map_err(|error| unreachable(format!("no TCP connection: {error}")))?;
        stream.set_nodelay(true).map_err(|error| unreachable(error.to_string()))?;
        // A dead node ends above: it takes no place from a living one.
        let _turn = self.handshakes.acquire().await.expect("the semaphore is never closed");

        let (stream, owner) = OwnedStream::new(stream);
        let (open, closed) = watch::channel(());
        let (verifier, offered) = Verifier::new(target.pinned.clone(), open);
        let config = Arc::new(self.client_config(target.pinned.as_ref()));
        let handle = self.step("handshake", target, client::connect_stream(config, stream, verifier)).await?;
        let mut handle = handle.map_err(|error| host_key_error(target, &offered, &error))?;
        let host_key = offered.get().cloned().ok_or_else(|| unreachable("no host key".to_owned()))?;

        let login = self.step("login", target, log_in(&mut handle, &key, target)).await?;
        if let Err(NodeError::Login { .. }) = &login {
            self.keys.note_refusal().await;
        }
        login?;
        let session = Session::new(handle, owner, &self.options);
        Ok(SshConnection {
            address: target.address.clone(),
            host_key,
            session: Arc::new(session),
            closed,
            options: self.options.clone(),
            nonces: Arc::clone(&self.nonces),
        })
    }

    #[cfg(test)]
    pub(crate) fn free_handshakes(&self) -> usize {
        self.handshakes.available_permits()
    }

    async fn step<T>(
        &self,
        name: &str,
        target: &NodeTarget,
        step: impl Future<Output = T>,
    ) -> Result<T, NodeError> {
        let limit = self.options.step;
        time::timeout(limit, step).await.map_err(|_| NodeError::Unreachable {
            address: target.address.clone(),
            why: format!("no {name} in {limit:?}"),
        })
    }

    fn client_config(&self, pinned: Option<&HostKey>) -> client::Config {
        client::Config {
            window_size: WINDOW,
            channel_buffer_size: CHANNEL_MESSAGES,
            preferred: preferred_algorithms(pinned),
            inactivity_timeout: Some(INACTIVITY),
            keepalive_interval: Some(self.options.keep_alive),
            keepalive_max: KEEP_ALIVE_MISSES,
            ..client::Config::default()
        }
    }
}

#[async_trait]
impl NodeDriver for SshDriver {
    async fn connect(&self, target: &NodeTarget) -> Result<Arc<dyn NodeConnection>, NodeError> {
        Ok(Arc::new(Box::pin(self.shake_hands(target)).await?))
    }
}

/// The reason for a failed handshake: another host key, if one was offered.
fn host_key_error(target: &NodeTarget, offered: &OnceLock<HostKey>, error: &russh::Error) -> NodeError {
    let address = target.address.clone();
    match (offered.get(), &target.pinned, error) {
        (Some(offered), Some(pinned), russh::Error::UnknownKey) => NodeError::HostKey {
            address,
            pinned: pinned.fingerprint.clone(),
            offered: offered.fingerprint.clone(),
        },
        _ => NodeError::Unreachable { address, why: format!("the handshake failed: {error}") },
    }
}

async fn log_in(handle: &mut Handle<Verifier>, key: &SshKey, target: &NodeTarget) -> Result<(), NodeError> {
    let refused =
        |why: String| NodeError::Login { address: target.address.clone(), user: target.user.clone(), why };
    let broken = |why: String| NodeError::Unreachable { address: target.address.clone(), why };
    let hashes = match key.0.algorithm() {
        Algorithm::Rsa { .. } => match handle.best_supported_rsa_hash().await {
            Ok(Some(Some(hash))) => vec![Some(hash)],
            Ok(Some(None)) => return Err(refused("it accepts RSA keys only with SHA-1".to_owned())),
            Ok(None) => vec![Some(HashAlg::Sha512), Some(HashAlg::Sha256)],
            Err(error) => return Err(broken(format!("the login failed: {error}"))),
        },
        _ => vec![None],
    };
    let mut needs_more = false;
    for hash in hashes {
        let key = PrivateKeyWithHashAlg::new(Arc::clone(&key.0), hash);
        match handle.authenticate_publickey(&target.user, key).await {
            Ok(AuthResult::Success) => return Ok(()),
            Ok(AuthResult::Failure { partial_success, .. }) => needs_more |= partial_success,
            Err(error) => return Err(broken(format!("the login failed: {error}"))),
        }
        // russh reports a lost connection as a failed login.
        if handle.is_closed() {
            return Err(broken("it closed the connection during the login".to_owned()));
        }
    }
    let fingerprint = key.0.fingerprint(HashAlg::Sha256);
    Err(refused(if needs_more {
        format!("it accepts the key {fingerprint} only with a second factor")
    } else {
        format!("it does not accept the key {fingerprint}")
    }))
}

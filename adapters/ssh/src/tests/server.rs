//! Test support: an SSH server on loopback that runs commands with a real shell, as OpenSSH does: each in a process
//! group of its own that survives its channel.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use russh::keys::{Algorithm, PrivateKey, PublicKey};
use russh::server::{self, Auth, ChannelOpenHandle, Handle, Msg, VerifiedPublicKey};
use russh::{Channel, ChannelId, Sig};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::stream::{OwnedStream, StreamOwner};

pub(super) fn key(seed: u64, algorithm: Algorithm) -> PrivateKey {
    PrivateKey::random(&mut StdRng::seed_from_u64(seed), algorithm).unwrap()
}

/// The part of the server that all its sessions share.
#[derive(Default)]
struct Shared {
    streams: Vec<StreamOwner>,
    logins: Vec<String>,
    commands: usize,
}

pub(super) struct Server {
    pub(super) port: u16,
    shared: Arc<Mutex<Shared>>,
    accepting: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

impl Server {
    /// Serves with some host keys, lets one user key in, and runs commands with `path` before the usual programs.
    pub(super) async fn start(host_keys: Vec<PrivateKey>, allowed: PublicKey, path: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = Arc::new(server::Config {
            keys: host_keys,
            auth_rejection_time: std::time::Duration::ZERO,
            ..server::Config::default()
        });
        let shared = Arc::new(Mutex::new(Shared::default()));
        let handler =
            Client { allowed, path: path.to_owned(), shared: Arc::clone(&shared), inputs: BTreeMap::new() };
        let accepting = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (stream, owner) = OwnedStream::new(stream);
                handler.shared.lock().unwrap().streams.push(owner);
                let (config, handler) = (Arc::clone(&config), handler.clone());
                tokio::spawn(async move {
                    if let Ok(session) = server::run_stream(config, stream, handler).await {
                        // A cut connection is an error.
                        drop(session.await);
                    }
                });
            }
        });
        Self { port, shared, accepting }
    }

    /// Breaks all connections.
    pub(super) fn cut(&self) {
        self.shared.lock().unwrap().streams.clear();
    }

    /// Algorithms of the logins so far.
    pub(super) fn logins(&self) -> Vec<String> {
        self.shared.lock().unwrap().logins.clone()
    }

    /// Number of commands so far.
    pub(super) fn commands(&self) -> usize {
        self.shared.lock().unwrap().commands
    }
}

struct Client {
    allowed: PublicKey,
    path: PathBuf,
    shared: Arc<Mutex<Shared>>,
    /// The standard inputs of running commands.
    inputs: BTreeMap<u32, mpsc::UnboundedSender<Vec<u8>>>,
}

impl Clone for Client {
    fn clone(&self) -> Self {
        Self {
            allowed: self.allowed.clone(),
            path: self.path.clone(),
            shared: Arc::clone(&self.shared),
            inputs: BTreeMap::new(),
        }
    }
}

impl server::Handler for Client {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        if user != "cybozu" || key.public_key.key_data() != self.allowed.key_data() {
            return Ok(Auth::reject());
        }
        self.shared.lock().unwrap().logins.push(key.algorithm.as_str().to_owned());
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        _channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut server::Session,
    ) -> Result<(), russh::Error> {
        reply.accept().await;
        Ok(())
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        command: &[u8],
        session: &mut server::Session,
    ) -> Result<(), russh::Error> {
        self.shared.lock().unwrap().commands += 1;
        session.channel_success(channel)?;
        let mut child = Command::new("/bin/sh")
            .args(["-c", &format!("echo Welcome\n{}", std::str::from_utf8(command).unwrap())])
            .env("PATH", format!("{}:/usr/bin:/bin", self.path.display()))
            .env("HERE", &self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (sender, mut receiver) = mpsc::unbounded_channel::<Vec<u8>>();
        self.inputs.insert(channel.into(), sender);
        let (mut stdin, stdout, stderr) =
            (child.stdin.take().unwrap(), child.stdout.take().unwrap(), child.stderr.take().unwrap());
        tokio::spawn(async move {
            while let Some(bytes) = receiver.recv().await {
                if stdin.write_all(&bytes).await.is_err() {
                    break;
                }
            }
        });
        let handle = session.handle();
        tokio::spawn(async move {
            tokio::join!(forward(stdout, &handle, channel, None), forward(stderr, &handle, channel, Some(1)));
            let status = child.wait().await.unwrap();
            // A closed connection takes no answer.
            match status.code() {
                Some(code) => {
                    let _ = handle.exit_status_request(channel, code.try_into().unwrap()).await;
                }
                None => {
                    let text = String::new;
                    let _ = handle.exit_signal_request(channel, Sig::KILL, false, text(), text()).await;
                }
            }
            let _ = handle.close(channel).await;
        });
        Ok(())
    }

    async fn data(
        &mut self,
        channel: ChannelId,
        data: &[u8],
        _session: &mut server::Session,
    ) -> Result<(), russh::Error> {
        if let Some(input) = self.inputs.get(&channel.into()) {
            drop(input.send(data.to_vec()));
        }
        Ok(())
    }

    async fn channel_eof(&mut self, channel: ChannelId, _: &mut server::Session) -> Result<(), russh::Error> {
        self.inputs.remove(&channel.into());
        Ok(())
    }

    async fn channel_close(
        &mut self,
        channel: ChannelId,
        _: &mut server::Session,
    ) -> Result<(), russh::Error> {
        self.inputs.remove(&channel.into());
        Ok(())
    }
}

async fn forward(mut output: impl AsyncRead + Unpin, handle: &Handle, channel: ChannelId, kind: Option<u32>) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = output.read(&mut buffer).await {
        let data = buffer[..length].to_vec();
        let sent = match kind {
            None => handle.data(channel, data).await,
            Some(kind) => handle.extended_data(channel, kind, data).await,
        };
        if sent.is_err() {
            break;
        }
    }
}
